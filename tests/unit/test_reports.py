"""A report refuses sums that disagree and nouns that do not belong together, and says its caveats on top."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sentinel.core.counters import Counters
from sentinel.core.errors import UsageError
from sentinel.core.plan import Plan
from sentinel.core.profile import EXTENT_DTYPE
from sentinel.core.trace import Quality
from sentinel.files import with_origin
from sentinel.reports import Report, ReportError, Setup, build_report
from tests.builders import MIB, make_profile, param
from tests.unit.report_builders import MACHINE, PLAN, PROFILE, SETUP, SIMULATED, executed, full_report


@pytest.fixture(scope="module")
def full() -> Report:
    return full_report()


def _changed(table: str, column: str, value: Any, row: int = 0) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        rows = getattr(SIMULATED, table).copy()
        rows[column][row] = value
        return {"executed": executed(**{table: rows})}

    return make


def _plan(**fields: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"plan": dataclasses.replace(PLAN, **fields), "executed": executed()}


def _over_budget() -> dict[str, Any]:
    """The step says the same peak as its layer, so only the budget is broken."""
    rows, steps = SIMULATED.layers.copy(), SIMULATED.steps.copy()
    rows["fast_bytes"][0] = steps["fast_peak_bytes"][0] = 9 * MIB
    return {"executed": executed(layers=rows, steps=steps)}


def _larger_than_its_block() -> dict[str, Any]:
    """A migration that moves all it was to move, which is more than the block has."""
    moves = SIMULATED.migrations.copy()
    moves["nbytes"][0] = moves["moved_bytes"][0] = LARGER
    return {"executed": executed(migrations=moves)}


MOVED = int(SIMULATED.migrations["block"][0])
LARGER = PLAN.blocks[MOVED].nbytes + 4096
DISAGREEING: dict[str, tuple[Callable[[], dict[str, Any]], str, tuple[str, ...]]] = {
    "done with too few bytes": (
        _changed("migrations", "moved_bytes", 1),
        f"migration of block {MOVED} in step 0",
        ("called done with 1 bytes", "were to be moved"),
    ),
    "more moved than was to be": (
        _changed("migrations", "moved_bytes", 1 << 40),
        f"migration of block {MOVED} in step 0",
        (str(1 << 40), "were to be"),
    ),
    "a block that the plan has not": (
        _changed("migrations", "block", 999),
        "blocks",
        ("999", str(len(PLAN.blocks))),
    ),
    "a migration larger than its block": (
        _larger_than_its_block,
        f"block {MOVED}",
        (str(LARGER), str(LARGER - 4096)),
    ),
    "more served than touched": (
        _changed("layers", "served_fast_bytes", 1 << 40),
        "layer 0 of step 0",
        (str(1 << 40), "were touched"),
    ),
    "a layer above the budget": (
        _over_budget,
        "fast tier in layer 0 of step 0",
        (str(9 * MIB), str(8 * MIB), "no overflow"),
    ),
    "stalls": (_changed("layers", "stall_ns", 10**10), "stalls of step 0", (str(10**10), "the step")),
    "times": (
        _changed("layers", "duration_ns", 10**10),
        "time of step 0",
        ("ns", str(int(SIMULATED.steps["duration_ns"][0]))),
    ),
    "a layer that the plan has not": (
        _changed("layers", "layer", 8, row=7),
        "layers of a step",
        ("layer 8", "8 layers"),
    ),
    "a step's peak": (_changed("steps", "fast_peak_bytes", 1), "fast peak of step 0", ("the step says 1",)),
    "a step twice": (_changed("steps", "step", 1), "steps of a run", ("3 rows", "2 numbers")),
    "other tiers": (lambda: {"executed": executed(tier_names=("a", "b"))}, "tiers", ("a, b", "fast, slow")),
    "a plan above its budget": (_plan(capacity_bytes=(4096, 1 << 40)), "tier fast", ("4096",)),
    "a plan of other layers": (_plan(layers=PLAN.layers[:3]), "layers of a step", ("8", "3")),
    "a live peak that no layer has": (
        lambda: {"profile": dataclasses.replace(PROFILE, live_peak_bytes=1 << 50)},
        "live peak",
        (str(1 << 50), "alive"),
    ),
}


@pytest.mark.parametrize("case", DISAGREEING)
def test_sums_that_disagree_are_refused_naming_both(case: str) -> None:
    inputs, what, numbers = DISAGREEING[case]
    build_report(profile=PROFILE, plan=PLAN, executed=executed())  # the control: unchanged, they agree
    with pytest.raises(ReportError) as caught:
        build_report(**{"profile": PROFILE, "plan": PLAN, **inputs()})
    assert caught.value.what == what
    assert all(number in str(caught.value) for number in numbers), caught.value
    assert caught.value.left
    assert caught.value.right


def test_a_budget_that_the_run_says_it_broke_is_shown_on_top() -> None:
    rows, steps = SIMULATED.layers.copy(), SIMULATED.steps.copy()
    rows["fast_bytes"][0] = steps["fast_peak_bytes"][0] = 9 * MIB
    report = build_report(plan=PLAN, executed=executed(layers=rows, steps=steps, counters=Counters(overflows=1)))
    assert report.headline["fast_peak_bytes"] == 9 * MIB
    assert any("1.00 MiB more than its budget" in caveat for caveat in report.caveats)


def test_swapped_runs_are_refused() -> None:
    with pytest.raises(UsageError, match="simulated="):
        build_report(executed=SIMULATED)
    with pytest.raises(UsageError, match="executed="):
        build_report(simulated=executed())


def test_a_report_proves_where_its_plan_came_from(full: Report) -> None:
    assert {state for _, _, state in full.provenance} == {True}
    other = dataclasses.replace(PROFILE, n_events=PROFILE.n_events + 1)
    mixed = build_report(profile=other, plan=PLAN, simulated=dataclasses.replace(SIMULATED, origin={}))
    assert mixed.provenance == [("plan", "profile", False), ("simulated run", "plan", None)]
    assert "NOT the one shown here" in mixed.text()


def test_a_plan_that_does_not_fit_the_profile_is_refused() -> None:
    """Control: the plan's own profile is taken."""
    build_report(profile=PROFILE, plan=PLAN)
    with pytest.raises(ReportError, match="plan does not fit them: a slot is of tensor 1, which") as raised:
        build_report(profile=make_profile([param("w", 4096, range(8))], 8), plan=PLAN)
    assert raised.value.what == "plan and profile"
    rows = PROFILE.tensors.copy()
    rows["nbytes"][PLAN.slots[0].tensor] += 1 << 40
    with pytest.raises(ReportError):
        build_report(profile=dataclasses.replace(PROFILE, tensors=rows, extents=np.zeros(0, EXTENT_DTYPE)), plan=PLAN)


