"""One plan of all ranks: torch's order for each, every sample taken once from where it lies, few reads."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from sentinel.samples import Begun, Epoch, Order, Room, WorldPlan, plan_world
from sentinel.samples.world_plan import readers
from tests.sample_layouts import even, layout_of, permutation


def epochs(layout, order: Order, room: Room, count: int) -> list[WorldPlan]:
    """Plans of epochs that follow one another."""
    found: list[WorldPlan] = []
    for number in range(count):
        epoch = Epoch(permutation(layout.n_samples, number), permutation(layout.n_samples, number + 1))
        found.append(plan_world(layout, order, room, number, epoch, found[-1] if found else None))
    return found


@pytest.mark.parametrize("drop_last", [False, True])
def test_each_rank_has_torchs_order_and_finds_what_another_one_put(drop_last: bool) -> None:
    sizes = np.random.default_rng(0).integers(1, 40, 301)
    layout, world = layout_of([7] * 43, sizes), 3
    room = Room.of(layout, layout.nbytes // 2, 8)
    held: set[bytes] = set()
    for plan in epochs(layout, Order(world=world, drop_last=drop_last), room, 4):
        staging = plan.staging
        put = {
            read: {row.tobytes() for row in plan.names[staging.stay_read == read]}
            for read in range(len(staging.read_chunk))
        }
        due = dict(zip(staging.read_due.tolist(), range(len(staging.read_chunk)), strict=True))
        shares = []
        for rank in range(world):
            order = Order(world=world, rank=rank, drop_last=drop_last)
            share = plan.share(layout, rank)
            expected = order.of_rank(permutation(layout.n_samples, plan.epoch))
            assert np.array_equal(share.order, expected)
            assert np.array_equal(share.reader, plan.reader[layout.chunk_of[expected]])
            assert np.array_equal(plan.reader[staging.read_chunk[share.reads]], np.full(len(share.reads), rank))
            shares.append(share)
        assert sum(len(share.reads) for share in shares) == len(staging.read_chunk)
        for position in range(staging.n_positions):
            if position in due:
                held |= put[due[position]]
            share, at = shares[position % world], position // world
            assert bool(share.first[at]) == (position in due)
            if share.direct[at]:
                continue
            assert share.name["sample"][at] == share.order[at]
            assert share.name[at].tobytes() in held, "it was put before, and nobody has deleted it"
            if share.last[at]:
                held.remove(share.name[at].tobytes())
        assert held == {name.tobytes() for name in plan.names[staging.kept]}, "only what the next epoch uses is left"


def test_three_ranks_with_a_fifth_each_read_a_chunk_less_than_once() -> None:
    layout = even(192, 64)
    room = Room.of(layout, layout.nbytes * 3 // 5)
    plan = epochs(layout, Order(world=3), room, 3)[-1]
    assert len(plan.staging.read_chunk) / layout.n_chunks < 0.9


def test_samples_that_do_not_divide_take_no_more_reads() -> None:
    """The last rank's order ends with samples of its begin: windows are as long as in an even split."""
    even_split, padded = even(120, 64), layout_of([64] * 119 + [63], [10] * (120 * 64 - 1))
    reads = []
    for layout in (even_split, padded):
        plan = epochs(layout, Order(world=3), Room.of(layout, layout.nbytes * 3 // 5), 3)[-1]
        reads.append(len(plan.staging.read_chunk))
    assert reads[1] < 1.1 * reads[0]


def test_an_epoch_goes_on_with_other_ranks() -> None:
    layout = even(20, 8)
    room, order = Room.of(layout, layout.nbytes // 2), Order(world=2)
    epoch = Epoch(permutation(160, 3), permutation(160, 4), Begun(40, 4, room))
    plan = plan_world(layout, order, room, 3, epoch)
    assert np.array_equal(plan.staging.order, permutation(160, 3)[40:])


def test_chunks_are_divided_evenly_and_stay_with_their_rank_where_others_come() -> None:
    three, four = readers(30_000, 3), readers(30_000, 4)
    assert np.abs(np.bincount(three) / 10_000 - 1).max() < 0.03
    moved = three != four
    assert (four[moved] == 3).all()
    assert 0.23 < moved.mean() < 0.27


def test_readers_are_those_of_before_and_found_in_a_few_numbers_a_chunk() -> None:
    assert readers(24, 5).tolist() == [0, 4, 4, 1, 1, 0, 2, 4, 2, 3, 4, 0, 2, 0, 2, 1, 2, 2, 3, 1, 4, 2, 0, 1]
    tracemalloc.start()
    try:
        readers(10_000, 200)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 100 * 10_000, "whatever the number of ranks"


def test_who_reads_a_chunk_is_not_worked_out_again() -> None:
    layout = even(20, 8)
    first, second = epochs(layout, Order(world=2), Room.of(layout, layout.nbytes // 2), 2)
    assert second.reader is first.reader


def test_what_a_rank_may_delete_is_what_it_brought_and_nobody_keeps() -> None:
    layout, world = even(20, 8), 3
    for plan in epochs(layout, Order(world=world), Room.of(layout, layout.nbytes // 2), 3):
        over = [plan.not_kept(layout, rank) for rank in range(world)]
        kept = {name.tobytes() for name in plan.names[plan.staging.kept]}
        assert {name.tobytes() for names in over for name in names} == {n.tobytes() for n in plan.names} - kept
        for rank, names in enumerate(over):
            assert (plan.reader[layout.chunk_of[names["sample"].astype(np.int64)]] == rank).all()
