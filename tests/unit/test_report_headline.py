"""The headline: every promised figure, None where it is unknown, and the word for what was done."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sentinel.core.errors import UsageError
from sentinel.core.run import OUTCOMES, Run
from sentinel.reports import Report, Setup, build_report
from tests.builders import MIB
from tests.unit.report_builders import MACHINE, PLAN, PROFILE, SIMULATED, executed, full_report


@pytest.fixture(scope="module")
def full() -> Report:
    return full_report()


CONTRACT = (
    *(
        "peak_bytes",
        "live_peak_bytes",
        "unmanaged_bytes",
        "fast_capacity_bytes",
        "fast_peak_bytes",
        "fast_needed_bytes",
    ),
    *("fast_served_fraction", "migrated_bytes_per_step", "stall_ns_per_step", "step_ns_plain", "step_ns_profiled"),
    *("step_ns_applied", "step_ns_predicted", "setup_ns", "plan_ns", "mil", "cases", "optimality_gap", "tracker"),
    *("slow", "kind"),
)


def test_the_headline_has_every_promised_figure(full: Report) -> None:
    assert set(CONTRACT) <= set(full.headline)
    h = full.headline
    assert h["kind"] == "emulated"
    assert (h["setup_ns"], h["plan_ns"], h["tracker"], h["slow"]) == (7, 11, "ops", "emulated:cxl-asic-x8")
    assert h["peak_bytes"] == PLAN.footprint_bytes
    assert h["fast_capacity_bytes"] == 8 * MIB
    assert h["step_ns_applied"] == h["step_ns_predicted"] == SIMULATED.step_ns
    assert h["step_ns_plain"] == 81_000_000
    assert h["unmanaged_bytes"] == 4097
    assert 0 < h["fast_served_fraction"] <= 1
    assert h["fast_peak_bytes"] <= 8 * MIB
    assert sum(h["cases"].values()) == sum(SIMULATED.counters.cases.values())


def test_the_page_of_measures_has_each_figure_once(full: Report) -> None:
    page = (Path(__file__).parents[2] / "docs" / "measurement.md").read_text()
    table = page.partition("## Headline")[2].partition("## ")[0]
    first_cells = re.findall(r"^\| (`[^|]*) \|", table, re.M)
    assert sorted(re.findall(r"`(\w+)`", " ".join(first_cells))) == sorted(full.headline)


def test_what_is_unknown_is_none_and_never_a_word_or_zero() -> None:
    words = {"tracker", "slow", "kind", "policy", "fast"}
    for report in (
        build_report(),
        build_report(profile=PROFILE),
        build_report(plan=PLAN),
        build_report(executed=executed()),
    ):
        assert set(CONTRACT) <= set(report.headline)
        for name, value in report.headline.items():
            assert value is None or isinstance(value, dict) or isinstance(value, str) == (name in words), name
    empty = build_report().headline
    assert {name for name in CONTRACT if empty[name] is not None} == set()
    only_profile = build_report(profile=PROFILE).headline
    assert only_profile["step_ns_applied"] is None
    assert only_profile["stall_ns_per_step"] is None
    assert only_profile["step_ns_plain"] == 81_000_000


@pytest.mark.parametrize("odd", [None, "x", {"1": {}}, {"1": "x", "2": 0}, [1, 2, 3], True, {}])
def test_details_that_are_not_what_they_should_be_are_unknown(odd: Any) -> None:
    """A plan's details are the policy's own, and may come from a file."""
    details = {"mil": odd, "cases": odd}
    report = build_report(plan=dataclasses.replace(PLAN, details=details))
    assert report.headline["mil"] is None
    assert report.headline["cases"] == ({"1": 0, "2": 0, "3": 0} if odd == {} else None)
    assert "unknown" in report.text()


@pytest.mark.parametrize(
    ("given", "setup", "kind", "word"),
    [
        ({"executed": executed(False)}, Setup(), "executed", "Executed"),
        ({"executed": executed()}, Setup(), "emulated", "Emulated"),
        ({"executed": executed(), "simulated": SIMULATED}, Setup(), "emulated", "Emulated"),
        ({"simulated": SIMULATED}, Setup(), "simulated", "Simulated"),
        ({"simulated": SIMULATED}, Setup(kind="declared"), "declared", "Declared"),
        (
            {"executed": executed(steps=SIMULATED.steps[:0]), "simulated": SIMULATED},
            Setup(),
            "simulated",
            "no step ran by",
        ),
        ({}, Setup(), None, "nothing was applied"),
    ],
)
def test_the_kind_says_exactly_what_was_done(given: dict[str, Run], setup: Setup, kind: str | None, word: str) -> None:
    report = build_report(profile=PROFILE, plan=PLAN, machine=MACHINE, setup=setup, **given)
    assert report.headline["kind"] == kind
    text = report.text()
    assert word in text.split("Headline")[0]
    first_row = text.split("Headline\n")[1].splitlines()[0]
    assert first_row.split("what was done")[1].split()[0] == (kind or "profiled")


def test_figures_of_a_step_leave_out_steps_that_went_astray() -> None:
    steps = SIMULATED.steps.copy()
    steps["duration_ns"][0], steps["in_step"][0] = 10**12, False
    assert build_report(executed=executed(steps=steps)).headline["step_ns_applied"] == SIMULATED.step_ns
    steps["in_step"] = False
    astray = build_report(executed=executed(steps=steps))
    assert astray.headline["step_ns_applied"] is None
    assert any("No step ran as planned" in caveat for caveat in astray.caveats)


def test_bytes_of_a_step_that_went_astray_are_not_among_those_of_the_rest() -> None:
    run = executed()
    astray = run.steps["step"][0]
    steps, layers, moves = run.steps.copy(), run.layers.copy(), run.migrations.copy()
    steps["in_step"][0] = False
    layers["served_fast_bytes"][layers["step"] == astray] = 0
    moves = moves[moves["step"] == astray + 1]  # and the third step is alike
    others = run.layers[run.layers["step"] != astray]
    moved = int(moves["moved_bytes"].sum())
    third = moves.copy()
    third["step"] = astray + 2
    wild = moves.copy()
    wild["step"], wild["moved_bytes"], wild["outcome"] = astray, 0, OUTCOMES.index("partial")
    found = build_report(
        executed=executed(steps=steps, layers=layers, migrations=np.concatenate([wild, wild, moves, third]))
    ).headline
    assert moved > 0
    assert found["migrated_bytes_per_step"] == moved
    assert found["fast_served_fraction"] == others["served_fast_bytes"].sum() / others["touched_bytes"].sum()
    steps["in_step"][2] = False  # now one step alone counts
    wild["step"] = astray + 2
    found = build_report(
        executed=executed(steps=steps, layers=layers, migrations=np.concatenate([moves, wild]))
    ).headline
    assert found["migrated_bytes_per_step"] == moved


def test_a_headline_needs_no_pandas() -> None:
    program = (
        "import sys; sys.modules['pandas'] = None\n"
        "from sentinel.reports import build_report\n"
        "assert build_report().headline['kind'] is None\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], check=True, timeout=600)


def test_a_machine_of_fewer_tiers_than_the_plan_is_refused() -> None:
    plan = dataclasses.replace(
        PLAN, tier_names=("fast", "middle", "slow"), capacity_bytes=(*PLAN.capacity_bytes, 1 << 40)
    )
    with pytest.raises(UsageError, match="has 2 tiers, the plan or run has 3"):
        build_report(plan=plan, machine=MACHINE)


def test_no_step_is_compared_with_one_of_a_machine_that_computes_otherwise() -> None:
    """A step of 81 ms was recorded here; one of a machine of other processors says nothing beside it."""
    compared, alone = (
        build_report(
            profile=PROFILE, plan=PLAN, machine=dataclasses.replace(MACHINE, flops_per_s=flops), simulated=SIMULATED
        )
        for flops in (None, 1.5e12)
    )
    assert compared.headline["step_ns_plain"] == 81_000_000
    assert (alone.headline["step_ns_plain"], alone.headline["step_ns_plain_is_measured"]) == (None, None)
    assert "stock step" in compared.text()
    text = " ".join(alone.text().split())
    assert "times a stock step" not in text
    assert "computes 1.5 TFLOP/s: no step of it is compared with stock." in text
