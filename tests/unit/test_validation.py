"""The validation benchmark judges later steps only, and its summary fails where one error is too large."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.validation import KEPT, NOT_JUDGED, judged, summary


def report(durations: list[int], *, predicted: int | None = 110, kind: str = "emulated", switched: bool = False) -> Any:
    return {
        "script": "x.py",
        "headline": {"kind": kind, "step_ns_predicted": predicted, "step_ns_plain": 80},
        "caveats": ["planned anew after 4 applied steps"] if switched else [],
        "frames": {"steps": {"duration_ns": durations, "in_step": [d > 0 for d in durations]}},
    }


def test_steps_that_gave_the_layer_times_are_not_judged() -> None:
    kept = judged(report([900, 900, 900, 900, 900, 90, 100, 130]), steps=10)  # applied since step 2
    assert kept["executed_ns"] == 100
    assert kept["error"] == pytest.approx(0.1)
    assert kept["added_ns"] == {"predicted": 30, "executed": 20}
    assert (kept["judged_steps"], kept["planned_anew"]) == (10 - NOT_JUDGED, False)
    switched = judged(report([900, 90, 100, 130], switched=True), steps=10)  # a run of its own since step 6
    assert switched["executed_ns"] == 100
    assert switched["planned_anew"]


def test_of_a_long_run_the_first_steps_are_not_taken_for_later_ones() -> None:
    found = judged(report([*(900 for _ in range(4)), *(100 for _ in range(KEPT))]), steps=500)
    assert (found["executed_most_ns"], found["judged_steps"]) == (100, KEPT)


def test_a_step_that_ticked_otherwise_is_not_judged() -> None:
    assert judged(report([900, 90, 100, -1]), steps=10)["judged_steps"] == 2


@pytest.mark.parametrize("broken", [report([100], kind="simulated"), report([100], predicted=None), report([-1])])
def test_what_was_not_executed_is_not_judged(broken: Any) -> None:
    with pytest.raises(SystemExit, match=r"x\.py"):
        judged(broken, steps=8)


def test_one_large_error_breaks_the_claim_whatever_its_sign() -> None:
    assert summary([{"error": 0.02}, {"error": -0.03}])["holds"]
    far = summary([*({"error": 0.0} for _ in range(9)), {"error": -0.09}])
    assert far["worst_error"] == 0.09
    assert not far["holds"]
