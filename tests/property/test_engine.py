"""Any plan of any policy: the engine does what the simulator says, within the budget, and its books balance."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.run import OUTCOMES
from sentinel.core.units import PAGE_BYTES
from sentinel.planner import plan as make_plan
from sentinel.simulator import simulate
from tests.builders import GB, profiles
from tests.three_tiers import three_tiers
from tests.unit.engine_builders import INSTANT, Running, applied, emulated_machine, migrating_plans

pytestmark = pytest.mark.needs("native")

SLOW = 40 * GB  # so that injected delays stay short
FEW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def walk(running: Running, layers: list[int]) -> None:
    """Ticks between which every transfer is let end: time plays no part."""
    for layer in layers:
        running.tick(layer)
        running.let_land()


def lawful(profile: Profile, data: st.DataObject, policy: str) -> Plan:
    """A plan of `policy` with a drawn budget; `moving`: one made for moving much."""
    if policy == "moving":
        return data.draw(migrating_plans(profile))
    pages = data.draw(st.integers(0, 200))
    return make_plan(profile, emulated_machine(pages * PAGE_BYTES, slow_bw=SLOW), policy)


def agrees(plan: Plan, did: NDArray[Any], said: NDArray[Any]) -> None:
    """One executed step against the simulated one. The simulator has a block slow until its promotion is due, the
    engine until it has landed, here within the layer; so where a promotion has more time the engine is faster."""
    tolerance = len(plan.blocks) + 1  # the engine rounds the delay of each block, the simulator that of each layer
    snug = all(move.due == move.start + 1 for move in plan.migrations)
    saved_ns = said["slow_ns"] - did["slow_ns"]
    # the simulator's sums have what no block holds too, as fast; so compare what is slow
    slow_bytes = [table["touched_bytes"] - table["served_fast_bytes"] for table in (said, did)]
    for saved in (saved_ns, slow_bytes[0] - slow_bytes[1]):
        assert saved.min() >= -tolerance
        if snug:
            assert saved.max() <= tolerance


@FEW
@given(profiles(), st.data(), st.sampled_from(["moving", "moving", "sentinel-2021", "first-touch", "all-slow"]))
def test_executed_equals_simulated_where_time_plays_no_part(profile: Profile, data: st.DataObject, policy: str) -> None:
    plan = lawful(profile, data, policy)
    machine = emulated_machine(plan.capacity_bytes[0], promote=INSTANT, demote=INSTANT, slow_bw=SLOW)
    said = simulate(plan, profile, machine)
    length = plan.n_layers
    with applied(plan, profile, machine, strict=True) as running:
        running.let_land()
        for _ in range(3):
            walk(running, [*range(1, length), 0])
        did = running.engine.end_run()
    assert did.layers["fast_bytes"].max() <= plan.capacity_bytes[0]
    assert did.counters.overflow_bytes == 0
    assert not did.counters.born_slow
    # in the first step a move that crosses the step's end may find its block where it was to go
    moves = did.migrations[did.migrations["step"] == 2]
    assert {OUTCOMES[row] for row in moves["outcome"]} <= {"done", "late"}
    assert len(moves) == len(plan.migrations)
    agrees(plan, did.layers[did.layers["step"] == 2], said.layers)


@FEW
@given(profiles(), st.data(), st.lists(st.integers(0, 7), max_size=40), st.sampled_from(["moving", "sentinel-2021"]))
def test_whatever_ticks_come_the_budget_holds_and_the_books_balance(
    profile: Profile, data: st.DataObject, layers: list[int], policy: str
) -> None:
    plan = lawful(profile, data, policy)
    speed = data.draw(st.sampled_from([GB // 10, GB, 100 * GB]))
    machine = emulated_machine(plan.capacity_bytes[0], promote=speed, demote=GB, slow_bw=SLOW)
    length = plan.n_layers
    with applied(plan, profile, machine, strict=True) as running:
        for layer in layers:
            if layer == 7:
                running.lose()
            else:
                running.tick(layer % length)
        running.tick(0)
        running.let_land()
        for _ in range(3):
            walk(running, [*range(1, length), 0])
        did = running.engine.end_run()
        held = running.engine._mover.held()
    assert held.most_fast_bytes <= plan.capacity_bytes[0]
    assert held.overflows == held.in_flight_bytes == 0
    alive = sum(b.nbytes for b in plan.blocks if b.persistent or b.fixed or b.start == 0 or b.stop > length)
    assert sum(held.bytes_in) == alive
    # back in step: the last step is the plan's
    said = simulate(plan, profile, machine)
    agrees(plan, did.layers[did.layers["step"] == did.layers["step"].max()], said.layers)


@FEW
@given(profiles(), st.data(), st.sampled_from(["sentinel", "sentinel-2021", "interleave"]))
def test_three_tiers_hold_what_is_planned_and_never_more_than_they_have(
    profile: Profile, data: st.DataObject, policy: str
) -> None:
    rooms = [data.draw(st.integers(0, 200)) * PAGE_BYTES for _ in range(2)]
    machine = three_tiers(
        *rooms, middle_bw=SLOW, slow_bw=SLOW // 2, middle_link=INSTANT, slow_link=INSTANT, kind="emulated"
    )
    plan = make_plan(profile, machine, policy)
    said = simulate(plan, profile, machine)
    with applied(plan, profile, machine, strict=True) as running:
        running.let_land()
        for _ in range(3):
            walk(running, [*range(1, plan.n_layers), 0])
        did = running.engine.end_run()
        held = running.engine._mover.held()
    last = did.layers["step"] == 2
    for tier, capacity in enumerate(plan.capacity_bytes):
        executed, simulated = did.held_bytes(tier), said.held_bytes(tier)
        assert executed is not None
        assert simulated is not None
        assert executed.max() <= capacity
        # a transfer that ends before what else begins in its layer is not held beside it: so it may be less
        assert (executed[last] <= plan.held_bytes[tier]).all()
        assert (simulated <= plan.held_bytes[tier]).all()
        if not plan.migrations:
            assert executed[last].tolist() == simulated.tolist()
    alive = sum(b.nbytes for b in plan.blocks if b.persistent or b.fixed or b.start == 0 or b.stop > plan.n_layers)
    assert sum(held.bytes_in) == alive
    agrees(plan, did.layers[last], said.layers)
