"""The parts of a plan for training data: layouts, rooms, pages, units of reading, costs and qualities."""

from __future__ import annotations

import hashlib
import tracemalloc
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.core.errors import UsageError
from sentinel.samples import (
    ALONE,
    PLANS_VERSION,
    WHOLE,
    ArenaPages,
    Epoch,
    Feed,
    JoinedRanges,
    Layout,
    Order,
    Room,
    ShuffleQuality,
    SourceCosts,
    Staging,
    best_unit,
    epochs_ahead,
    plan,
    plan_world,
    shuffle_quality,
    simulate,
    unit_costs,
)
from sentinel.samples.exact import stage_exact
from sentinel.samples.steady_reads import READ_NS, STAGED_NS, steady_feed
from sentinel.samples.widest import widest
from tests.sample_layouts import even, layout_of, permutation


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"sample_nbytes": np.array([1, 2, 3], np.int32)}, "sample_nbytes is no column of int64"),
        ({"sample_offset": np.array([0, 0])}, "sample_offset has 2 rows, not 3"),
        ({"files": ("a", "b")}, "file_nbytes has 1 rows, not 2"),
        ({"chunk_samples": np.array([1, 1], np.int32)}, "chunk_samples do not add up"),
        ({"chunk_samples": np.array([3, 0], np.int32)}, "row 1 of chunk_samples holds no sample"),
        ({"chunk_file": np.array([0, 1], np.int32)}, "row 1 of chunk_file names no file"),
        ({"chunk_nbytes": np.array([10, 1 << 62])}, "row 1 of chunk_offset reaches beyond its file"),
        ({"sample_offset": np.array([3, -1, 3])}, "row 1 of sample_offset is negative"),
        ({"sample_nbytes": np.array([4, 0, 6])}, "row 1 of sample_nbytes is less than one byte"),
        ({"sample_nbytes": np.array([4, 5, 1 << 62])}, "row 2 of sample_offset reaches beyond its chunk"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_by_column_and_row(changed, says) -> None:
    layout = layout_of([2, 1], [4, 5, 6])
    with pytest.raises(UsageError, match=says):
        replace(layout, **changed)


def test_a_layout_without_samples_is_refused() -> None:
    none = np.zeros(0, np.int64)
    with pytest.raises(UsageError, match="there are no samples"):
        replace(
            even(1, 1),
            **dict.fromkeys(("chunk_offset", "chunk_nbytes", "sample_offset", "sample_nbytes"), none),
            **dict.fromkeys(("chunk_file", "chunk_samples"), none.astype(np.int32)),
        )


def test_the_digest_is_of_what_lies_where_and_not_of_when_it_was_changed() -> None:
    layout = layout_of([2, 1], [4, 5, 6])
    assert layout.digest == replace(layout, file_mtime_ns=np.array([7])).digest
    others = [
        layout_of([1, 2], [4, 5, 6]),
        layout_of([2, 1], [4, 6, 5]),
        layout_of([2, 1], [4, 5, 6], encoded=True),
        replace(layout, files=("b",)),
        replace(layout, description="rows"),
    ]
    assert len({layout.digest, *(other.digest for other in others)}) == 6


def test_a_cut_layout_has_the_same_bytes_for_each_sample_and_reads_no_more_than_its_chunks() -> None:
    layout = layout_of([5, 1, 4], [4, 5, 6, 7, 8, 9, 10, 11, 12, 13])
    cut = layout.cut(2)
    assert cut.chunk_samples.tolist() == [2, 2, 1, 1, 2, 2]

    def where(of):
        begin = of.chunk_offset[of.chunk_of] + of.sample_offset
        return begin.tolist(), (begin + of.sample_nbytes).tolist()

    assert where(cut) == where(layout)
    assert cut.chunk_nbytes.tolist() == [4 + 3 + 5, 6 + 3 + 7, 8, 9, 10 + 3 + 11, 12 + 3 + 13]
    assert layout.cut(9).chunk_samples.tolist() == [5, 1, 4]
    with pytest.raises(UsageError, match="cannot be read in parts"):
        replace(layout, encoded=True).cut(2)
    with pytest.raises(UsageError, match="cannot have 0 samples"):
        layout.cut(0)


def test_pages_suit_the_sizes() -> None:
    assert Room.of(even(3, 4, 100), 1000).page_bytes == 100
    mixed = layout_of([2, 2], [3000, 5000, 4000, 4400])
    room = Room.of(mixed, 9000)
    assert room.page_bytes == 64
    assert room.pages(mixed).tolist() == [47, 79, 63, 69]
    with pytest.raises(UsageError, match=r"give at least 8\.33 KiB"):
        Room.of(mixed, 8447)
    with pytest.raises(UsageError, match="a room of 0 bytes"):
        Room(0, 16)


def test_pages_have_one_owner_each() -> None:
    pages = ArenaPages(5)
    first, second = pages.take(2), pages.take(3)
    assert sorted([*first.tolist(), *second.tolist()]) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="1 pages of the arena are asked for, 0 are free"):
        pages.take(1)
    pages.give_back(second)
    assert pages.take(3).tolist() == second.tolist()
    pages.give_back(first)
    with pytest.raises(ValueError, match="4 pages come back to the arena, 3 are out"):
        pages.give_back(np.arange(4, dtype=np.int32))


