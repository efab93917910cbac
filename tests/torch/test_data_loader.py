"""The loader: torch's order, the source's bytes, each sample once. What dies beside it: test_data_faults.py. What it
reads, and what its report says: test_data_loader_report.py."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import threading
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from torch.utils.data import DataLoader, DistributedSampler, IterableDataset  # noqa: E402

import sentinel.data  # noqa: E402
from sentinel.core.errors import FormatError, UsageError  # noqa: E402
from sentinel.data.chunk_reader import IN_FLIGHT  # noqa: E402
from sentinel.data.feeding import FileFeeding  # noqa: E402
from sentinel.data.loading import Loader  # noqa: E402
from sentinel.data.sources.parquet_rows import ParquetRows  # noqa: E402
from sentinel.data.sources.records import Records  # noqa: E402
from tests.data_files import number_of, rows, shards  # noqa: E402
from tests.processes import until  # noqa: E402
from tests.torch.loaders import COUNT, Numbers, epoch_of, loader_of, torchs  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize(("workers", "method"), [(0, None), (1, "fork"), (3, "fork"), (2, "spawn"), (2, "forkserver")])
def test_the_order_is_torchs_and_the_bytes_are_the_sources(tars: list[str], workers: int, method: str | None) -> None:
    expected = [torchs(5, epoch) for epoch in range(3)]
    state = torch.random.get_rng_state()
    loader = loader_of(tars, workers=workers, seed=5, multiprocessing_context=method)
    for epoch in range(3):
        assert epoch_of(loader) == expected[epoch]
    feed = loader.report().feed
    assert feed.samples == 3 * COUNT
    assert feed.source_reads < feed.samples / 2
    assert feed.direct_reads == 0  # so the bytes came from the arena in each worker, however it was started
    assert feed.hits + feed.source_reads == feed.samples
    assert torch.equal(state, torch.random.get_rng_state())
    loader.close()


def test_ranks_may_be_numpys_whole_numbers(tars: list[str]) -> None:
    loader = loader_of(tars, rank=np.int64(1), world=np.int64(2))
    next(iter(loader))
    state = json.loads(json.dumps(loader.state_dict()))
    other = loader_of(tars, rank=1, world=2)
    other.load_state_dict(state)
    assert epoch_of(other) == torchs(0, 0)[1::2][32:]


@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_are_split_as_distributed_sampler_splits_them(tars: list[str], drop_last: bool) -> None:
    everything = []
    for rank in range(4):
        sampler = DistributedSampler(Numbers(), 4, rank, seed=2, drop_last=drop_last)
        sampler.set_epoch(1)
        loader = loader_of(tars, rank=rank, world=4, seed=2, drop_last=drop_last, batch_size=10)
        loader.set_epoch(1)
        expected = list(DataLoader(Numbers(), 10, sampler=sampler, drop_last=drop_last))
        assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in expected]
        assert len(loader) == len(expected)
        everything += list(sampler)
    assert sorted(everything) == list(range(COUNT))


@pytest.mark.parametrize("order", ["windowed", "redirect"])
@pytest.mark.parametrize("workers", [0, 2])
def test_other_orders_deliver_each_sample_once_whoever_fetches(tars: list[str], order: str, workers: int) -> None:
    loader = loader_of(tars, order=order, workers=workers)
    first, second = epoch_of(loader), epoch_of(loader)
    assert sorted(first) == sorted(second) == list(range(COUNT))
    assert first != second
    assert first == epoch_of(loader_of(tars, order=order))
    assert loader.report().feed.direct_reads == 0
    loader.close()


def test_rows_folders_and_records(tmp_path: Path) -> None:
    path = rows(tmp_path, COUNT, 500)
    array = np.load(path)
    for source in (path, sentinel.data.records(path, "uint8", 80)):
        loader = loader_of(source, None, memory="20%" if source is path else "1MiB")
        got = np.concatenate([batch.numpy() for batch in loader])
        if source is path:
            assert np.array_equal(got, array[torchs(0, 0)])
        else:
            whole = np.fromfile(path, np.uint8)
            whole = whole[: len(whole) // 80 * 80].reshape(-1, 80)
            assert np.array_equal(got, whole[torchs(0, 0, len(whole))])
        assert loader.report().feed.direct_reads == 0
    (tmp_path / "files").mkdir()
    for i in range(40):
        (tmp_path / "files" / f"{i:02d}.txt").write_text(f"content {i}")
    loader = loader_of(tmp_path / "files", None, memory="1MiB")
    found = [data for _, contents in loader for data in contents]
    assert found == [b"content %d" % i for i in torchs(0, 0, 40)]
    assert any("pack small files" in said for said in loader.report().caveats)


def test_a_dataset_reads_by_itself(tars: list[str]) -> None:
    loader = loader_of(Numbers(), None, workers=2)
    assert epoch_of(loader) == torchs(0, 0)
    state = loader.state_dict()
    assert epoch_of(loader) == torchs(0, 1)
    assert any("nothing is staged" in said for said in loader.report().caveats)
    loader.load_state_dict(state)
    assert loader.epoch == 1
    with pytest.raises(UsageError, match="needs chunks"):
        loader_of(Numbers(), order="windowed")
    loader.close()


# --- resuming ---


@pytest.mark.parametrize("order", ["exact", "windowed", "redirect"])
@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0)])
def test_a_job_goes_on_where_training_was(tars: list[str], order: str, before: int, after: int) -> None:
    whole = loader_of(tars, order=order, seed=1)
    whole.set_epoch(1)
    expected, following = epoch_of(whole), epoch_of(whole)
    first = loader_of(tars, order=order, seed=1, workers=before)
    epoch_of(first)
    got: list[int] = []
    for number, batch in enumerate(first):
        got += batch.tolist()
        if number == 6:
            break
    state = json.loads(json.dumps(first.state_dict()))
    assert len(json.dumps(state)) < 1024
    assert (state["epoch"], state["delivered"]) == (1, 7 * 32)
    first.close()
    second = loader_of(tars, order=order, seed=1, workers=after, memory="20%" if order != "exact" else "60%")
    second.load_state_dict(state)
    assert got + epoch_of(second) == expected
    assert epoch_of(second) == following
    second.close()


@pytest.mark.parametrize("order", ["windowed", "redirect"])
def test_a_state_that_needs_more_memory_names_how_much(tmp_path: Path, order: str) -> None:
    path = rows(tmp_path, 6000, 64)
    asked: dict[str, Any] = {"transform": len, "order": order, "unit": 64}
    first = loader_of(path, memory="20%", **asked)
    next(iter(first))
    state = first.state_dict()
    second = loader_of(path, memory="8%", **asked)
    with pytest.raises(UsageError, match=r"make it with unit=64 and at least memory=\d+$") as refused:
        second.load_state_dict(state)
    memory = int(str(refused.value).rpartition("memory=")[2])
    third = loader_of(path, memory=memory, **asked)
    third.load_state_dict(state)
    for loader in (first, second, third):
        loader.close()


@pytest.mark.parametrize("order", ["exact", "windowed", "redirect"])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_job_that_goes_on_twice_with_other_ranks_loses_nothing(tmp_path: Path, order: str, drop_last: bool) -> None:
    """Where samples do not divide by ranks the order of an epoch is longer than the data set, and a sample that is
    delivered twice may stand before one that is not delivered yet."""
    tars = shards(tmp_path, [61, 40])

    def loaders(world: int) -> list[Loader]:
        return [
            loader_of(tars, order=order, rank=rank, world=world, batch_size=1, drop_last=drop_last, memory="60%")
            for rank in range(world)
        ]

    def some(loaders: list[Loader], count: int) -> list[int]:
        batches = [iter(loader) for loader in loaders]
        return [int(batch) for _ in range(count) for one in batches if (batch := next(one, None)) is not None]

    first = loaders(4)
    whole = {number for loader in loaders(4) for number in epoch_of(loader)}
    first_part = some(first, 20)
    second = loaders(7)
    for loader in second:
        loader.load_state_dict(first[0].state_dict())
    second_part = some(second, 2 if drop_last else 3)  # not to their end, which would begin the next epoch
    third = loaders(1)[0]
    third.load_state_dict(second[0].state_dict())
    got = first_part + second_part + epoch_of(third)
    assert set(got) >= whole
    assert len(got) - len(set(got)) <= 3


def test_another_number_of_ranks_goes_on_with_what_is_left(tars: list[str]) -> None:
    loaders = [loader_of(tars, rank=rank, world=3, batch_size=10) for rank in range(3)]
    got: list[int] = []
    for loader in loaders:
        batches = iter(loader)
        got += [i for _ in range(5) for i in next(batches).tolist()]
    states = [loader.state_dict() for loader in loaders]
    assert states[0] == states[1] == states[2]
    for rank in range(2):
        loader = loader_of(tars, rank=rank, world=2)
        loader.load_state_dict(states[0])
        got += epoch_of(loader)
    assert sorted(got) == list(range(COUNT))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata 0.11 calls it
def test_a_stateful_dataloader_keeps_the_state(tars: list[str]) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata: pip install torchdata")
    first = stateful.StatefulDataLoader(loader_of(tars, workers=1), batch_size=None)
    got: list[int] = []
    state: dict[str, Any] = {}
    for number, batch in enumerate(first):
        got += batch.tolist()
        if number == 6:
            state = first.state_dict()
            break
    first.dataset.close()
    loader = loader_of(tars)
    second = stateful.StatefulDataLoader(loader, batch_size=None)
    second.load_state_dict(state)
    assert got + epoch_of(second) == torchs(0, 0)
    assert epoch_of(loader) == torchs(0, 1)


def test_a_state_of_something_else_is_refused(tars: list[str], tmp_path: Path) -> None:
    loader = loader_of(tars)
    state = loader.state_dict()
    for change, said in (
        ({"version": 9}, "this version"),
        ({"data": "x"}, "another data set"),
        ({"seed": 3}, "make it with seed=3"),
        ({"order": "windowed"}, "make it with order='windowed'"),
        ({"epoch": -1}, "damaged"),
        ({"room": None}, "damaged"),
        ({"epoch": 5, "delivered": 32, "room": [0, 0, 0]}, "damaged"),
        ({"delivered": 32, "world": 0}, "damaged"),
        ({"epoch": 1 << 64}, "damaged"),
    ):
        with pytest.raises(UsageError, match=said):
            loader.load_state_dict({**state, **change})
        assert loader.state_dict() == state, "what is refused changes nothing"
    with pytest.raises(UsageError, match="there is no epoch"):
        loader.set_epoch(1 << 64)
    loader.load_state_dict(state)
    assert epoch_of(loader) == torchs(0, 0)


def test_workers_draw_other_random_numbers_on_each_rank(tars: list[str]) -> None:
    seeds = {loader_of(tars, rank=rank, world=3)._workers_seed() for rank in range(3)}
    assert len(seeds) == 3


def test_an_iteration_that_is_left_or_overtaken(tars: list[str]) -> None:
    loader = loader_of(tars, workers=2)
    for _ in loader:
        break
    assert epoch_of(loader) == torchs(0, 1)
    left = iter(loader)
    next(left)
    loader.set_epoch(7)
    with pytest.raises(UsageError, match="this iteration has ended"):
        next(left)
    assert epoch_of(loader) == torchs(0, 7)
    loader.set_epoch(8)  # where it is anyway
    assert epoch_of(loader) == torchs(0, 8)
    loader.close()


def test_a_state_of_the_last_batch_leaves_nothing_of_its_epoch(tars: list[str]) -> None:
    loader = loader_of(tars)
    state = {}
    for _ in loader:
        state = loader.state_dict()
    loader.load_state_dict(state)
    assert epoch_of(loader) == []
    assert epoch_of(loader) == torchs(0, 1)


@pytest.mark.parametrize("workers", [0, 1])
def test_close_frees_the_memory_and_another_iteration_takes_it_again(tars: list[str], workers: int) -> None:
    loader = loader_of(tars, workers=workers)
    feeding = loader._feeding
    assert isinstance(feeding, FileFeeding)
    arena, held = feeding._arena, []
    for epoch in range(2):
        assert epoch_of(loader) == torchs(0, epoch)
        assert loader.report().epoch.direct_reads == 0
        held.append(arena.held_bytes)
        on = feeding.node_pages()
        loader.close()
        assert feeding.node_pages() == on, "what a report says of an epoch"
        held.append(arena.held_bytes)
    assert held == 2 * [arena.shape.nbytes, arena.shape.nbytes - arena.shape.parts[-1]]


def test_close_leaves_memory_that_is_locked(tars: list[str]) -> None:
    loader = loader_of(tars)
    assert epoch_of(loader) == torchs(0, 0)
    feeding = loader._feeding
    assert isinstance(feeding, FileFeeding)
    middle = feeding._arena.pages[feeding._arena.shape.n_pages // 2 :].ctypes.data
    assert ctypes.CDLL(None).mlock(ctypes.c_void_p(middle), ctypes.c_size_t(1)) == 0
    loader.close()
    assert epoch_of(loader) == torchs(0, 1)
    loader.close()


@pytest.mark.parametrize("unit", [16, "auto"])
def test_close_closes_the_files(tars: list[str], unit: int | str) -> None:
    loader = loader_of(tars, unit=unit)

    def opened() -> list[str]:
        paths = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        return [path for path in paths if os.path.lexists(path) and os.readlink(path) in tars]

    assert epoch_of(loader) == torchs(0, 0)
    assert opened()
    loader.close()
    assert not opened()
    assert epoch_of(loader) == torchs(0, 1)
    loader.close()


@pytest.mark.slow
def test_threads_and_memory_go_with_the_loader(tars: list[str]) -> None:
    def reading() -> int:
        return sum(thread.name == "sentinel reader" for thread in threading.enumerate())

    def memories() -> int:
        links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
        return sum("sentinel-samples" in target(link) for link in links)

    def target(link: str) -> str:
        try:
            return os.readlink(link)
        except FileNotFoundError:  # a thread has just closed it
            return ""

    gc.collect()
    before = reading(), memories()
    loader = loader_of(tars)
    batches: Iterator[Any] = iter(loader)
    next(batches)
    assert memories() > before[1]
    del loader, batches
    until(lambda: reading() <= before[0] and memories() <= before[1], 0.01)  # threads end by themselves


# --- what is asked for ---


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"memory": "8KiB"}, "give at least"),
        ({"memory": "20"}, "of the data set"),
        ({"batchsize": 3}, "did you mean batch_size"),
        ({"num_worker": 3}, "there is no option"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"workers": -1}, "workers=-1"),
        ({"unit": 0}, "unit=0"),
        ({"seed": "a"}, "is no seed"),
        ({"transform": 5}, "transform=5 cannot be called"),
        ({"collate_fn": 5}, "collate_fn=5 cannot be called"),
        ({"drop_last": "no"}, "drop_last='no' is neither True nor False"),
        ({"drop_last": np.array([True, False])}, r"drop_last=array\(.*\) is neither True nor False"),
        ({"peers": np.array(["a:1", "a:1"])}, "names one server twice"),
        ({"multiprocessing_context": "spwan"}, "there is no multiprocessing_context='spwan'"),
        ({"multiprocessing_context": 5}, "there is no multiprocessing_context=5"),
        ({"peers": 5}, "peers=5 are not addresses"),
        ({"index_path": 5}, "index_path=5 is no path"),
        ({"order": "exakt"}, "there is no order"),
        ({"rank": 1}, "go together"),
        ({"rank": 3, "world": 3}, "no rank 3"),
        ({"rank": "0", "world": 3}, "rank='0' is not a whole number"),
        ({"rank": 0.0, "world": 3}, "rank=0.0 is not a whole number"),
        ({"rank": 0, "world": 2.0}, "world=2.0 is not a whole number"),
        ({"workers": 1, "multiprocessing_context": "spawn", "transform": lambda sample: sample}, "as a lambda"),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(tars: list[str], options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        loader_of(tars, **options)


def test_whole_numbers_may_be_numpys(tars: list[str]) -> None:
    given = {name: np.int64(number) for name, number in (("batch_size", 20), ("unit", 8), ("seed", 3), ("workers", 0))}
    loader = loader_of(tars, prefetch_factor=None, **given)
    loader.set_epoch(np.int64(1))  # type: ignore[arg-type]
    assert epoch_of(loader) == torchs(3, 1)
    json.dumps(loader.state_dict())


def test_sources_that_are_none_are_refused_in_words(tmp_path: Path) -> None:
    for wrong, said in (
        (lambda: loader_of(b"a.tar"), "a bytes cannot be indexed"),
        (lambda: loader_of("a\0b.tar"), "has a byte 0"),
        (lambda: sentinel.data.records("a.bin", "uint7", 5), "there is no dtype 'uint7'"),
        (lambda: sentinel.data.records("a.bin", "a,b(", 2), r"there is no dtype 'a,b\('"),
        (lambda: sentinel.data.records("a.bin", "(2,-1)u1", 2), "there is no dtype"),
        (lambda: sentinel.data.records("a.bin", "i4,(", 2), "there is no dtype"),
        (lambda: sentinel.data.records("a.bin", "uint8", 5.5), "there is no shape 5.5"),  # type: ignore[arg-type]
        (lambda: ParquetRows(5), "columns=5 are no names"),  # type: ignore[arg-type]
        (lambda: ParquetRows([5]), r"columns=\[5\] are no names"),  # type: ignore[list-item]
    ):
        with pytest.raises(UsageError, match=said):
            wrong()
    assert ParquetRows("text").kind == "parquet of text"
    assert Records("uint8", np.int64(5)).kind == Records("uint8", 5).kind  # type: ignore[arg-type]
    (tmp_path / "index.json").write_text('{"classes": ["a", "b"]}')
    (tmp_path / "1.jpg").write_bytes(b"x")
    with pytest.raises(FormatError, match="where the other files of its folder are the samples, move it away"):
        loader_of(str(tmp_path))


def test_what_cannot_be_indexed_is_refused() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    for source in (Stream(), iter([]), 3):
        with pytest.raises(UsageError, match="cannot be indexed"):
            loader_of(source)
    with pytest.raises(
        UsageError, match="a list of sources has a tuple, which is no path; give paths of files, or wrap"
    ):
        loader_of([(1, 2), (3, 4)])


# --- whom it keeps waiting, and how much it takes ---


def test_all_bytes_of_a_batch_are_copied_before_one_is_transformed(tars: list[str]) -> None:
    """So whoever decodes slowly keeps nobody waiting for the room of what it has not come to."""
    loader = loader_of(tars)
    feeding = loader._feeding
    assert isinstance(feeding, FileFeeding)
    seen = []

    def transform(sample: dict[str, bytes]) -> int:
        seen.append(int(feeding._arena.taken.sum()))
        return number_of(sample)

    loader._batching = replace(loader._batching, transform=transform)
    assert epoch_of(loader) == torchs(0, 0)
    assert seen[:33] == [32] * 32 + [64]


def test_tables_of_the_reader_are_small(tmp_path: Path) -> None:
    """Of a job with many small samples, half of which are in memory."""
    source = rows(tmp_path, 40_000, 2)
    tracemalloc.start()
    try:
        loader = loader_of(source, None, memory="1MiB", batch_size=1000)
        before, _ = tracemalloc.get_traced_memory()
        for number, _ in enumerate(loader):
            if number == 20:
                break
        feeding = loader._feeding
        assert isinstance(feeding, FileFeeding)
        state = feeding._reader._state
        tables = sum(part.nbytes for part in vars(state).values() if isinstance(part, np.ndarray))
        resident = int((feeding._arena.entries != 0).sum())
        assert resident > 10_000
        assert tables / resident < 80
        now, _ = tracemalloc.get_traced_memory()
        assert (now - before) / 40_000 < 300  # with the plan of the epoch, a sample of the data set
    finally:
        tracemalloc.stop()


def test_memory_beside_the_room_is_that_of_reads_in_flight(tmp_path: Path) -> None:
    """As the allocator counts it: not what the reader says of itself."""
    source, nbytes = rows(tmp_path, 400, 25_000), 100_000
    loader = loader_of(source, None, memory="20%", batch_size=4, unit=16)
    epoch = iter(loader)
    next(epoch)  # the plan is made
    gc.collect()
    tracemalloc.start()
    try:
        for _ in epoch:
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    batch = 4 * nbytes
    assert peak < IN_FLIGHT * 3 * 16 * nbytes + 6 * batch  # a chunk, as it was read too, and its samples cut in pages
    assert peak > 16 * nbytes, "the reads were not seen"


def test_a_batch_is_pinned_by_the_loader(tars: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's thread that pins would wait for ever for the rest of a batch whose sender was killed."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.utils.data._utils.pin_memory, "pin_memory", lambda batch: ("pinned", batch))
    loader = loader_of(tars, workers=1, pin_memory=True)
    batches = iter(loader)
    assert next(batches)[0] == "pinned"
    assert loader._workers is not None
    assert not hasattr(loader._workers._iterator, "_pin_memory_thread")
    loader.close()


def test_a_worker_of_another_dataloader_is_refused(tars: list[str]) -> None:
    loader = loader_of(tars)
    with pytest.raises(RuntimeError, match="each worker would deliver every sample; give num_workers=0"):
        list(DataLoader(loader, batch_size=None, num_workers=2, multiprocessing_context="fork"))
    assert sorted(i for batch in DataLoader(loader, batch_size=None) for i in batch.tolist()) == list(range(COUNT))
    loader.close()
