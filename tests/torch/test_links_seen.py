"""A plan made again takes links to be as fast as migrations were, unless the user or a calibration said how fast."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from sentinel.core.budget import Budget
from sentinel.core.errors import PlanError, UsageError
from sentinel.core.machine import Machine
from sentinel.core.profile import Profile
from sentinel.core.run import LAYER_DTYPE, MIGRATION_DTYPE, OUTCOMES, Run
from sentinel.files import digest
from sentinel.migration.rates import short_of
from sentinel.proving import trained_cell
from sentinel.session.planning import Dataflow, Planning
from sentinel.session.request import Request
from tests.builders import GB, MIB, make_profile, param
from tests.unit.engine_builders import emulated_machine

# Two tensors take turns, with 10 ms in between; each is read often enough that fast memory pays if it can get there.
TURNS = make_profile([param("a", 8 * MIB, [1, 2]), param("b", 8 * MIB, [5, 6])], 8, layer_ns=10 * 10**6)
# A use in slow memory takes as long as reading 8 MiB at half a GB/s, a latency long.
FAST_LINKS = emulated_machine(64 * MIB, promote=100 * GB, demote=100 * GB, slow_bw=100 * GB, slow_node=1)
NODE = replace(FAST_LINKS, tiers=(FAST_LINKS.fast, replace(FAST_LINKS.tiers[1], latency_ns=16_700_000)))


def executed(flow: Dataflow, rate: int) -> Run:
    """Three steps of `flow`'s plan as simulated, in which migrations went at `rate`."""
    assert flow.simulated is not None
    assert flow.profile is not None
    layers = np.concatenate([flow.simulated.layers[:0], *[_layers(flow.profile, step) for step in range(3)]])
    steps = np.repeat(flow.simulated.steps[:1], 3)
    steps["step"], steps["in_step"] = range(3), True
    took = 8 * MIB * 10**9 // rate
    rows = [
        (step, 0, 0, source, 1 - source, 8 * MIB, 8 * MIB, start, start + took, OUTCOMES.index("done"), 0, 0)
        for step in range(3)
        for source in (0, 1)
        for start in (step * 10**10, step * 10**10 + 10**9)
    ]
    return replace(
        flow.simulated, kind="executed", steps=steps, layers=layers, migrations=np.array(rows, MIGRATION_DTYPE)
    )


def _layers(profile: Profile, step: int) -> np.ndarray:
    rows = np.zeros(profile.n_layers, LAYER_DTYPE)
    rows["step"], rows["layer"], rows["duration_ns"] = step, range(profile.n_layers), profile.layer_ns
    return rows


def refined(machine: Machine, request: Request, rate: int) -> tuple[Dataflow, Dataflow, bool]:
    planning = Planning(request, machine, machine.fast.capacity_bytes)
    flow = planning.planned(Dataflow(profile=TURNS))
    return flow, *refined_by(planning, flow, executed(flow, rate))


def refined_by(planning: Planning, flow: Dataflow, run: Run) -> tuple[Dataflow, bool]:
    """The dataflow by what was executed, and whether it has another plan."""
    found = planning.refined(flow, run)
    assert found is not None
    other = found.pending.flow()
    assert other is not None
    return (other, True) if found.is_better(other) else (found.kept, False)


def rates(flow: Dataflow) -> set[int]:
    assert flow.machine is not None
    return {link.bandwidth_bytes_per_s for link in flow.machine.links}