@pytest.mark.parametrize("wanted", [0, 1, 2, 63, 64, 1000, 98765, 100000])
def test_the_widest_that_fits_is_found_within_a_hundredth(wanted) -> None:
    asked = []

    def peak(width: int) -> int:
        asked.append(width)
        return 20 + 7 * width

    found = widest(peak, 20 + 7 * wanted, 5000, 100000)
    assert found <= wanted <= found * 1.03 + 1
    assert len(asked) < 40


def test_costs_add_up_and_impossible_ones_are_refused() -> None:
    assert SourceCosts(2e6, 1e9, 4).ns(10, 5000) == 10 * 2e6 / 4 + 5000
    for wrong in ((-1, 1e9, 1), (0, 0, 1), (0, 1e9, 0)):
        with pytest.raises(UsageError, match="in flight"):
            SourceCosts(*wrong)


def test_where_latency_counts_chunks_are_read_whole_and_where_bandwidth_does_in_parts() -> None:
    layout, room = even(64, 32, 1000), 64 * 32 * 1000 // 5
    assert best_unit(layout, room, SourceCosts(5e6, 1e9)) == WHOLE
    assert best_unit(layout, room, SourceCosts(10, 1e9)) == 1
    assert set(unit_costs(layout, room, SourceCosts(10, 1e9))) == {1, 2, 4, 8, 16, WHOLE}
    assert set(unit_costs(replace(layout, encoded=True), room, SourceCosts(10, 1e9))) == {WHOLE}
    with pytest.raises(UsageError, match="too little for any unit"):
        best_unit(layout, 10, SourceCosts(10, 1e9))


def joined_by_hand(begin: list[int], nbytes: list[int], gap_bytes: int) -> list[tuple[int, int]]:
    """Ranges (begin, end) by marking each byte that is needed, and gaps that are short enough."""
    wanted = np.zeros(max((b + n for b, n in zip(begin, nbytes, strict=True)), default=0), np.bool_)
    for at, length in zip(begin, nbytes, strict=True):
        wanted[at : at + length] = True
    found: list[tuple[int, int]] = []
    for at in np.flatnonzero(wanted).tolist():
        if found and at - found[-1][1] <= gap_bytes:
            found[-1] = found[-1][0], at + 1
        else:
            found.append((at, at + 1))
    return found


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(1, 9)), max_size=12),
    st.integers(0, 12),
)
def test_ranges_are_those_of_a_slow_count_of_bytes(samples: list[tuple[int, int, int]], gap_bytes: int) -> None:
    read, begin, nbytes = (
        (np.array(column, np.int64) for column in zip(*samples, strict=True))
        if samples
        else [np.zeros(0, np.int64)] * 3
    )
    ranges = JoinedRanges.between(read, begin, nbytes, gap_bytes)
    expected = []
    for number in range(3):
        own = read == number
        expected += joined_by_hand(begin[own].tolist(), nbytes[own].tolist(), gap_bytes)
    told = list(zip(ranges.begin.tolist(), (ranges.begin + ranges.nbytes).tolist(), strict=True))
    assert told == expected
    assert (ranges.begin[ranges.of] <= begin).all()
    assert (begin + nbytes <= (ranges.begin + ranges.nbytes)[ranges.of]).all()


