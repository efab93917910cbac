"""Stagings of small data sets: each is carried out step by step, and those of exact order and redirect are compared
with slow oracles that follow the policy one sample at a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.core.errors import UsageError
from sentinel.samples import DIRECT, KINDS, ArenaPages, Begun, Epoch, Layout, Order, Room, plan, simulate
from sentinel.samples.chunk_slice import ChunkSlice
from sentinel.samples.exact import stage_exact
from sentinel.samples.redirect import stage_redirect
from sentinel.samples.windowed import stage_windowed
from tests.sample_layouts import Reader, even, layouts, permutation


@st.composite
def rooms(draw, layout: Layout) -> Room:
    """From what a chunk takes to more than all samples take."""
    page = draw(st.integers(1, 16))
    pages = -(-layout.sample_nbytes // page)
    least = int(np.add.reduceat(pages, layout.first_sample[:-1]).max())
    n_pages = draw(st.integers(least, int(pages.sum()) + 3))
    return Room(n_pages * page + draw(st.integers(0, page - 1)), page, draw(st.sampled_from([0, 0, 1, 3])))


@st.composite
def cases(draw):
    """A data set, a room and the permutations of five epochs."""
    layout = draw(layouts())
    seed = draw(st.integers(0, 1000))
    return layout, draw(rooms(layout)), [permutation(layout.n_samples, seed + epoch) for epoch in range(5)]


def stagings(layout, order, room, permutations, later=0):
    """One an epoch, each going on from the one before; the last one looks at no next epoch. `later`: how many epochs
    after the next one are looked at."""
    found, before = [], None
    for epoch, now in enumerate(permutations):
        following, *rest = [*permutations[epoch + 1 : epoch + 2 + later], None]
        known = tuple(permutation for permutation in rest if permutation is not None)
        before = plan(layout, order, room, Epoch(now, following, later=known), before)
        found.append(before)
    return found


@given(cases(), st.sampled_from(KINDS), st.integers(1, 3), st.booleans(), st.integers(0, 2))
@settings(max_examples=150, deadline=None)
def test_a_staging_can_be_carried_out_within_its_room(case, kind, world, drop_last, later) -> None:
    layout, room, permutations = case
    for rank in range(world):
        reader = Reader(ArenaPages(room.n_pages))
        try:
            found = stagings(layout, Order(kind, 0, world, rank, drop_last), room, permutations, later)
        except UsageError as error:
            assert "too little for" in str(error)
            return
        for staging in found:
            reader.peak_pages = sum(map(len, reader.held.values()))
            reader.carry_out(layout, staging)
            feed = simulate(layout, staging)
            assert feed.samples == staging.n_positions
            assert feed.hits + feed.source_reads + feed.direct_reads == feed.samples
            assert feed.direct_reads == (staging.stay_at == DIRECT).sum()
            assert feed.peak_bytes == reader.peak_pages * room.page_bytes <= room.nbytes
            assert (np.diff(staging.read_due) > 0).all()
        assert reader.pages.free == room.n_pages


@given(cases(), st.sampled_from(KINDS), st.integers(1, 4), st.booleans())
@settings(max_examples=100, deadline=None)
def test_each_sample_is_delivered_once_an_epoch_over_all_ranks(case, kind, world, drop_last) -> None:
    layout, room, permutations = case
    n = layout.n_samples
    told: list[int] = []
    for rank in range(world):
        order = Order(kind, 0, world, rank, drop_last)
        try:
            staging = plan(layout, order, room, Epoch(permutations[0]))
        except UsageError as error:
            assert "too little for" in str(error)
            return
        assert staging.n_positions == order.per_rank(n)
        told += staging.order.tolist()
    times = Counter(told)
    if drop_last:
        assert set(times.values()) <= {1}
        assert n - len(times) == n % world
    elif n >= world:
        assert set(times) == set(range(n))
        assert sum(times.values()) - n == -n % world
        assert max(times.values()) <= 2


@given(cases(), st.sampled_from(KINDS), st.integers(1, 3), st.integers(1, 3), st.data())
@settings(max_examples=75, deadline=None)
def test_an_epoch_goes_on_with_any_number_of_ranks_and_any_room(case, kind, world, later, data) -> None:
    layout, room, permutations = case
    try:
        begun = [plan(layout, Order(kind, 0, world, rank), room, Epoch(permutations[0])).order for rank in range(world)]
    except UsageError as error:
        assert "too little for" in str(error)
        return
    whole = np.stack(begun, axis=1).ravel()
    delivered = data.draw(st.integers(0, len(begun[0]))) * world
    other = data.draw(rooms(layout))
    epoch = Epoch(permutations[0], permutations[1], Begun(delivered, world, room))
    rests = []
    for rank in range(later):
        staging = plan(layout, Order(kind, 0, later, rank), other, epoch)
        Reader(ArenaPages(other.n_pages)).carry_out(layout, staging)
        rests.append(staging.order)
    rest = np.stack(rests, axis=1).ravel()
    expected = whole[delivered : max(layout.n_samples, delivered)] if kind == "exact" else whole[delivered:]
    assert rest[: len(expected)].tolist() == expected.tolist()
    assert len(rest) - len(expected) < later


@given(cases(), st.sampled_from(KINDS))
@settings(max_examples=50, deadline=None)
def test_the_same_arguments_give_the_same_staging_and_the_epoch_before_changes_no_order(case, kind) -> None:
    layout, room, permutations = case
    try:
        first, again = (stagings(layout, Order(kind), room, permutations) for _ in range(2))
    except UsageError:
        return
    for one, other in zip(first, again, strict=True):
        for name in ("order", "read_chunk", "read_due", "stay_sample", "stay_read", "stay_until", "stay_at"):
            assert getattr(one, name).tolist() == getattr(other, name).tolist()
    alone = plan(layout, Order(kind), room, Epoch(permutations[2]))
    assert alone.order.tolist() == first[2].order.tolist()


@given(cases())
@settings(max_examples=100, deadline=None)
def test_exact_order_reads_what_its_policy_says(case) -> None:
    """Over all epochs: a miss reads its chunk and begins a window; what is used in it stays, and nothing else."""
    layout, room, permutations = case
    n = layout.n_samples
    stop = np.zeros(layout.n_chunks, np.int64)
    staging = None
    for epoch in range(4):
        staging = stage_exact(layout, room, permutations[epoch], [permutations[epoch + 1]], staging)
        assert staging.windows is not None
        if (staging.stay_at == DIRECT).any():
            return
        known = np.concatenate([permutations[epoch], permutations[epoch + 1]])
        wanted = set()
        for chunk in range(layout.n_chunks):
            uses = [time for time, sample in enumerate(known.tolist()) if layout.chunk_of[sample] == chunk]
            reads = np.flatnonzero(staging.read_chunk == chunk).tolist()
            ends = [*staging.read_due[reads].tolist(), int(staging.windows.stop[chunk]) + n]
            misses = [time for time in uses if stop[chunk] <= time < n]
            assert ends[:-1] == misses[:1] + [end for end in ends[1:-1] if end in misses], "only a miss reads a chunk"
            for read, begin, end in zip(reads, ends, ends[1:], strict=False):
                assert end > begin
                wanted |= {(read, int(known[time])) for time in uses if begin <= time < end}
        stop = staging.windows.stop
        brought = staging.stay_read >= 0
        stays = zip(staging.stay_read[brought].tolist(), staging.stay_sample[brought].tolist(), strict=True)
        assert sorted(stays) == sorted(wanted)


def test_windows_end_where_a_read_and_its_memory_cost_least_for_each_position() -> None:
    """In a room that is never full, where no price is raised: each end of a window beside all others that it could
    have."""
    layout = even(40, 16)
    room = Room.of(layout, layout.nbytes // 4)
    orders = [permutation(layout.n_samples, seed) for seed in range(4)]
    first = stage_exact(layout, room, orders[0], [orders[1]], None)
    assert first.windows is not None
    dear = replace(first, windows=replace(first.windows, price=first.windows.price * 2))
    staging = stage_exact(layout, room, orders[1], [orders[2]], dear)
    assert staging.windows is not None
    assert staging.windows.price < dear.windows.price, "it fell, for all fitted"
    known = np.concatenate(orders[1:3])
    of_chunk = layout.chunk_of[known]
    for chunk in range(layout.n_chunks):
        uses = np.flatnonzero(of_chunk == chunk).tolist()
        begins = staging.read_due[staging.read_chunk == chunk].tolist()
        ends = [*begins[1:], int(staging.windows.stop[chunk]) + layout.n_samples]
        for begin, end in zip(begins, ends, strict=True):
            costs, area, seen = {}, 0, {}
            inside = [time for time in uses if time >= begin]
            for time, miss in pairwise([*inside, len(known) + len(known) // (len(uses) + 1)]):
                area += time + 1 - (seen[known[time]] + 1 if known[time] in seen else begin)
                seen[known[time]] = time
                if time < begin + layout.n_samples:
                    costs[min(miss, len(known))] = (1 + staging.windows.price * area) / (miss - begin)
            assert costs[end] <= 1.02 * min(costs.values()), "the price falls by less than 2 % in an epoch"


@given(
    st.one_of(layouts(), st.builds(even, st.integers(1, 12), st.integers(1, 8))),
    st.integers(0, 1000),
    st.integers(1, 5),
)
@settings(max_examples=100, deadline=None)
def test_redirect_follows_its_policy(layout, seed, group) -> None:
    pages = int(layout.sample_nbytes.sum())
    room = Room(max(-(-pages // group), int(np.add.reduceat(layout.sample_nbytes, layout.first_sample[:-1]).max())), 1)
    order = permutation(layout.n_samples, seed)
    chunks = ChunkSlice.of(layout, Order("redirect"), order).chunk.tolist()
    least = -(-(100 * pages - 15 * room.n_pages) // (100 * room.n_pages))  # 15 % of a chunk is let off
    for n in range(max(least, 1), len(chunks) + 1):
        *expected, peak = _redirect(layout, chunks, order.tolist(), n)
        if peak <= room.n_pages:
            staging = stage_redirect(layout, room, Order("redirect"), order)
            assert [staging.order.tolist(), staging.read_chunk.tolist(), staging.read_due.tolist()] == expected
            return
    with pytest.raises(UsageError, match="too little for redirect"):
        stage_redirect(layout, room, Order("redirect"), order)


def _redirect(layout, chunks, requests, group):
    """(samples delivered, chunks read, positions of the reads, most bytes in memory), one request at a time."""
    run_of = {chunk: run for run, chunk in enumerate(chunks)}
    taken: set[tuple[int, int]] = set()
    places: dict[tuple[int, int], int] = {}
    delivered, reads, due, peak = [], [], [], 0

    def rest(run: int) -> list[int]:
        return [place for place in range(layout.chunk_samples[chunks[run]]) if (run, place) not in taken]

    for position, sample in enumerate(requests):
        chunk = int(layout.chunk_of[sample])
        place, of = sample - int(layout.first_sample[chunk]), run_of[chunk] // group
        if (of, place) not in places:
            best = None
            for run in range(of * group, min((of + 1) * group, len(chunks))):
                if place not in rest(run):
                    continue
                fills = [p for p in rest(run) if (of, p) not in places]
                rank = (len(fills) / len(rest(run)), len(fills), -run)
                if best is None or rank > best[0]:
                    best = (rank, run, fills)
            assert best is not None
            for p in best[2]:
                places[of, p] = best[1]
                taken.add((best[1], p))
            reads.append(chunks[best[1]])
            due.append(position)
        lying = [int(layout.first_sample[chunks[run]]) + p for (_, p), run in places.items()]
        peak = max(peak, int(layout.sample_nbytes[lying].sum()))
        run = places.pop((of, place))
        delivered.append(int(layout.first_sample[chunks[run]]) + place)
    return delivered, reads, due, peak


@given(layouts(), st.integers(0, 1000), st.data())
@settings(max_examples=50, deadline=None)
def test_windowed_order_reads_each_chunk_once(layout, seed, data) -> None:
    try:
        staging = stage_windowed(
            layout, data.draw(rooms(layout)), Order("windowed"), permutation(layout.n_samples, seed)
        )
    except UsageError as error:
        assert "too little for windowed when reading" in str(error)
        return
    assert sorted(staging.read_chunk.tolist()) == list(range(layout.n_chunks))


@pytest.mark.parametrize("kind", KINDS)
def test_with_room_for_all_each_chunk_is_read_once_and_in_exact_order_never_again(kind) -> None:
    layout = even(20, 8)
    room = Room.of(layout, layout.nbytes)
    permutations = [permutation(160, seed) for seed in range(4)]
    reads = [len(staging.read_due) for staging in stagings(layout, Order(kind), room, permutations)]
    assert reads == ([20, 0, 0, 0] if kind == "exact" else [20, 20, 20, 20])
