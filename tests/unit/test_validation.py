"""The validation benchmark predicts one half of a run from the other, fails at one large error, and loses no cell."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.missed_goals import missed
from benchmarks.validation import DISTURBED, judged, known, orders, summary
from benchmarks.validation_page import page
from sentinel.core.run import LAYER_DTYPE, MIGRATION_DTYPE, STEP_DTYPE, Run
from sentinel.simulator import simulate
from tests.builders import make_machine, make_profile, param, persistent_plan
from tests.three_tiers import three_tiers

MB = 1 << 20


def told(error: float = 0.0, **more: Any) -> dict[str, Any]:
    half = {"predicted_ns": round(1000 * (1 + error)), "executed_ns": 1000, "plain_ns": 800}
    found = {"emulated": True, "halves": [half, half], "ahead_ns": 1100, "executed_steps_ns": [900, 1000, 1000, 1300]}
    return {**found, **more}


def cell(example: str, policy: str, error: float, **more: Any) -> dict[str, Any]:
    when = {"when": "2026-01-02T03:04:05Z", "others_share": 0.01}
    return {"example": example, "policy": policy, "fast": "20%", **judged(told(error, **more)), **when}


REFUSED = {"example": "b", "policy": "all-fast", "fast": "20%", "when": "2026-01-02", "refused": "layer 0: too small"}


def test_the_error_is_the_mean_of_both_halves_and_what_was_said_ahead_is_told_beside_it() -> None:
    faster = {"predicted_ns": 950, "executed_ns": 1000, "plain_ns": 800}
    slower = {"predicted_ns": 1100, "executed_ns": 1000, "plain_ns": 900}
    found = judged(told(halves=[faster, slower]))
    assert found["error"] == pytest.approx(0.025)
    assert found["error_ahead"] == pytest.approx(0.1)
    assert found["added_ns"] == {"predicted": 175, "executed": 150}
    with pytest.raises(SystemExit, match="emulated"):
        judged(told(emulated=False))


def test_each_half_is_held_against_the_steps_between_its_own() -> None:
    pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")
    from benchmarks._validated_run import halves
    from sentinel.session.planning import Dataflow

    profile, machine = make_profile([param("a", MB, [1])], 2), make_machine()
    plan = persistent_plan(profile, [1])  # slow: each step takes longer than its layers
    slow = int(simulate(plan, profile, machine).layers["slow_ns"].sum())
    plain = np.array([9, 9, 3, 5, 3, 5]) * 1_000_000  # per layer, by turns; the first two steps are not judged
    layers = np.zeros(12, LAYER_DTYPE)
    layers["step"], layers["layer"] = np.divmod(np.arange(12), 2)
    layers["slow_ns"][1::2] = slow
    layers["duration_ns"] = np.repeat(plain, 2) + layers["slow_ns"]
    steps = np.zeros(6, STEP_DTYPE)
    steps["step"], steps["in_step"], steps["duration_ns"] = np.arange(6), True, 2 * plain + slow
    run = Run("executed", True, ("fast", "slow"), 0, steps, layers, np.zeros(0, MIGRATION_DTYPE))
    first, second = halves(run, Dataflow(profile=profile, machine=machine, plan=plan), judged=4)
    assert first == {"predicted_ns": 6_000_000 + slow, "executed_ns": 10_000_000 + slow, "plain_ns": 6_000_000}
    assert second == {"predicted_ns": 10_000_000 + slow, "executed_ns": 6_000_000 + slow, "plain_ns": 10_000_000}


def test_what_each_tier_held_is_counted_by_layer_in_steps_that_ran_as_planned() -> None:
    pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")
    from benchmarks._validated_run import accounts

    profile = make_profile([param("a", 4 * MB, [1]), param("b", MB, [0]), param("c", 2 * MB, [1])], 2)
    machine = three_tiers(4 * MB, MB)
    plan = persistent_plan(profile, [0, 1, 2], fast_bytes=4 * MB)
    plan = replace(plan, tier_names=("fast", "middle", "slow"), capacity_bytes=(4 * MB, MB, 1 << 40))
    simulated = simulate(plan, profile, machine, steps=2)
    assert [tuple(row.values()) for row in accounts(replace(simulated, kind="executed"), plan, simulated)] == [
        ("fast", 4 * MB, 4 * MB, 4 * MB, 4 * MB, 4, 0, 0),
        ("middle", MB, MB, MB, MB, 4, 0, 0),
        ("slow", 1 << 40, 2 * MB, 2 * MB, 2 * MB, 4, 0, 0),
    ]
    held, steps = simulated.held.copy(), simulated.steps.copy()
    held["nbytes"][(held["tier"] == 1) & (held["layer"] == 1)] += 1  # of two steps
    steps["in_step"][0] = False
    middle = accounts(replace(simulated, kind="executed", held=held, steps=steps), plan, None)[1]
    assert middle["simulated_bytes"] is None
    assert (middle["executed_bytes"], middle["layers"]) == (MB + 1, 2)
    assert (middle["layers_above_capacity"], middle["layers_above_plan"]) == (1, 1)


def test_a_page_of_three_tiers_says_what_each_held() -> None:
    names = ("capacity_bytes", "planned_bytes", "simulated_bytes", "executed_bytes")
    counts = {"layers": 96, "layers_above_capacity": 0, "layers_above_plan": 3}
    sizes = {"fast": (MB, MB, MB, MB), "m": (2 * MB, MB, MB, 2 * MB), "s": (1 << 40, 3 * MB, None, 4 * MB)}
    tiers = [{"name": name, **dict(zip(names, row, strict=True)), **counts} for name, row in sizes.items()]
    results = summary([cell("a", "lru", 0.02, tiers=tiers), cell("b", "lru", -0.05, tiers=tiers[:2])])
    where = {"machine": {"cores": 2, "cpu": "Some Processor 9"}, "versions": {"torch": "2.0"}, "slow": "e:m={middle}+s"}
    text = page({**where, "steps": 20, "threads": 2, "results": results}, "three")
    assert "`python -m benchmarks.validation --tiers 3 --into docs/three.json`" in text
    assert "`{middle}` is three tenths of the example's footprint: 2.00 MiB for a." in text
    assert "| lru | a | m | 2.00 MiB | 1.00 MiB | 1.00 MiB | 2.00 MiB | 96 | 0 | 3 |" in text
    assert "| lru | a | s | – | 3.00 MiB | – | 4.00 MiB | 96 | 0 | 3 |" in text


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
    found = [tuple(order[key] for key in ("policy", "fast", "example")) for order in asked]
    assert found == [("lru", "20%", "a"), ("lru", "20%", "b"), *control]


def test_a_later_sitting_keeps_the_cells_of_the_first_one_and_refuses_others(tmp_path: Any) -> None:
    settings = {"steps": 20}
    path = tmp_path / "v.json"
    assert known(path, settings) == {}
    path.write_text(json.dumps({"steps": 20, "results": summary([cell("a", "lru", 0.02)])}))
    assert list(known(path, settings)) == ["a lru 20%"]
    with pytest.raises(SystemExit, match="steps 20"):
        known(path, {"steps": 30})
    assert 0 < DISTURBED < 1


def test_the_page_has_every_cell_its_spread_and_why_one_is_missing() -> None:
    alike = {"executed_steps_ns": [1000, 1000]}
    results = summary(
        [cell("a", "lru", 0.02, **alike), cell("b", "lru", -0.05), cell("a", "static", 0.01, **alike), REFUSED]
    )
    where = {"machine": {"cores": 2, "cpu": "Some Processor 9"}, "versions": {"torch": "2.0"}, "slow": "emulated:x"}
    text = page({**where, "steps": 20, "threads": 2, "results": results})
    assert "| lru | 20% | +2.0% | -5.0% (-10%, +30%) | 3.5% | 5.0% |" in text
    assert "| static | 20% | +1.0% |  | 1.0% | 1.0% |" in text
    assert "| lru | 20% | +10.0% | +10.0% |" in text  # as it was predicted ahead
    assert "- `all-fast` with 20% fast memory (b): too small" in text
    assert "(goal: 3 % and 8 %): held." in text
    assert "Every example trains with each of 3 policies on **emulated** slow memory" in text
    far = summary([cell("a", "lru", 0.09)])
    text = page({**where, "steps": 20, "threads": 2, "results": far})
    assert "Every example trains with `lru` on **emulated** slow memory" in text
    (goal,) = missed(text)
    assert goal.startswith("Simulated against executed: **Mean error of the step 9.0%, worst 9.0%** (a lru 20%)")