def test_where_pages_migrate_too_slowly_for_the_plan_another_one_is_made() -> None:
    flow, better, switched = refined(NODE, Request(fast=8 * MIB), GB // 10)  # 84 ms for what a layer of 10 ms may need
    assert flow.plan is not None
    assert flow.plan.migrations
    assert switched
    assert rates(better) == {8 * MIB * 10**9 // (8 * MIB * 10**9 // (GB // 10))}
    assert better.plan is not None
    assert better.plan.migrated_bytes_per_step < flow.plan.migrated_bytes_per_step
    assert better.machine is not None
    assert all(link.measured for link in better.machine.links)


def test_what_the_user_or_a_calibration_said_stays() -> None:
    known = replace(NODE, links=tuple(replace(link, measured=True) for link in NODE.links))
    for machine, request in ((NODE, Request(fast=8 * MIB, machine=NODE)), (known, Request(fast=8 * MIB))):
        flow, better, switched = refined(machine, request, GB // 10)
        assert not switched
        assert rates(better) == rates(flow) == {100 * GB}


def test_links_as_fast_as_they_were_taken_to_be_change_no_plan() -> None:
    flow, better, switched = refined(NODE, Request(fast=8 * MIB), 100 * GB)
    assert not switched
    assert better.plan is not None
    assert flow.plan is not None
    assert better.plan.migrations == flow.plan.migrations


def test_a_step_that_cannot_be_planned_leaves_the_budget_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    planning = Planning(Request(fast="50%"), NODE, 64 * MIB)
    flow = planning.planned(Dataflow(profile=TURNS))
    small = make_profile([param("a", MIB, [1])], 8)

    def refuse(*_: object, **__: object) -> None:
        raise PlanError("no plan")

    with monkeypatch.context() as patch:
        patch.setattr("sentinel.planner.make_plan.plan", refuse)
        with pytest.raises(PlanError, match="no plan"):
            planning.planned(Dataflow(profile=small))
    assert not planning.outdated(flow, [flow])
    less = planning.planned(Dataflow(profile=small))
    more = planning.planned(Dataflow(profile=small), [flow])
    assert (less.budget, more.budget) == (Budget(MIB // 2), flow.budget)
    assert planning.outdated(less, [less, flow])


def test_a_budget_is_of_what_is_available_and_the_machine_stays_as_it_is() -> None:
    for fast, nbytes in ((None, 12 * MIB), (8 * MIB, 8 * MIB), ("100%", 12 * MIB)):
        planning = Planning(Request(fast=fast), NODE, 12 * MIB)
        planning.check_words()
        flow = planning.planned(Dataflow(profile=TURNS))
        assert flow.budget is not None
        assert (flow.machine, flow.budget.fast_bytes) == (NODE, nbytes)
        assert bool(flow.budget.capped) == (fast == "100%")
        assert flow.plan is not None
        assert flow.plan.capacity_bytes[0] == nbytes
        assert flow.plan.origin["machine"] == digest(NODE)
    with pytest.raises(UsageError, match=r"13\.00 MiB of fast memory are requested, but fast has 12\.00 MiB"):
        Planning(Request(fast=13 * MIB), NODE, 12 * MIB).check_words()


def test_an_emulated_link_that_this_host_cannot_keep_up_with_stays_as_it_was_asked_for() -> None:
    """A busy host would have every session plan again."""
    machine = replace(NODE, tiers=(NODE.fast, replace(NODE.tiers[1], kind="emulated", node=None)))
    planning = Planning(Request(fast=8 * MIB), machine, machine.fast.capacity_bytes)
    flow = planning.planned(Dataflow(profile=TURNS))
    run = replace(executed(flow, GB // 10), emulated=True)
    assert len(short_of(machine, run)) == 2
    assert rates(refined_by(planning, flow, run)[0]) == rates(flow)


def test_a_proof_has_what_links_carried_as_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence for each run would hide what else is to be read."""
    machine = replace(NODE, tiers=(NODE.fast, replace(NODE.tiers[1], kind="emulated", node=None)))
    flow = Planning(Request(fast=8 * MIB), machine, machine.fast.capacity_bytes).planned(Dataflow(profile=TURNS))
    run = replace(executed(flow, GB // 10), emulated=True)
    told = SimpleNamespace(headline={}, machine=machine, executed=run)
    over = SimpleNamespace(notes=("a note", *short_of(machine, run)), report=lambda *, bounded: told)
    monkeypatch.setattr("sentinel.session.current", lambda: over)
    found = trained_cell._told_by_session()
    assert found["notes"] == ["a note"]
    ends = sorted((each["source"], each["target"], each["kept_up"]) for each in found["links"])
    assert ends == [("fast", "slow", False), ("slow", "fast", False)]
    assert {each["asked_bytes_per_s"] for each in found["links"]} == {100 * GB}


def test_without_an_amount_the_processes_of_a_node_have_equal_parts_of_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planning = Planning(Request(), NODE, 12 * MIB)
    assert planning._budget(0).fast_bytes == 12 * MIB
    for name, value in (("RANK", "5"), ("WORLD_SIZE", "6"), ("LOCAL_RANK", "2"), ("LOCAL_WORLD_SIZE", "3")):
        monkeypatch.setenv(name, value)
    assert planning._budget(0).fast_bytes == 4 * MIB
    assert Planning(Request(fast=6 * MIB), NODE, 12 * MIB)._budget(0).fast_bytes == 6 * MIB  # each, as it was asked for