def test_gaps_are_read_where_another_read_costs_more() -> None:
    """Of the read of a whole chunk, of parts of it, and of each sample by itself, what costs least."""
    layout, nbytes = even(64, 32, 1000), 64 * 32 * 1000 // 5
    room, orders = Room.of(layout, nbytes), [permutation(layout.n_samples, seed) for seed in range(3)]
    first = plan(layout, Order(), room, Epoch(orders[0], orders[1]))
    staging = plan(layout, Order(), room, Epoch(orders[1], orders[2]), first)
    whole = simulate(layout, staging)
    alone = simulate(layout, staging, gap_bytes=-1)
    assert whole.source_ranges == whole.source_reads < alone.source_ranges
    assert alone.source_bytes <= layout.nbytes < whole.source_bytes
    some = simulate(layout, staging, gap_bytes=2000)
    assert whole.source_ranges < some.source_ranges < alone.source_ranges
    assert alone.source_bytes < some.source_bytes < whole.source_bytes
    for costs in (SourceCosts(0, 1e9), SourceCosts(1e3, 1e9), SourceCosts(2e3, 1e9), SourceCosts(1e6, float("inf"))):
        least = simulate(layout, staging, costs, costs.gap_bytes)
        for gap_bytes in (None, -1, 500, 1500, 2500, 10_000):
            assert least.wait_ns <= simulate(layout, staging, costs, gap_bytes).wait_ns
        assert least.hits == whole.hits
        assert least.source_reads == whole.source_reads


class Swept:
    """A data set, a room of a share of it, and what is read of its second epoch in each unit, which no cost changes."""

    def __init__(self, share: float) -> None:
        self.layout = layout_of([256] * 256, 20_000 + np.random.default_rng(2).integers(0, 20_000, 256 * 256))
        self.room_bytes = int(self.layout.nbytes * share)
        self.orders = [permutation(self.layout.n_samples, seed) for seed in range(5, 8)]
        self.epochs = {unit: self.second(unit) for unit in (1, 2, 4, 8, 16, 32, 64, 128, WHOLE)}
        self._stagings: dict[tuple[object, ...], Staging] = {}

    def second(self, unit: int) -> tuple[Layout, Staging]:
        """Of chunks of so many samples."""
        cut = self.layout.cut(unit) if unit else self.layout
        there = Room.of(cut, self.room_bytes)
        first = plan(cut, Order(), there, Epoch(self.orders[0], self.orders[1]))
        return cut, plan(cut, Order(), there, Epoch(self.orders[1], self.orders[2]), first)

    def staged(
        self, layout: Layout, room: Room, order: np.ndarray, following: list[np.ndarray], before: Staging | None
    ) -> Staging:
        """As `stage_exact`, but once for each unit and epoch that the choice looks at."""
        asked = (layout.n_chunks, room, order.tobytes(), before is None)
        if asked not in self._stagings:
            self._stagings[asked] = stage_exact(layout, room, order, following, before)
        return self._stagings[asked]


@pytest.fixture(scope="module", params=[0.1, 0.3])
def swept(request: pytest.FixtureRequest) -> Swept:
    return Swept(request.param)


