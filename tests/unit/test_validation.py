"""The validation benchmark judges later steps only, fails where one error is too large, and loses no cell."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import validation
from benchmarks.validation import KEPT, NOT_JUDGED, judged, known, orders, summary
from benchmarks.validation_page import page

STEPS = NOT_JUDGED + 3


def report(durations: list[int], *, predicted: int | None = 110, kind: str = "emulated", switched: bool = False) -> Any:
    headline = {"kind": kind, "step_ns_predicted": predicted, "step_ns_plain": 80, "migrated_bytes_per_step": 7}
    return {
        "script": "x.py",
        "headline": headline,
        "caveats": ["planned anew after 4 applied steps"] if switched else [],
        "frames": {"steps": {"duration_ns": durations, "in_step": [d > 0 for d in durations]}},
    }


def cell(example: str, policy: str, error: float, fast: str = "20%") -> dict[str, Any]:
    found = judged(report([100] * 13, predicted=round(100 * (1 + error))), steps=NOT_JUDGED + 13)
    return {
        "example": example,
        "policy": policy,
        "fast": fast,
        **found,
        "when": "2026-01-02T03:04:05Z",
        "others_share": 0.01,
    }


REFUSED = {"example": "b", "policy": "all-fast", "fast": "20%", "when": "2026-01-02", "refused": "layer 0: too small"}


def test_steps_that_gave_the_layer_times_are_not_judged() -> None:
    kept = judged(report([900, 900, 900, 900, 900, 90, 100, 130]), steps=STEPS)  # before: what gave the times
    assert kept["executed_ns"] == 100
    assert kept["error"] == pytest.approx(0.1)
    assert kept["added_ns"] == {"predicted": 30, "executed": 20}
    assert kept["executed_steps_ns"] == [90, 100, 130]
    assert not kept["planned_anew"]
    switched = judged(report([900, 90, 100, 130], switched=True), steps=STEPS)  # a run of its own
    assert switched["executed_ns"] == 100
    assert switched["planned_anew"]


def test_of_a_long_run_the_first_steps_are_not_taken_for_later_ones() -> None:
    found = judged(report([*(900 for _ in range(4)), *(100 for _ in range(KEPT))]), steps=500)
    assert found["executed_steps_ns"] == [100] * KEPT


def test_a_step_that_ticked_otherwise_is_not_judged() -> None:
    assert judged(report([900, 90, 100, -1]), steps=STEPS)["executed_steps_ns"] == [90, 100]


@pytest.mark.parametrize("broken", [report([100], kind="simulated"), report([100], predicted=None), report([-1])])
def test_what_was_not_executed_is_not_judged(broken: Any) -> None:
    with pytest.raises(SystemExit, match=r"x\.py"):
        judged(broken, steps=NOT_JUDGED + 1)


def test_one_large_error_breaks_the_claim_whatever_its_sign() -> None:
    assert summary([cell("a", "lru", 0.02), cell("b", "lru", -0.03)])["holds"]
    far = summary([*(cell(str(i), "lru", 0.0) for i in range(9)), cell("b", "static", -0.09)])
    assert far["worst_error"] == pytest.approx(0.09)
    assert far["worst_cell"] == "b static 20%"
    assert not far["holds"]


def test_what_was_refused_is_no_error_and_holds_nothing() -> None:
    assert not summary([REFUSED])["holds"]
    both = summary([REFUSED, cell("a", "lru", 0.01)])
    assert both["mean_error"] == pytest.approx(0.01)
    assert len(both["cells"]) == 2


def test_the_control_gets_all_the_memory_it_needs_and_is_refused_less_once() -> None:
    asked = orders(["lru", "all-fast"], ["a", "b"], "20%")
    control = [("all-fast", "100%", "a"), ("all-fast", "100%", "b"), ("all-fast", "20%", "a")]
    assert [tuple(o[key] for key in ("policy", "fast", "example")) for o in asked] == [
        ("lru", "20%", "a"),
        ("lru", "20%", "b"),
        *control,
    ]


def test_a_later_sitting_keeps_the_cells_of_the_first_one_and_refuses_others(tmp_path: Any) -> None:
    settings = {"steps": 20}
    path = tmp_path / "v.json"
    assert known(path, settings) == {}
    path.write_text(json.dumps({"steps": 20, "results": summary([cell("a", "lru", 0.02)])}))
    assert list(known(path, settings)) == ["a lru 20%"]
    with pytest.raises(SystemExit, match="steps 20"):
        known(path, {"steps": 30})


def test_the_page_has_every_cell_its_spread_and_why_one_is_missing() -> None:
    wide = cell("b", "lru", -0.05) | {"executed_steps_ns": [100, 100, 150]}
    results = summary([cell("a", "lru", 0.02), wide, cell("a", "static", 0.01), REFUSED])
    where = {"machine": {"cores": 2, "cpu": "Some Processor 9"}, "versions": {"torch": "2.0"}, "slow": "emulated:x"}
    text = page({**where, "steps": 20, "threads": 2, "results": results})
    assert "| lru | 20% | +2.0% | -5.0% (+0%, +50%) | 3.5% | 5.0% |" in text
    assert "| static | 20% | +1.0% |  | 1.0% | 1.0% |" in text
    assert "- `all-fast` with 20% fast memory (b): too small" in text
    assert "held" in text
    assert validation.CLAIM.startswith("the simulator predicts")
