"""Samples and OrderSampler in a DataLoader of one's own deliver what the loader does, from the same memory."""

from __future__ import annotations

import os
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from torch.utils.data import BatchSampler, DataLoader, Dataset  # noqa: E402

import sentinel.data  # noqa: E402
from sentinel.core.errors import FormatError, UsageError  # noqa: E402
from sentinel.data import Epoch, Order, OrderSampler, Room, Samples  # noqa: E402
from sentinel.data.data_index import open_data  # noqa: E402
from sentinel.data.feeding import EpochOrder, FileFeeding, UnstagedFeeding, permutation  # noqa: E402
from sentinel.data.file_feeding import feeding_of_files  # noqa: E402
from sentinel.data.map_style import PlacedIndex, requests_in  # noqa: E402
from sentinel.data.source_files import SourceFiles  # noqa: E402
from sentinel.runtime.process import RUNTIME  # noqa: E402
from sentinel.samples import ALONE  # noqa: E402
from tests.data_files import number_of  # noqa: E402
from tests.processes import LONGEST_S  # noqa: E402

COUNT = 600
READER = "sentinel reader"


@pytest.fixture
def nothing_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample that does not come out of the memory is an error, also in a forked worker."""

    def refused(_: SourceFiles, samples: Any) -> Iterable[memoryview]:
        if len(samples):
            raise AssertionError(f"{len(samples)} samples are read alone")
        return iter(())

    monkeypatch.setattr(SourceFiles, "alone", refused)


def samples_of(source: Any, **options: Any) -> Samples:
    return Samples(source, number_of, **{"memory": "20%", "unit": 16, "order": Order(seed=5), **options})


def loader_of(source: Any, **options: Any) -> Any:
    return sentinel.data.loader(
        source, number_of, **{"batch_size": 32, "memory": "20%", "unit": 16, "seed": 5, **options}
    )


def batches(loader: Iterable[Any]) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def test_an_epoch_becomes_pythons_numbers_bit_by_bit() -> None:
    n, asked = 1 << 20, 10_007
    planned = EpochOrder(np.arange(n)[::-1], np.arange(n) % 3 == 0, np.arange(n) % 5 == 0)
    samples: Any = SimpleNamespace(begin=lambda epoch: (1, planned), goes_on=lambda iteration, ended: not ended)
    tracemalloc.start()
    try:
        for position, index in enumerate(islice(OrderSampler(samples), asked)):
            assert (index, index.position) == (n - 1 - position, position)
            assert (index.first, index.direct) == (position % 3 == 0, position % 5 == 0)
        assert tracemalloc.get_traced_memory()[1] < n
    finally:
        tracemalloc.stop()
    assert position == asked - 1


@pytest.mark.usefixtures("nothing_alone")
@pytest.mark.parametrize("kind", ["exact", "windowed", "redirect"])
@pytest.mark.parametrize(("workers", "stays"), [(0, False), (2, False), (2, True)])
def test_a_dataloader_delivers_what_the_loader_does(tars: list[str], kind: str, workers: int, stays: bool) -> None:
    samples = samples_of(tars, order=Order(kind, seed=5), workers=workers)
    sampler, theirs = OrderSampler(samples), loader_of(tars, order=kind)
    mine = DataLoader(samples, 32, sampler=sampler, num_workers=workers, persistent_workers=stays)
    for epoch in range(3):
        assert batches(mine) == batches(theirs), epoch
        assert len(mine) == len(theirs)
    del mine
    samples.begin(9)  # what the last epoch keeps was read
    assert samples.feed.source_reads >= theirs.report().feed.source_reads > 0
    samples.close()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_may_be_started_anew(tars: list[str], method: str) -> None:
    samples = samples_of(tars, workers=2)
    mine = DataLoader(samples, 32, sampler=OrderSampler(samples), num_workers=2, multiprocessing_context=method)
    theirs = loader_of(tars)
    assert batches(mine) == batches(theirs)
    samples.close()


@pytest.mark.usefixtures("nothing_alone")
def test_ranks_and_epochs_are_those_of_the_order(tars: list[str]) -> None:
    for rank in range(2):
        samples = samples_of(tars, order=Order(seed=5, world=2, rank=rank))
        sampler, theirs = OrderSampler(samples), loader_of(tars, rank=rank, world=2)
        mine = DataLoader(samples, 32, sampler=sampler)
        for epoch in (4, 5, 1):
            if epoch != 5:
                sampler.set_epoch(epoch)
                theirs.set_epoch(epoch)
            assert batches(mine) == batches(theirs), epoch
        with pytest.raises(UsageError, match="there is no epoch -1"):
            sampler.set_epoch(-1)


def test_samples_without_a_place_are_read_alone(tars: list[str]) -> None:
    samples = samples_of(tars)
    assert len(samples) == COUNT
    assert [samples[number] for number in (0, 599, 7)] == [0, 599, 7]
    assert samples.__getitems__([5, 3]) == [5, 3]
    shuffled = [number for batch in batches(DataLoader(samples, 32, shuffle=True)) for number in batch]
    assert sorted(shuffled) == list(range(COUNT))
    with pytest.raises(IndexError):
        samples[COUNT]
    assert samples.feed.source_reads == 0
    mixed = requests_in(
        [4, PlacedIndex.of(9, 2, True, False), PlacedIndex.of(8, 3, False, True), PlacedIndex.of(1, 7, False, False)]
    )
    assert [(request.position, request.samples.tolist(), request.direct.tolist()) for request in mixed] == [
        (-1, [4], [True]),
        (2, [9, 8], [False, True]),
        (7, [1], [False]),
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_close_frees_the_memory_and_what_workers_are_at_stays_right(tars: list[str], workers: int) -> None:
    samples = samples_of(tars, workers=workers)
    theirs, feeding = loader_of(tars), samples._feeding
    assert isinstance(feeding, FileFeeding)
    mine = DataLoader(samples, 32, sampler=OrderSampler(samples), num_workers=workers, persistent_workers=workers > 0)
    expected, arena = [batches(theirs) for _ in range(2)], feeding._arena
    theirs.close()
    left = iter(mine)
    found = [next(left).tolist()]
    samples.close()
    assert arena.held_bytes < arena.shape.nbytes
    paths = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    assert not {os.readlink(path) for path in paths if os.path.lexists(path)} & set(tars)
    with pytest.raises(UsageError, match="another iteration of these samples has begun"):
        found += [batch.tolist() for batch in left]
    assert found == expected[0][: len(found)]
    assert batches(mine) == expected[1]
    assert arena.held_bytes == arena.shape.nbytes
    samples.close()


@pytest.mark.usefixtures("nothing_alone")
def test_an_iteration_that_is_left_or_overtaken(tars: list[str]) -> None:
    samples = samples_of(tars)
    sampler, theirs = OrderSampler(samples), loader_of(tars)
    mine, expected = DataLoader(samples, 32, sampler=sampler), [batches(theirs) for _ in range(3)]
    first = iter(mine)
    assert [batch.tolist() for batch in islice(first, 3)] == expected[0][:3]
    assert batches(mine) == expected[1]
    with pytest.raises(UsageError, match="another iteration of these samples has begun"):
        next(first)
    assert batches(mine) == expected[2]
    samples.close()
    assert not [thread for thread in threading.enumerate() if thread.name == READER]


class Skipping:
    """Some batches of a sampler, as frameworks take them that skip what was trained on, or shard batches."""

    def __init__(self, samples: Samples, first: int, every: int) -> None:
        self._batches, self._first, self._every = BatchSampler(OrderSampler(samples), 32, False), first, every

    def __iter__(self) -> Iterator[list[int]]:
        return islice(self._batches, self._first, None, self._every)


@pytest.mark.parametrize(("first", "every"), [(12, 1), (1, 2)])
def test_what_is_never_asked_for_stops_the_reader_once(
    tars: list[str], monkeypatch: pytest.MonkeyPatch, first: int, every: int
) -> None:
    """Places that are skipped fill the memory. The first batch that does not come says that they are not needed; those
    after it come out of the memory again. What is asked for all the same is read alone."""
    monkeypatch.setattr("sentinel.data.staged_samples.PATIENCE_S", 0.01)
    samples, expected = samples_of(tars), batches(loader_of(tars, unit=1, memory="200%"))
    source: Any = samples._placed
    pass_over, alone = source.pass_over, SourceFiles.alone
    passed: list[int] = []
    read_alone: list[int] = []

    def passing_over(begin: int, stop: int) -> None:
        passed.append(stop)
        source._patience_s = LONGEST_S  # what comes from now on does not depend on how long it is waited for
        pass_over(begin, stop)

    def reading_alone(files: SourceFiles, numbers: Any) -> Iterable[memoryview]:
        read_alone.append(len(numbers) if passed else 0)
        return alone(files, numbers)

    monkeypatch.setattr(source, "pass_over", passing_over)
    monkeypatch.setattr(SourceFiles, "alone", reading_alone)
    found = batches(DataLoader(samples, batch_sampler=Skipping(samples, first, every)))
    assert found == expected[first::every]
    assert passed
    assert passed[0] % 32 == 0
    assert sum(read_alone) == 0
    gone = [PlacedIndex.of(number, place, False, False) for place, number in enumerate(expected[0])]
    assert samples.__getitems__(gone) == expected[0]
    samples.close()


@pytest.mark.usefixtures("nothing_alone")
def test_an_iteration_that_was_overtaken_says_nothing_of_the_next_one(
    tars: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = samples_of(tars)
    first, _ = samples.begin(0)
    second, _ = samples.begin(1)
    ends: list[str] = []
    feeding: Any = samples._feeding

    def noting(end: Callable[[], None]) -> Callable[[], None]:
        def noted() -> None:
            ends.append(end.__name__)
            end()

        return noted

    for name in ("finish", "give_up"):
        monkeypatch.setattr(feeding, name, noting(getattr(feeding, name)))
    assert not samples.goes_on(first, ended=True)
    third, _ = samples.begin(2)
    assert ends == ["give_up"]  # the second iteration was left
    assert samples.goes_on(third, ended=True)
    assert not samples.goes_on(second)
    samples.begin(3)
    assert ends == ["give_up", "finish"]
    samples.close()


@pytest.mark.usefixtures("nothing_alone")
def test_no_thread_reads_while_a_process_forks(tars: list[str]) -> None:
    samples = samples_of(tars)
    mine, theirs = DataLoader(samples, 32, sampler=OrderSampler(samples)), loader_of(tars)
    under_way, expected = iter(mine), batches(theirs)
    got = [next(under_way).tolist()]
    assert [thread for thread in threading.enumerate() if thread.name == READER]
    RUNTIME.before_fork()
    try:
        assert not [thread for thread in threading.enumerate() if thread.name == READER]
    finally:
        RUNTIME.after_fork()
    assert got + [batch.tolist() for batch in under_way] == expected


def test_a_source_that_is_damaged_is_named(tars: list[str]) -> None:
    samples = samples_of(tars)
    Path(tars[1]).write_bytes(b"other")
    with pytest.raises(FormatError, match=r"train-001.tar: .*changed since it was indexed"):
        batches(DataLoader(samples, 32, sampler=OrderSampler(samples)))


class Within(Dataset[int]):
    """Iterates over a sampler in a worker."""

    def __init__(self, samples: Samples) -> None:
        self.sampler = OrderSampler(samples)

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        return next(iter(self.sampler))


def test_what_cannot_be_is_refused(tars: list[str]) -> None:
    with pytest.raises(UsageError, match="workers='4' is not a number of at least 0"):
        samples_of(tars, workers="4")
    with pytest.raises(UsageError, match="transform=5 cannot be called"):
        Samples(tars, 5, memory="20%")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="there is no option 'batch_size'"):
        samples_of(tars, batch_size=3)
    with pytest.raises(UsageError, match="unit=0 is not a number"):
        samples_of(tars, unit=0)
    with pytest.raises(UsageError, match="a Within is not read from files"):
        samples_of(Within(samples_of(tars)))
    with pytest.raises(UsageError, match="give at least"):
        samples_of(tars, memory="4KiB")
    for order, said in (("exact", r"order='exact' is no Order; give Order\('exact', seed=...\)"), (None, "Order")):
        with pytest.raises(UsageError, match=said):
            samples_of(["absent.tar"], order=order)  # before files are looked for
    with pytest.raises(RuntimeError, match="iterated over in a worker"):  # what torch makes of it
        list(DataLoader(Within(samples_of(tars)), num_workers=1))


def test_the_loader_and_samples_are_fed_alike(tars: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    data = open_data(tars)
    fed, unit = feeding_of_files(data, "20%", Order(), unit=16)
    assert isinstance(fed, FileFeeding)
    assert unit == samples_of(tars).unit == loader_of(tars).state_dict()["unit"] == 16
    monkeypatch.setattr("sentinel.data.source_reads.all_cached", lambda _: True)
    fed, unit = feeding_of_files(data, "20%", Order())
    assert isinstance(fed, UnstagedFeeding)
    alone = samples_of(tars, unit="auto")
    assert unit == alone.unit == loader_of(tars, unit="auto").state_dict()["unit"] == ALONE
    assert batches(DataLoader(alone, 32, sampler=OrderSampler(alone))) == batches(loader_of(tars))


def test_what_samples_read_is_what_the_public_planner_says(tars: list[str]) -> None:
    samples = samples_of(tars, memory="200%")
    layout, order = samples.layout.cut(samples.unit), samples.order
    room = Room.of(layout, 2 * layout.nbytes)
    epoch = Epoch(permutation(COUNT, order, 0), permutation(COUNT, order, 1))
    told = sentinel.data.simulate(layout, sentinel.data.plan(layout, order, room, epoch))
    batches(DataLoader(samples, 32, sampler=OrderSampler(samples)))
    assert samples.feed.source_reads == told.source_reads == layout.n_chunks