@pytest.mark.parametrize(
    "costs",
    [
        SourceCosts(2e6, 1e9),
        SourceCosts(2e6, 1e9, 16),
        SourceCosts(5e5, 1e9, 4),
        SourceCosts(100e3, 5e8),
        SourceCosts(100e3, 5e8, 16),
        SourceCosts(3e3, 5e9),
    ],
)
def test_the_unit_that_is_chosen_is_near_the_best_of_a_sweep(
    swept: Swept, costs: SourceCosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all of a data set, four times what the choice looks at, with other permutations."""
    monkeypatch.setattr("sentinel.samples.steady_reads.stage_exact", swept.staged)
    layout, room = swept.layout, swept.room_bytes
    # of a chunk what stays is read, as "auto" reads
    feeds = {unit: simulate(cut, second, costs, costs.gap_bytes) for unit, (cut, second) in swept.epochs.items()}
    sweep: dict[int, float] = {unit: feed.wait_ns for unit, feed in feeds.items()}
    assert sweep[best_unit(layout, room, costs)] <= 1.1 * min(sweep.values())
    for unit, feed in feeds.items():
        sweep[unit] += STAGED_NS * layout.n_samples + READ_NS * feed.source_reads
    sweep[ALONE] = costs.ns(layout.n_samples, layout.nbytes)
    assert sweep[best_unit(layout, room, costs, costs)] <= 1.1 * min(sweep.values())


def test_the_quality_of_a_shuffle_is_counted() -> None:
    layout = even(4, 4)
    assert shuffle_quality(layout, np.arange(16), 4) == ShuffleQuality(1.0, 3 / 16)
    mixed = np.arange(16).reshape(4, 4).T.ravel()
    assert shuffle_quality(layout, mixed, 4) == ShuffleQuality(4.0, 12 / 16)
    assert shuffle_quality(layout, mixed[:6], 4).chunks_per_batch == (4 + 2) / 2


def test_a_feed_tells_its_counts_and_reads_over_chunks() -> None:
    feed = Feed(n_chunks=8, samples=16, hits=4, source_reads=10, direct_reads=2, peak_bytes=7)
    assert feed.reads_per_chunk == 1.5
    assert (feed.headline["samples"], feed.headline["hits"], feed.headline["peak_bytes"]) == (16, 4, 7)
    assert feed.headline["reads_per_chunk"] == 1.5
    assert Feed().reads_per_chunk == 0


def test_what_cannot_be_planned_is_refused() -> None:
    layout = even(4, 4)
    room = Room.of(layout, 80)
    with pytest.raises(UsageError, match="a permutation of 15 for a data set of 16"):
        plan(layout, Order(), room, Epoch(np.arange(15)))
    with pytest.raises(UsageError, match="less than the samples of one chunk"):
        plan(layout, Order(), Room(30, 10), Epoch(np.arange(16)))
    with pytest.raises(UsageError, match="there is no order 'random'"):
        Order("random")
    with pytest.raises(UsageError, match="there is no rank 2 of 2"):
        Order(world=2, rank=2)
    with pytest.raises(UsageError, match="-1 samples were delivered"):
        Order().of_rank(np.arange(16), -1)


@pytest.mark.parametrize(
    ("kind", "share", "first", "steady"),
    [("exact", 0.2, 3.5, 2.45), ("exact", 0.5, 2.05, 1.05), ("windowed", 0.2, 1, 1)],
)
def test_few_reads_a_chunk_are_enough(kind, share, first, steady) -> None:
    """128 chunks of 64; with more chunks there are fewer reads, since the room is more evenly used
    (docs/data-orders.md)."""
    layout = even(128, 64)
    room = Room.of(layout, int(layout.nbytes * share))
    permutations = [permutation(layout.n_samples, seed) for seed in range(6)]
    before, told = None, []
    for now, following in pairwise(permutations):
        before = plan(layout, Order(kind), room, Epoch(now, following), before)
        feed = simulate(layout, before, SourceCosts(1e6, 1e9))
        assert feed.direct_reads == 0
        assert feed.wait_ns == round(feed.source_reads * 1e6 + feed.source_bytes)
        told.append(feed.reads_per_chunk)
    assert told[0] <= first
    assert max(told[1:]) <= steady


def test_redirect_reads_a_chunk_as_often_as_published_simulations_say() -> None:
    layout = even(320, 64)
    room = Room.of(layout, layout.nbytes // 5)
    feed = simulate(layout, plan(layout, Order("redirect"), room, Epoch(permutation(layout.n_samples, 1))))
    assert feed.reads_per_chunk == pytest.approx(7.6, rel=0.05)


def test_ranks_with_much_room_look_several_epochs_ahead() -> None:
    """Four ranks, each with room for what it delivers in 1.2 epochs, read a chunk less than once an epoch each."""
    layout = even(128, 64)
    room, order = Room.of(layout, int(layout.nbytes * 0.3)), Order(world=4, rank=1)
    ahead = epochs_ahead(layout, order, room)
    assert ahead == 3
    assert epochs_ahead(layout, Order(), room) == 1
    permutations = [permutation(layout.n_samples, seed) for seed in range(9)]
    reads, before = [], None
    for epoch in range(5):
        now, following, *later = permutations[epoch : epoch + ahead + 1]
        before = plan(layout, order, room, Epoch(now, following, later=tuple(later)), before)
        reads.append(simulate(layout, before).reads_per_chunk)
    assert max(reads[1:]) < 0.6


def test_what_a_rank_plans_in_hardly_grows_with_the_number_of_ranks() -> None:
    """It looks 128 epochs ahead; all samples of each take 8 bytes a sample."""
    layout = even(512, 64)
    room, order = Room.of(layout, layout.nbytes), Order(world=64, rank=1)
    n, ahead = layout.n_samples, epochs_ahead(layout, order, room)
    assert ahead == 128
    tracemalloc.start()
    try:
        later = (permutation(n, seed) for seed in range(2, 1 + ahead))
        found = plan(layout, order, room, Epoch(permutation(n, 0), permutation(n, 1), later=later))
        assert tracemalloc.get_traced_memory()[1] < 300 * n
    finally:
        tracemalloc.stop()
    together = tuple(permutation(n, seed) for seed in range(2, 1 + ahead))
    same = plan(layout, order, room, Epoch(permutation(n, 0), permutation(n, 1), later=together))
    assert np.array_equal(found.stay_at, same.stay_at)
    assert np.array_equal(found.stay_until, same.stay_until)


@pytest.mark.parametrize(
    ("kind", "world"), [("exact", 1), ("exact", 3), ("exact", 64), ("windowed", 2), ("redirect", 1)]
)
def test_a_second_epoch_is_predicted_as_whole_permutations_plan_it_in_little_memory(kind: str, world: int) -> None:
    """With 64 ranks it looks 128 epochs ahead; all samples of each take 8 bytes a sample."""
    layout = even(512, 64)
    order = Order(kind, world=world, rank=world - 1)
    room_bytes = layout.nbytes if world == 64 else layout.nbytes // 4
    tracemalloc.start()
    try:
        found = steady_feed(layout, room_bytes, order)
        assert tracemalloc.get_traced_memory()[1] < 600 * layout.n_samples
    finally:
        tracemalloc.stop()
    chance, room = np.random.Generator(np.random.PCG64(0)), Room.of(layout, room_bytes)
    orders = [chance.permutation(layout.n_samples) for _ in range(2 + epochs_ahead(layout, order, room))]
    planned = plan(layout, order, room, Epoch(orders[0], orders[1], later=orders[2:-1]))
    if kind == "exact":
        planned = plan(layout, order, room, Epoch(orders[1], orders[2], later=orders[3:]), planned)
    assert found == simulate(layout, planned)


def test_plans_of_all_ranks_are_those_of_their_version() -> None:
    """Ranks with peers plan alike, or do not find each other's samples: whoever changes what is planned raises the
    version, and writes the digest again."""
    layout = layout_of([16] * 40, 1000 + np.arange(640) % 7)
    room, order = Room.of(layout, int(layout.nbytes * 0.3)), Order(world=3)
    orders = [permutation(640, seed) for seed in range(3)]
    first = plan_world(layout, order, room, 0, Epoch(orders[0], orders[1]), None)
    both = first, plan_world(layout, order, room, 1, Epoch(orders[1], orders[2]), first)
    digest = hashlib.sha256()
    for planned in both:
        for rank in range(3):
            share = planned.share(layout, rank)
            for column in (share.order, share.direct, share.reads, share.reader, share.name, share.first, share.last):
                digest.update(np.ascontiguousarray(column).tobytes())
    assert (PLANS_VERSION, digest.hexdigest()[:16]) == (1, "ba6fd963f30d4349")


def test_reads_of_threads_cost_at_least_what_the_interpreter_takes() -> None:
    measured = SourceCosts(80e3, 1e9, in_flight=4, shared_ns=90e3)
    assert measured.of_reader(4).read_ns == measured.of_reader(1).read_ns == 90e3
    assert measured.of_workers(2).read_ns == 40e3
    assert measured.of_workers(0).read_ns == 80e3
    assert measured.gap_bytes == 90_000
    slow = SourceCosts(2e6, 1e9, in_flight=16, shared_ns=90e3)
    assert slow.of_reader(8).ns(4, 1000) == 4 * 250e3 + 1000
