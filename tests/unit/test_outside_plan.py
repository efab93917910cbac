"""What a job holds outside of its plan: counted once, and in every figure that compares fast memory with all of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from sentinel import planner
from sentinel.core.profile import Profile
from sentinel.reports import Report, Setup, build_report
from sentinel.reports.html.page import page
from sentinel.reports.outside_plan import job_memory
from sentinel.simulator import simulate
from tests.builders import MIB, act, make_machine, make_profile, param

KIB = 1 << 10
MACHINE = make_machine(8 * MIB)


def profile(*outside: Any) -> Profile:
    """16 MiB that a plan has, 4 layers, and what is `outside` of it."""
    specs = [param(f"w{k}", 4 * MIB, [k]) for k in range(4)]
    made = make_profile([*specs, *outside], 4, layer_ns=10_000_000)
    unmanaged = made.tensors[~made.tensors["managed"]]
    return dataclasses.replace(made, unmanaged_peak_bytes=int(unmanaged["nbytes"].sum()), step_ns_plain=40_000_000)


def left(name: str, nbytes: int) -> Any:
    """A tensor that stayed in place."""
    return param(name, nbytes, [0], managed=False)


def report_of(found: Profile, setup: Setup | None = None, unmanaged: int = 0) -> Report:
    plan = planner.plan(found, MACHINE, "sentinel-2021")
    run = simulate(plan, found, MACHINE, steps=2)
    steps = run.steps.copy()
    steps["unmanaged_bytes"] = unmanaged
    executed = dataclasses.replace(run, kind="executed", emulated=True, steps=steps)
    return build_report(profile=found, plan=plan, machine=MACHINE, executed=executed, setup=setup or Setup())


def recount(found: Profile) -> int:
    """Unmanaged bytes alive in the layer in which most bytes are, tensor by tensor."""
    rows = found.tensors
    alive = [[(row["stop"] > n) & (row["start"] <= n) for row in rows] for n in range(found.n_layers)]
    layers = [rows[np.array(each, bool)] for each in alive]
    fullest = max(layers, key=lambda each: int(each["nbytes"].sum()))
    return int(fullest["nbytes"][~fullest["managed"]].sum())


GATHERED = act("gathered", 10 * MIB, 1, 2, [1], managed=False)
"""As FSDP2 gathers the whole parameters of a layer: a transient that no plan has."""


@pytest.mark.parametrize(
    ("outside", "fast", "whole", "less"),
    [
        ([GATHERED], 18 * MIB, 26 * MIB, "31% less"),
        ([left("bucket.0", 6 * MIB), GATHERED], 24 * MIB, 32 * MIB, "25% less"),
        ([left("bias", 8 * KIB)], 8 * MIB, 16 * MIB, "50% less"),  # less than a thousandth
    ],
)
def test_fast_memory_counts_what_is_outside_of_the_plan(outside: list[Any], fast: int, whole: int, less: str) -> None:
    found = profile(*outside)
    told = report_of(found)
    h = told.headline
    assert h["outside_bytes"] == recount(found) == sum(spec.nbytes for spec in outside)
    assert (h["job_fast_bytes"], h["job_bytes"]) == (8 * MIB + recount(found), 16 * MIB + recount(found))
    memory = dict(told.heading.summary)["memory"]
    counts = fast > 8 * MIB
    start = f"{fast // MIB}.00 MiB of fast memory instead of {whole // MIB}.00 MiB: {less}"
    assert memory.startswith(start)
    assert ("outside of the plan, which no budget covers" in memory) == counts
    for form in (told.text(), page(told)):
        words = " ".join(form.split())
        assert ("fast memory of all" in words) == counts
        assert (f"{fast / whole:.1%} of {whole // MIB}.00 MiB" in words) or not counts


def test_what_stayed_in_place_counts_once() -> None:
    """It is in the profile and in the list of what stayed."""
    found = profile(left("bucket.0", 6 * MIB))
    setup = Setup(in_place=(("bucket.0", 6 * MIB, "a hook holds it"),))
    assert report_of(found, setup, unmanaged=100).headline["outside_bytes"] == 6 * MIB
    plan = planner.plan(found, MACHINE, "sentinel-2021")
    run = dataclasses.replace(simulate(plan, found, MACHINE, steps=1), kind="executed")
    told = job_memory(None, plan, run, MIB, setup)  # a saved plan: nothing else is known
    assert told == {"outside_bytes": 7 * MIB, "job_bytes": 23 * MIB, "job_fast_bytes": 15 * MIB}


def test_what_missed_its_place_is_fast_memory_and_in_the_footprint_already() -> None:
    found = profile(GATHERED)
    h = report_of(found, unmanaged=13 * MIB).headline  # 10 as in the profiled step, 3 more
    assert (h["job_fast_bytes"], h["job_bytes"]) == (21 * MIB, 26 * MIB)
    h = report_of(found, unmanaged=100 * MIB).headline
    assert h["job_fast_bytes"] == h["job_bytes"] == 26 * MIB


def test_all_that_fits_is_all_in_fast_memory_with_what_is_outside() -> None:
    found, roomy = profile(GATHERED), make_machine(1 << 30)
    told = build_report(profile=found, plan=planner.plan(found, roomy, "all-fast"), machine=roomy)
    memory = dict(told.heading.summary)["memory"]
    assert memory.startswith("26.00 MiB of tensors, all in fast memory; 10.00 MiB of them are outside")


def test_what_is_unknown_is_none() -> None:
    assert set(job_memory(None, None, None, None, Setup()).values()) == {None}
    assert job_memory(profile(), None, None, None, Setup()) == {
        "outside_bytes": 0,
        "job_bytes": None,
        "job_fast_bytes": None,
    }
