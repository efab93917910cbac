"""The simulator's parts by themselves: who holds what as a step begins, the two movers, who serves an access."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from sentinel.core.errors import PlanError
from sentinel.simulator import loop
from sentinel.simulator.loop import play
from sentinel.simulator.movers import Movers
from sentinel.simulator.served import layer_extra_ns, loaded_ns, served_spans, tier_shares, touched_bytes
from sentinel.simulator.timeline import Job, Timeline, timeline
from tests.builders import GB, MIB, act, make_machine, make_profile, param, persistent_plan
from tests.unit.engine_builders import transient_plan

UP, DOWN = 0, 1


def line(*jobs: Job, held: tuple[int, int] = (0, 0), full_duplex: bool = True, n_layers: int = 2) -> Timeline:
    """A step of layers that take 100 ns each, in which nothing starts by itself; 10 bytes of fast memory."""
    none: list[tuple[int, ...]] = [()] * n_layers
    room = [[0] * n_layers for _ in range(2)]
    return Timeline(
        [100] * n_layers, list(jobs), none, none, room, room, [], list(held), [10, 1000], full_duplex, [0] * len(jobs)
    )


def test_a_promotion_waits_for_the_room_that_a_demotion_leaves() -> None:
    movers = Movers(line(Job(1, 0, 7, 30), Job(0, 1, 5, 20), held=(6, 7)))
    movers.submit(UP)
    movers.submit(DOWN)
    movers.advance(19)
    assert (movers.started_ns, movers.free_bytes) == ([-1, 0], [4, 988])  # in flight, it has room in both
    movers.advance(60)
    assert (movers.started_ns, movers.done_ns, movers.blocked) == ([20, 0], [50, 20], [True, False])
    assert movers.free_bytes == [2, 995]
    assert movers.least_free_bytes == [2, 988]
    assert not movers.waits_for(UP)


def test_movers_with_nothing_to_do_let_any_time_pass() -> None:
    movers = Movers(line())
    movers.advance(1 << 62)
    assert movers.now == 1 << 62
    assert movers.compute(1 << 61) == 1 << 61


def test_one_way_at_a_time_where_the_link_is_half_duplex() -> None:
    for full_duplex, done in ((True, [30, 20]), (False, [50, 20])):
        movers = Movers(line(Job(1, 0, 3, 30), Job(0, 1, 5, 20), held=(6, 3), full_duplex=full_duplex))
        movers.submit(UP)
        movers.submit(DOWN)
        movers.advance(100)
        assert movers.done_ns == done


def test_room_that_never_comes_is_a_broken_plan() -> None:
    movers = Movers(line(Job(1, 0, 7, 30), held=(6, 7)))
    movers.submit(UP)
    with pytest.raises(PlanError, match="layer 1 waits for room that never comes"):
        movers.step("layer 1")


def test_a_layer_waits_for_what_is_due_and_the_record_says_for_how_long() -> None:
    step = dataclasses.replace(
        line(Job(0, 1, 5, 20), Job(1, 0, 5, 130), held=(5, 0)), starts_at=[(0,), (1,)], due_before=[(1,), (0,)]
    )
    durations, record = play(step, 2)
    assert durations == [230, 230]  # 100 + 100, and 30 for what started in layer 1 and is due before layer 0
    assert record.layer_stall_ns == [30, 0, 30, 0]
    assert record.layer_start_ns == [0, 130, 230, 360]
    late = [(job, stop - start, late) for _, _, job, start, stop, late, _ in record.jobs]
    assert late == [(1, 130, True), (0, 20, False)] * 2


def test_what_is_held_while_a_layer_waits_is_in_its_most() -> None:
    """Layer 0 waits 50 ns for what comes back to fast memory; until then that holds room in both tiers."""
    step = dataclasses.replace(
        line(Job(0, 1, 5, 20), Job(1, 0, 5, 150), held=(5, 0), n_layers=3),
        starts_at=[(), (0,), (1,)],
        due_before=[(1,), (), (0,)],
    )
    _, record = play(step, 1)
    assert record.layer_stall_ns == [50, 0, 0]
    assert record.layer_held_bytes == [[5, 5], [5, 5], [5, 5]]
    assert record.layer_slow_bytes == [0, 5, 5]


def test_what_dies_as_a_layer_begins_is_in_its_most_only_if_the_layer_waits() -> None:
    for duration, stall, most in ((150, 50, [8, 5]), (90, 0, [5, 0])):
        step = dataclasses.replace(
            line(Job(0, 1, 5, 20), Job(1, 0, 5, duration), held=(5, 0), n_layers=3),
            starts_at=[(), (0,), (1,)],
            due_before=[(1,), (), (0,)],
            born_bytes=[[0, 0, 3], [0, 0, 0]],
            dead_bytes=[[3, 0, 0], [0, 0, 0]],
            held_bytes=[8, 0],
        )
        _, record = play(step, 1)
        assert (record.layer_stall_ns[0], record.layer_held_bytes[0]) == (stall, most)


def test_a_step_that_leaves_all_as_it_found_it_is_played_once_for_all_that_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = dataclasses.replace(
        line(Job(0, 1, 5, 20), Job(1, 0, 5, 130), held=(5, 0)), starts_at=[(0,), (1,)], due_before=[(1,), (0,)]
    )
    played: list[int] = []
    one_step = loop._one_step

    def counted(*given: Any) -> None:
        played.append(given[-1])
        one_step(*given)

    monkeypatch.setattr(loop, "_one_step", counted)
    durations, record = play(step, 5)
    assert len(played) == 2  # the first begins with nothing in flight, the second as all that follow
    assert durations == [230] * 5
    assert record.layer_start_ns == [230 * turn + at for turn in range(5) for at in (0, 130)]
    assert [job[0] for job in record.jobs] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_what_is_held_and_in_flight_as_a_step_begins() -> None:
    profile = make_profile([param("w", MIB, [1]), act("within", MIB, 1, 3), act("across", 2 * MIB, 3, 5)], 4)
    plan = transient_plan(profile, [1, 0, 0], [(2, 0, 1, 3, 5)], fast_bytes=4 * MIB)
    found = timeline(plan, make_machine(4 * MIB, demote=GB), np.full(4, 100.4))
    assert found.duration_ns == [100] * 4
    assert found.born_bytes == [[0, MIB, 0, 2 * MIB], [0] * 4]
    assert found.dead_bytes == [[0, 0, 0, MIB], [0, 2 * MIB, 0, 0]]
    assert found.held_bytes == [2 * MIB, MIB]  # `across` is still where it was born, and on its way
    assert (found.pending, found.submit_layer) == ([0], [3])
    assert found.jobs == [Job(0, 1, 2 * MIB, 2 * MIB)]  # 1 GB/s: a byte a ns


def test_a_block_in_flight_is_served_by_the_slower_of_its_two_tiers() -> None:
    profile = make_profile([param("w", MIB, [0, 1, 2, 3, 4, 5])], 6, layer_ns=1_000_000)
    plan = persistent_plan(profile, [0], [(0, 0, 1, 1, 2), (0, 1, 0, 3, 5)])
    spans = [tuple(row) for row in served_spans(plan).tolist()]
    slow = {layer % 6 for _, tier, start, stop in spans if tier for layer in range(start, stop)}
    assert slow == {1, 2, 3, 4}
    shares = tier_shares(plan, profile)
    assert shares.tolist() == [[1, 0, 0, 0, 0, 1], [0, 1, 1, 1, 1, 0]]
    machine = make_machine(fast_bw=100 * GB, slow_bw=10 * GB)
    extra = MIB * (1 / 10 - 1 / 100)
    assert layer_extra_ns(profile, machine, shares).tolist() == pytest.approx([0, extra, extra, extra, extra, 0])
    total, fast = touched_bytes(profile, shares)
    assert (total.tolist(), fast.tolist()) == ([MIB] * 6, [MIB, 0, 0, 0, 0, MIB])


def test_load_adds_to_latency_only_where_a_tier_declares_it() -> None:
    profile = make_profile([param("w", MIB, [0])], 2)
    plan = persistent_plan(profile, [1])
    machine, shares, times = make_machine(slow_bw=10 * GB), tier_shares(plan, profile), np.full(2, 2.0 * MIB / 10)
    assert loaded_ns(profile, machine, shares, times).tolist() == [0, 0]
    loaded = dataclasses.replace(machine.tiers[1], latency_ns=300, loaded_latency_a=0.5)
    machine = dataclasses.replace(machine, tiers=(machine.tiers[0], loaded))
    # Half of its bandwidth in layer 0: 300 ns * 0.5 * 0.5 / (1 - 0.5) for the one read.
    assert loaded_ns(profile, machine, shares, times).tolist() == pytest.approx([150, 0])
