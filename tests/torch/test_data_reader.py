"""The reader carries a plan out: all that a position needs is there before it, in no more pages than there are."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from sentinel.core.errors import CapabilityError  # noqa: E402
from sentinel.data import chunk_reader, reading_thread  # noqa: E402
from sentinel.data.chunk_reader import ChunkReader  # noqa: E402
from sentinel.data.data_index import open_data  # noqa: E402
from sentinel.data.feeding import permutation  # noqa: E402
from sentinel.data.reading_thread import ReadingThread  # noqa: E402
from sentinel.data.sample_arena import PULSE, RUNNING, SampleArena, shape_within  # noqa: E402
from sentinel.data.served_samples import Served  # noqa: E402
from sentinel.data.source_files import SourceFiles  # noqa: E402
from sentinel.data.staged_samples import Failed, FromArena, StagedSamples, collated  # noqa: E402
from sentinel.samples import Epoch, Order, Room, Staging, plan  # noqa: E402
from tests import warm  # noqa: E402
from tests.data_files import rows, shards  # noqa: E402
from tests.processes import LONGEST_S, until  # noqa: E402
from tests.torch.loaders import no_thread_left_at  # noqa: E402


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ChunkReader, SampleArena, SourceFiles, Room]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    data = open_data(shards(tmp_path, [100, 80]))
    layout = data.layout.cut(8)
    shape = shape_within(layout.nbytes // 4, layout.sample_nbytes)
    arena = SampleArena(shape)
    files = SourceFiles(layout, data.root)
    room = Room(shape.n_pages * shape.page_bytes, shape.page_bytes, 4)
    return ChunkReader(arena, files, in_flight=3), arena, files, room


def staging(files: SourceFiles, room: Room, epoch: int, before: Staging | None) -> Staging:
    orders = [permutation(180, Order(), number) for number in (epoch, epoch + 1)]
    return plan(files.layout, Order(), room, Epoch(*orders), before)


def by_hand(files: SourceFiles, room: Room, order: list[int]) -> Staging:
    """Each sample is read once, alone of its chunk, and stays until its last position."""
    samples, first, stay_at = np.unique(np.array(order), return_index=True, return_inverse=True)
    assert (np.diff(first) > 0).all(), "samples come in the order of their numbers"
    last = len(order) - 1 - np.unique(np.array(order)[::-1], return_index=True)[1]
    chunks = files.layout.chunk_of[samples].astype(np.int64)
    return Staging(room, np.array(order), chunks, first, samples, np.arange(len(samples)), last, stay_at)


def copied(arena: SampleArena, files: SourceFiles, sample: int) -> bytes:
    """The sample from the arena, once it is there."""
    began = time.monotonic()
    one = np.array([sample])
    while not isinstance(found := arena.copy(one, files.layout.sample_nbytes[one])[0], memoryview):
        assert time.monotonic() - began < LONGEST_S, "it does not come"
        time.sleep(0.001)
    return bytes(found)


def test_epochs_follow_one_another_with_pauses_between(
    job: tuple[ChunkReader, SampleArena, SourceFiles, Room],
) -> None:
    reader, arena, files, room = job
    before: Staging | None = None
    reads = 0
    for epoch in range(3):
        now = staging(files, room, epoch, before)
        reader.begin(now, goes_on=before is not None)
        reader.start()
        for position, sample in enumerate(now.order.tolist()):
            if now.stay_at[position] >= 0:
                assert copied(arena, files, sample) == files.sample(sample).tobytes()
            arena.take(np.array([position]))
            if position % 50 == 20:
                reader.pause()
                reader.start()
        reader.finish()
        assert reader.error is None
        before, reads = now, reads + len(now.read_chunk)
    assert reader.counts.reads == reads
    assert reader.counts.failed == 0


def test_an_epoch_that_was_left_is_forgotten(job: tuple[ChunkReader, SampleArena, SourceFiles, Room]) -> None:
    reader, arena, files, room = job
    left = staging(files, room, 0, None)
    reader.begin(left, goes_on=False)
    reader.start()
    copied(arena, files, int(left.order[0]))
    now = staging(files, room, 5, None)
    reader.begin(now, goes_on=False)
    assert not arena.entries.any()
    reader.start()
    for position, sample in enumerate(now.order.tolist()):
        if now.stay_at[position] >= 0:
            copied(arena, files, sample)
        arena.taken[position] = 1
    reader.finish()


def test_a_sample_that_is_delivered_twice_stays_until_both_have_it(
    job: tuple[ChunkReader, SampleArena, SourceFiles, Room],
) -> None:
    """The worker of the later position may come first."""
    reader, arena, files, room = job
    now = by_hand(files, room, [3, 20, 3])
    reader.begin(now, goes_on=False)
    reader.start()
    reader.finish()
    arena.take(np.array([2]))
    reader._state.look(now)
    assert arena.entries[[3, 20]].astype(bool).tolist() == [True, True]
    arena.take(np.array([0]))
    reader._state.look(now)
    assert arena.entries[[3, 20]].astype(bool).tolist() == [False, True]


def test_a_sample_is_read_though_a_later_position_of_it_was_served(
    job: tuple[ChunkReader, SampleArena, SourceFiles, Room],
) -> None:
    """As where the worker of that position did not wait for it."""
    reader, arena, files, room = job
    now = by_hand(files, room, [3, 20, 3])
    reader.begin(now, goes_on=False)
    arena.take(np.array([1, 2]))
    reader._state.look(now)
    reader.start()
    reader.finish()
    assert arena.entries[[3, 20]].astype(bool).tolist() == [True, False]


@pytest.fixture
def held(
    job: tuple[ChunkReader, SampleArena, SourceFiles, Room], monkeypatch: pytest.MonkeyPatch
) -> Iterator[threading.Event]:
    """Reads of `job` end once it is set."""
    files, go_on = job[2], threading.Event()
    real = files.chunk
    monkeypatch.setattr(files, "chunk", lambda *given: go_on.wait(LONGEST_S) and real(*given))
    yield go_on
    go_on.set()
    job[0].pause()


def test_a_read_that_goes_on_is_told_until_it_takes_too_long(
    job: tuple[ChunkReader, SampleArena, SourceFiles, Room], held: threading.Event
) -> None:
    reader, arena, files, room = job
    reader.begin(by_hand(files, room, [3]), goes_on=False)
    reader.start()
    until(lambda: arena.counters[PULSE] > 2)  # though no read is left to be placed
    assert reader.counts.reads == 0
    held.set()
    reader.finish()
    told = int(arena.counters[PULSE])
    long_ago = time.monotonic() - chunk_reader.LONGEST_READ_S - 1
    for under_way, rises in (({}, 0), ({0: long_ago}, 0), ({0: long_ago, 1: time.monotonic()}, 1)):
        reader._state.under_way = under_way
        reader._state.beat()
        assert int(arena.counters[PULSE]) == told + rises


def test_a_pause_waits_for_no_read_that_has_not_begun(
    job: tuple[ChunkReader, SampleArena, SourceFiles, Room], held: threading.Event
) -> None:
    reader, arena, files, room = job
    reader.begin(by_hand(files, room, [3, 20, 40, 60]), goes_on=False)
    reader.start()
    state = reader._state
    until(lambda: state.first_page[3] >= 0)  # three are under way, the fourth has its pages
    free = state.free.free
    state.stopping.set()
    until(lambda: state.free.free > free)
    assert (state.next_read, int(state.first_page[3])) == (3, -1)
    held.set()
    reader.pause()
    assert reader.counts.reads == 3
    reader.start()
    assert copied(arena, files, 60) == files.sample(60).tobytes()


@pytest.mark.parametrize("fails", [1, 2, 4])
def test_where_a_thread_cannot_be_started_none_is_left(
    job: tuple[ChunkReader, SampleArena, SourceFiles, Room], fails: int
) -> None:
    reader, arena, files, room = job
    now = by_hand(files, room, [3, 20])
    reader.begin(now, goes_on=False)
    with no_thread_left_at(fails) as begun:
        reader.start()
    assert not any(thread.is_alive() for thread in begun)
    assert not arena.counters[RUNNING]  # who needs a sample reads it
    reader.pause()
    reader.begin(now, goes_on=False)
    reader.start()
    reader.finish()
    assert copied(arena, files, 20) == files.sample(20).tobytes()


def test_what_a_batch_carries_passes_collation(job: tuple[ChunkReader, SampleArena, SourceFiles, Room]) -> None:
    _, arena, files, _ = job
    served = Served(samples=2)
    assert collated(([1, 2], served))[0].tolist() == [1, 2]
    failed = Failed("a.tar", "sample 3", "is gone")
    assert collated((failed, served)) == (failed, served)
    samples = StagedSamples(FromArena(files, arena, open_data(files.path_of_file(0)).source), None)
    with pytest.raises(CapabilityError, match="iterate over the loader"):
        samples[0]
    assert np.array_equal(arena.taken, np.zeros(180))


def test_no_thread_is_left_as_a_program_ends(tmp_path: Path) -> None:
    """One that is within a library's C++ then would end the process by std::terminate."""
    program = (
        "import atexit, sys, threading\n"
        "def left(): print(sum(thread.name == 'sentinel reader' for thread in threading.enumerate()))\n"
        "atexit.register(left)\n"  # the first one is called last
        "import sentinel.data\n"
        "sentinel.data.reading_thread.LONGEST_END_S = 600.0\n"  # however busy the host is
        "loader = sentinel.data.loader(sys.argv[1], batch_size=4, memory='20%', unit=16)\n"
        "batches = iter(loader)\n"
        "next(batches)\n"
        "left()\n"
    )
    command = [sys.executable, "-c", program, rows(tmp_path, 2000)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": os.getcwd()}
    done = warm.run(command, env=environment)
    assert done.returncode == 0, done.stderr
    during, after = map(int, done.stdout.split())
    assert during > 0
    assert after == 0


def test_the_end_of_a_program_waits_for_no_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, stopping = threading.Event(), threading.Event()
    thread = ReadingThread("a read", stopping, go_on.wait, 600)
    thread.start()
    monkeypatch.setattr(reading_thread, "LONGEST_END_S", 0.0)
    reading_thread._end_all()
    assert stopping.is_set()
    assert thread.is_alive()
    go_on.set()
    thread.join(600)
    assert not thread.is_alive()
