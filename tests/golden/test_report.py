"""One small step, profiled, planned, simulated and reported: the text and figures that a user sees.

To accept a change: run `SENTINEL_ACCEPT=1 pytest tests/golden`, read `git diff tests/golden`, and commit it
with the change that caused it.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
from functools import cache
from pathlib import Path

import pytest

from sentinel import planner
from sentinel.core.profile import Profile
from sentinel.core.trace import LayerId
from sentinel.files import with_origin
from sentinel.reports import Report, Setup, build_report
from sentinel.simulator import simulate
from tests.builders import GB, MIB, act, make_machine, make_profile, param

POLICIES = ("sentinel-2021", "first-touch")
"""Not those that ask a solver: another release of it may find another plan of the same worth."""

EXPECTED = Path(__file__).parent / "expected"
HOW = "to accept the change: SENTINEL_ACCEPT=1 pytest tests/golden, read `git diff tests/golden`, commit it"


def profile() -> Profile:
    """Three blocks forward, three backward, an optimizer: all in known sizes and times."""
    specs = []
    for k in range(3):
        back, update = 5 - k, 6
        specs.append(param(f"h.{k}.weight", 4 * MIB, [k, back, update]))
        specs.append(param(f"optimizer.exp_avg.h.{k}.weight", 4 * MIB, [update], role="optimizer"))
        specs.append(dataclasses.replace(act(f"h.{k}.weight.grad", 4 * MIB, back, 7, [update]), role="grad"))
        specs.append(act(f"h.{k}.out", 3 * MIB, k, back + 1, [back]))
        specs.append(act(f"h.{k}.scratch", MIB, k, k + 1, dies_early=True))
    specs.append(param("embedding.weight", 10000, [0, 5, 6], managed=False))
    names = [("h.0", "forward"), ("h.1", "forward"), ("h.2", "forward"), ("h.2", "backward"), ("h.1", "backward")]
    layers = tuple(LayerId(n, 0, p) for n, p in [*names, ("h.0", "backward"), ("optimizer", "optimizer")])  # type: ignore[arg-type]
    found = make_profile(specs, 7, layer_ns=[5_000_000] * 6 + [9_000_000], flops=[10**9] * 6 + [0])
    return dataclasses.replace(
        found, layers=layers, step_ns_plain=40_000_000, step_ns_profiled=95_000_000, unmanaged_peak_bytes=20_000
    )


@cache
def report(policy: str) -> Report:
    """Two fifths of the footprint are fast; the slow tier reads 6 GB/s, links move 4 GB/s."""
    recorded = profile()
    machine = make_machine(20 * MIB, slow_bw=6 * GB, promote=4 * GB, demote=4 * GB)
    plan = with_origin(planner.plan(recorded, machine, policy), profile=recorded, machine=machine)
    run = with_origin(simulate(plan, recorded, machine, steps=2), plan=plan)
    kept = (("embedding.weight", 10000, "a numpy array shares its memory"),)
    setup = Setup(tracker="ops", fast="20MiB", in_place=kept, script="golden.py")
    return build_report(profile=recorded, plan=plan, machine=machine, simulated=run, setup=setup)


def agree(name: str, found: str) -> None:
    path = EXPECTED / name
    if os.environ.get("SENTINEL_ACCEPT"):
        path.write_text(found)
    expected = path.read_text() if path.exists() else ""
    if found != expected:
        difference = "".join(difflib.unified_diff(expected.splitlines(True), found.splitlines(True), name, "found"))
        pytest.fail(f"{difference}\n{HOW}", pytrace=False)


@pytest.mark.parametrize("policy", POLICIES)
def test_text(policy: str) -> None:
    agree(f"{policy}.txt", report(policy).text())


@pytest.mark.parametrize("policy", POLICIES)
def test_figures_and_plan(policy: str) -> None:
    """The headline, the caveats and every planned migration, one a line."""
    found = report(policy)
    plan = found.plan
    assert plan is not None
    moves = [
        f"{plan.blocks[m.block].name} {m.source}->{m.target} [{m.start}, {m.due}) {m.reason}" for m in plan.migrations
    ]
    figures = {"headline": found.headline, "caveats": found.caveats, "migrations": moves}
    agree(f"{policy}.json", json.dumps(figures, indent=1) + "\n")


def test_a_change_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    monkeypatch.delenv("SENTINEL_ACCEPT", raising=False)
    (tmp_path / "text").write_text("as it was\n")
    monkeypatch.setitem(globals(), "EXPECTED", tmp_path)
    agree("text", "as it was\n")
    with pytest.raises(pytest.fail.Exception, match="SENTINEL_ACCEPT=1"):
        agree("text", "as it is\n")