def test_a_plan_of_another_machine_is_a_caveat() -> None:
    """Control: without the origin of another one there is none."""
    stranger = with_origin(PLAN, machine=dataclasses.replace(MACHINE, name="another"))
    assert (
        "The plan was made from another machine than is shown here."
        in build_report(plan=stranger, machine=MACHINE).caveats
    )
    own = with_origin(PLAN, machine=MACHINE)
    assert not any("another machine" in caveat for caveat in build_report(plan=own, machine=MACHINE).caveats)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"profile": dataclasses.replace(PROFILE, quality=Quality("perf", "faults", ("reads",)))},
            "does not see writes",
        ),
        (
            {"profile": dataclasses.replace(PROFILE, quality=Quality("perf", "touched layers", ("touches",)))},
            "sees that memory was touched, not whether it was read or written",
        ),
        ({"profile": dataclasses.replace(PROFILE, quality=Quality("perf", "faults", period=7, lost=3))}, "3 events"),
        ({"profile": dataclasses.replace(PROFILE, quality=Quality("perf", "faults", period=7))}, "one event of 7"),
        ({"profile": dataclasses.replace(PROFILE, notes=("odd step",))}, "Odd step."),
        ({"profile": PROFILE}, "estimate"),
        ({"plan": dataclasses.replace(PLAN, provisional=True)}, "provisional"),
        (
            {"plan": dataclasses.replace(PLAN, fast_needed_bytes=9 * MIB)},
            "1.00 MiB less than the 9.00 MiB that one layer needs at once",
        ),
        ({"machine": MACHINE}, "declared, not measured"),
        ({"machine": MACHINE}, "on built is counted as 0"),
        ({"setup": Setup(notes=("beware",))}, "Beware."),
        ({"executed": executed(events=((2, "a page stayed"),))}, "Step 2: a page stayed"),
        ({"setup": SETUP}, "1 tensor (4.00 KiB) stayed in place"),
    ],
)
def test_each_caveat_stands_on_top_of_every_form(given: dict[str, Any], words: str, tmp_path: Path) -> None:
    assert not any(words in caveat for caveat in build_report().caveats), "the control has it too"
    report = build_report(**given)
    assert any(words in caveat for caveat in report.caveats)
    text = " ".join(report.text().split())
    assert text.index(words) < text.index("Headline")
    report.write(tmp_path / "out.html")
    page = (tmp_path / "out.html").read_text()
    assert page.index(words.replace("'", "&#x27;")) < page.index("<h2>Headline")


def test_the_plan_of_the_tests_migrates() -> None:
    """Else most tests above would pass on empty tables."""
    assert isinstance(PLAN, Plan)
    assert len(PLAN.migrations) >= 2
    assert np.unique(SIMULATED.migrations["target"]).tolist() == [0, 1]


def test_reports_need_no_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from sentinel.reports import build_report\n"
        "from tests.unit.report_builders import PROFILE, PLAN\n"
        "report = build_report(profile=PROFILE, plan=PLAN)\n"
        "assert report.text() and report.headline['peak_bytes']\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], check=True, timeout=600)


def test_a_report_of_an_emulated_run_says_what_was_copied_and_what_was_not() -> None:
    counters = Counters(copied_bytes=3 * MIB, uncopied_bytes=MIB, copy_cpu_ns=7_000_000)
    told = build_report(plan=PLAN, profile=PROFILE, machine=MACHINE, executed=executed(counters=counters)).caveats
    assert "Movers copied 3.00 MiB, which took 7.00 ms of processor time." in told
    assert "1.00 MiB that moved were not copied: this host did not let them be read." in told
    assert any(line.endswith("copies are real, delays of slow accesses are injected.") for line in told)
    plain = build_report(plan=PLAN, profile=PROFILE, machine=MACHINE, executed=executed()).caveats
    assert not any("copied" in line for line in plain)
