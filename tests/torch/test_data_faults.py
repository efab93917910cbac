"""What dies beside a loader, or fails: workers, reads, the reader, files, the transform. No sample is lost or wrong."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys
import termios
import threading
import time
import weakref
from array import array
from collections.abc import Callable, Iterator
from itertools import count
from multiprocessing import active_children
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")


from torch.utils.data import DataLoader  # noqa: E402
from torch.utils.data._utils import signal_handling  # noqa: E402

from sentinel.core.errors import FormatError, UsageError  # noqa: E402
from sentinel.data import OrderSampler, Samples  # noqa: E402
from sentinel.data.arena_memory import reserve  # noqa: E402
from sentinel.data.data_index import open_data  # noqa: E402
from sentinel.data.feeding import FileFeeding  # noqa: E402
from sentinel.data.loading import Loader  # noqa: E402
from sentinel.data.page_cache import in_page_cache  # noqa: E402
from sentinel.data.retries import Outages, tried  # noqa: E402
from sentinel.data.sample_arena import RUNNING  # noqa: E402
from sentinel.data.source_files import SourceFiles  # noqa: E402
from sentinel.data.sources.stored_file import LocalFile, OutageError, cannot_be_read, expect_what_is_asked  # noqa: E402
from sentinel.data.spawned_workers import context_of  # noqa: E402
from tests.data_files import number_of  # noqa: E402
from tests.processes import LONGEST_S, until  # noqa: E402
from tests.torch.loaders import COUNT, epoch_of, loader_of, torchs  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_cache")


def kills_a_worker(test: Any) -> Any:
    """Marks a test. Torch leaves open the socket by which a worker was sending tensors as it was killed."""
    forgiving = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
    return forgiving(pytest.mark.usefixtures("patient_with_the_killed")(test))


@pytest.fixture
def patient_with_the_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the kernel takes to end one. An error of the user's is told as late."""
    monkeypatch.setattr("sentinel.data.loader_workers._END_S", LONGEST_S)


class KilledOnce:
    """Ends the worker that fetches a chosen sample, the first time."""

    def __init__(self, mark: Path, sample: int) -> None:
        self.mark, self.sample = mark, sample

    def __call__(self, sample: dict[str, bytes]) -> int:
        number = number_of(sample)
        if number == self.sample and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number


@kills_a_worker
def test_a_worker_that_is_killed_costs_time_only(
    tars: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    loader = loader_of(tars, KilledOnce(tmp_path / "mark", torchs(0, 0)[333]), workers=2)
    assert epoch_of(loader) == torchs(0, 0)
    assert (tmp_path / "mark").exists()
    assert "a worker of the loader was lost" in capfd.readouterr().err
    assert epoch_of(loader) == torchs(0, 1)
    loader.close()


@kills_a_worker
def test_a_worker_that_is_killed_between_epochs_costs_time_only(
    tars: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    loader = loader_of(tars, workers=2)
    assert epoch_of(loader) == torchs(0, 0)
    assert loader._workers is not None
    worker = loader._workers._iterator._workers[0]  # type: ignore[union-attr]
    os.kill(worker.pid, signal.SIGKILL)
    worker.join(timeout=600)
    assert epoch_of(loader) == torchs(0, 1)
    assert "a worker of the loader was lost" in capfd.readouterr().err
    loader.close()


@kills_a_worker
@pytest.mark.parametrize("at", ["_set_worker_pids", "_set_SIGCHLD_handler"])
def test_a_worker_that_is_killed_as_the_others_start_costs_time_only(
    tars: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], at: str
) -> None:
    """Torch then makes no iteration of them: an error is raised where its workers run, and nobody has them."""
    started: list[Any] = []
    real = getattr(signal_handling, at)

    def kills(*given: Any) -> None:
        real(*given)
        if not started:
            started.extend(active_children())
            os.kill(started[0].pid, signal.SIGKILL)
            until(lambda: not started[0].is_alive())  # torch's handler may raise here

    monkeypatch.setattr(signal_handling, at, kills)
    loader = loader_of(tars, workers=2)
    assert epoch_of(loader) == torchs(0, 0)
    assert capfd.readouterr().err.count("a worker of the loader was lost") == 1
    assert len(started) == 2
    assert not any(worker.is_alive() for worker in started)
    loader.close()


class KilledWithTheLock(KilledOnce):
    """As the worker asks whether it is to end: it has the lock that all of them and the trainer need for that."""

    def __call__(self, sample: dict[str, bytes]) -> int:
        if number_of(sample) == self.sample and not self.mark.exists():
            frame: Any = sys._getframe()
            while "done_event" not in frame.f_locals:
                frame = frame.f_back
            frame.f_locals["done_event"]._cond.acquire()
        return super().__call__(sample)


@kills_a_worker
def test_a_worker_that_is_killed_with_the_lock_of_the_end_costs_time_only(
    tars: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sentinel.data.loader_workers._ASKED_S", 0.1)
    loader = loader_of(tars, KilledWithTheLock(tmp_path / "mark", torchs(0, 0)[333]), workers=2)
    assert epoch_of(loader) == torchs(0, 0)
    assert "a worker of the loader was lost" in capfd.readouterr().err
    loader.close()
    assert not active_children()


@pytest.mark.filterwarnings("ignore:subprocess:ResourceWarning")
def test_a_spawned_worker_that_ends_before_it_has_read_what_it_is_sent_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That is more than a pipe holds."""
    context: Any = context_of("spawn")
    worker = context.Process(target=len, args=(bytes(1 << 20),), daemon=True)
    ensure_running()
    monkeypatch.setattr("multiprocessing.spawn._python_exe", b"/bin/false")
    begin = threading.Thread(target=worker.start, daemon=True)
    begin.start()
    begin.join(timeout=60)
    assert not begin.is_alive()
    worker.join(timeout=60)
    assert worker.exitcode == 1
    assert context_of("fork") == "fork"


def of_no_use(sample: dict[str, bytes]) -> int:
    raise ValueError(f"no use for {number_of(sample)}")


@pytest.mark.parametrize("transform", [number_of, of_no_use])
def test_close_ends_workers_though_somebody_has_the_iteration(tars: list[str], transform: Any) -> None:
    """As a traceback has it, in a cycle that is collected some time."""
    loader = loader_of(tars, transform, workers=2)
    iteration, raised = iter(loader), None
    try:
        next(iteration)
    except ValueError as error:
        raised = error
    assert (raised is not None) == (transform is of_no_use)
    assert loader._workers is not None
    workers = loader._workers._iterator._workers  # type: ignore[union-attr]
    assert all(worker.is_alive() for worker in workers)
    loader.close()
    loader.close()
    assert not any(worker.is_alive() for worker in workers)
    if transform is number_of:
        loader.set_epoch(0)
        assert epoch_of(loader) == torchs(0, 0)
        loader.close()


def test_close_in_a_forked_child_raises_nothing(tars: list[str]) -> None:
    loader = loader_of(tars, workers=2)
    iteration = iter(loader)
    next(iteration)
    if (child := os.fork()) == 0:
        with contextlib.suppress(BaseException):
            loader.close()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    loader.close()


def in_a_child(does: Callable[[], object]) -> None:
    if (child := os.fork()) == 0:
        with contextlib.suppress(BaseException):
            does()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_forked_child_that_drops_the_loader_leaves_its_workers_to_the_trainer(tars: list[str]) -> None:
    loader = loader_of(tars, workers=2)
    assert epoch_of(loader) == torchs(0, 0)
    in_a_child(loader.close)  # the last reference to torch's iteration goes with it
    assert epoch_of(loader) == torchs(0, 1)
    loader.close()


def broken(_: object) -> int:
    raise BrokenPipeError("a database of the user's went away")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_pipe_of_the_users_is_no_lost_worker(
    tars: list[str], workers: int, capfd: pytest.CaptureFixture[str]
) -> None:
    loader = loader_of(tars, broken, workers=workers)
    with pytest.raises(BrokenPipeError, match="went away"):
        epoch_of(loader)
    assert "was lost" not in capfd.readouterr().err
    loader.close()


def numbered_bytes(sample: dict[str, bytes]) -> tuple[int, bytes]:
    return number_of(sample), bytes(1 << 16)


def until_it_sends(loader: Loader) -> Any:
    """A batch is larger than a pipe: the worker that has sent some of the next one is in the middle of it."""
    assert loader._workers is not None
    batches = loader._workers._iterator
    sent, some = batches._worker_result_queue._reader.fileno(), array("i", [0])  # type: ignore[union-attr]
    until(lambda: not fcntl.ioctl(sent, termios.FIONREAD, some) and some[0])
    return batches._workers[0]  # type: ignore[union-attr]


@kills_a_worker
def test_a_worker_that_is_killed_in_the_middle_of_sending_a_batch_costs_time_only(
    tars: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    loader = loader_of(tars, numbered_bytes, collate_fn=list, workers=1, prefetch_factor=4)
    batches = iter(loader)
    got = [number for number, _ in next(batches)]
    worker = until_it_sends(loader)
    os.kill(worker.pid, signal.SIGKILL)
    worker.join(timeout=600)
    got += [number for batch in batches for number, _ in batch]
    assert got == torchs(0, 0)
    assert "a worker of the loader was lost" in capfd.readouterr().err
    loader.close()


class Killed:
    """Ends each worker at its first sample, and counts them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, sample: dict[str, bytes]) -> int:
        (self.folder / f"killed{os.getpid()}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
        return 0


@pytest.mark.slow
@kills_a_worker
def test_workers_that_are_always_killed_end_in_an_error_after_three_restarts(
    tars: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    loader = loader_of(tars, Killed(tmp_path), workers=1)
    with pytest.raises(RuntimeError, match="worker"):
        epoch_of(loader)
    assert len(list(tmp_path.glob("killed*"))) == 1 + 3
    said = [line for line in capfd.readouterr().err.splitlines() if "a worker of the loader was lost" in line]
    assert [line[-14:] for line in said] == ["(1 of 3 times)", "(2 of 3 times)", "(3 of 3 times)"]
    loader.close()


def failing(monkeypatch: pytest.MonkeyPatch, loader: Loader, fails: Any) -> list[int]:
    """The chunks that are read, of which those raise for which `fails(chunk, how often it was read)` is true."""
    monkeypatch.setattr("sentinel.data.retries.WAITS_S", (0.0, 0.0))
    feeding, calls = loader._feeding, []
    assert isinstance(feeding, FileFeeding)
    files = feeding._reader._state.files
    real = files.chunk

    def chunk(chunk: int, samples: Any) -> Any:
        calls.append(chunk)
        if fails(chunk, calls.count(chunk)):
            raise OSError(5, "Input/output error")
        return real(chunk, samples)

    monkeypatch.setattr(files, "chunk", chunk)
    return calls


def test_a_read_is_tried_three_times() -> None:
    waits: list[float] = []
    answers: list[Any] = [OSError("once"), OSError("twice"), 3]

    def read() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    assert tried(read, waits.append) == 3
    assert waits == [0.05, 0.25]
    answers[:] = [OSError("once"), OSError("twice"), OSError("thrice"), 4]
    with pytest.raises(OSError, match="thrice"):
        tried(read, waits.append)


def test_a_read_that_fails_once_is_read_again(tars: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of(tars)
    calls = failing(monkeypatch, loader, lambda chunk, times: times == 1)
    assert epoch_of(loader) == torchs(0, 0)
    report = loader.report()
    assert report.feed.direct_reads == 0
    assert len(calls) == report.feed.source_reads + len(set(calls))


def test_what_stays_for_good_and_could_not_be_read_is_read_in_the_next_epoch(
    tars: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With memory for more than half of the data, chunks stay for good; the first one is one of them."""
    loader = loader_of(tars, memory="80%")
    calls = failing(monkeypatch, loader, lambda chunk, times: chunk == 0 and times <= 3)
    for epoch in range(3):
        assert epoch_of(loader) == torchs(0, epoch)
        assert loader.report().feed.direct_reads == 16
    assert calls.count(0) == 4
    loader.close()


def test_a_file_that_could_not_be_read_is_opened_anew(tars: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As after the server of a network mount has started again: old descriptors read nothing any more."""
    data = open_data(tars)
    files = SourceFiles(data.layout, data.root, data.source)
    right = files.sample(0).tobytes()
    with monkeypatch.context() as patch:
        old = files._open[0]

        def stale(*_: Any) -> bytes:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

        patch.setattr(old, "read", stale)
        with pytest.raises(FormatError, match="Stale"):
            files.sample(0)
        assert files.sample(0).tobytes() == right


@pytest.mark.parametrize("reads", [False, True])
def test_a_batch_is_delivered_though_its_file_is_opened_anew_within_it(
    tars: list[str], monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    """`reads`: the old descriptor reads, and is stale after that."""
    data = open_data(tars)
    files = SourceFiles(data.layout, data.root, data.source)
    right = [bytes(found) for found in files.alone(np.arange(1))]
    old: Any = files._open[0]

    def stale(*_: Any) -> Any:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(old, "read", stale)
    if not reads:
        monkeypatch.setattr(old, "read_once", lambda *_: b"")
    monkeypatch.setattr(old, "_status", stale)
    monkeypatch.setattr("sentinel.data.retries.OUTAGE_S", 0.0)
    assert [bytes(found) for found in files.alone(np.arange(1))] == right


@pytest.mark.parametrize("unit", [16, "auto"])
def test_an_outage_of_the_store_is_waited_for(
    tars: list[str], unit: int | str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loader = loader_of(tars, unit=unit)
    batches = iter(loader)
    got = next(batches).tolist()
    waits: list[float] = []

    def fails(*_: Any) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            if sum(waits) > 20:
                patch.undo()

        patch.setattr("sentinel.data.retries.time", SimpleNamespace(sleep=sleep, monotonic=lambda: 100 + sum(waits)))
        patch.setattr(os, "pread", fails)
        got += [number for batch in batches for number in batch.tolist()]
    assert got == torchs(0, 0)
    assert [wait for wait in waits if wait >= 1] == [1, 2, 4, 8, 15]
    assert capsys.readouterr().err.count("it is tried again for up to 60 s") == 1
    loader.close()


def test_an_outage_without_an_end_is_an_error_and_one_that_comes_later_another(
    tars: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, now = open_data(tars), 1000.0
    files = SourceFiles(data.layout, data.root, data.source)

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr("sentinel.data.retries.time", SimpleNamespace(sleep=sleep, monotonic=lambda: now))
    monkeypatch.setattr(tried, "__defaults__", (sleep,))
    monkeypatch.setattr(LocalFile, "read", lambda *_: os.pread(-1, 1, 0))
    for lasts, until_next in ((60, 10), (0, 100), (60, 0)):
        began = now
        with pytest.raises(FormatError, match="Bad file descriptor"):
            list(files.alone(np.arange(1)))
        assert 0 <= now - began - lasts < 1, "which begins with the first read that failed each time"
        now += until_next
    assert not isinstance(cannot_be_read("a", "file", FileNotFoundError(errno.ENOENT, "gone")), OutageError)
    assert "check the URL" in str(cannot_be_read("s3://a/b", "file", OSError(errno.EIO, "500")))


def test_an_outage_soon_after_another_is_waited_for_too(monkeypatch: pytest.MonkeyPatch) -> None:
    now, ends = 1000.0, 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def read() -> float:
        if now < ends:
            raise OutageError("s3://a/b", "sample 1", "cannot be read: 503; check the URL, and that its store answers")
        return now

    monkeypatch.setattr("sentinel.data.retries.time", SimpleNamespace(sleep=sleep, monotonic=lambda: now))
    monkeypatch.setattr(tried, "__defaults__", (sleep,))
    endured = Outages().endured
    for _ in range(5):
        ends = now + 40
        assert endured(read) >= ends
        now += 10


@pytest.mark.parametrize("workers", [0, 2])
def test_a_chunk_that_cannot_be_read_costs_its_own_samples_only(
    tars: list[str], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = loader_of(tars, workers=workers)
    failing(monkeypatch, loader, lambda chunk, times: chunk == 3)
    for epoch in range(2):
        assert epoch_of(loader) == torchs(0, epoch)
    report = loader.report()
    served = report.all_epochs.served
    assert served.lost == report.feed.direct_reads
    assert 2 * 16 - 16 <= served.lost <= 2 * 16  # each sample of the chunk once an epoch; some may stay from one read
    assert any("reads failed" in said for said in report.caveats)
    assert report.all_epochs.served.late == 0
    loader.close()


def test_a_reader_that_ends_costs_time_only(tars: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of(tars)
    feeding = loader._feeding
    assert isinstance(feeding, FileFeeding)
    monkeypatch.setattr(feeding._arena, "put", lambda *_: 1 // 0)
    assert epoch_of(loader) == torchs(0, 0)
    report = loader.report()
    assert report.all_epochs.served.ended == report.feed.direct_reads == COUNT
    assert any("read one by one" in said for said in report.caveats)
    monkeypatch.undo()
    assert epoch_of(loader) == torchs(0, 1)
    assert loader.report().epoch.direct_reads == 0


def test_what_another_process_writes_to_the_memory_costs_time_only(tars: list[str]) -> None:
    """As any process of the same user can: it opens the memory by its path below /proc."""
    loader = loader_of(tars, workers=2)
    feeding = loader._feeding
    assert isinstance(feeding, FileFeeding)
    path = f"/proc/{os.getpid()}/fd/{feeding._arena.descriptor}"
    program = (
        "import sys, time, numpy as np\n"
        "chance, memory, last = np.random.default_rng(0), np.memmap(sys.argv[1], np.uint8, 'r+'), int(sys.argv[2])\n"
        "print('writes', flush=True)\n"
        "while not time.sleep(0.0005): memory[len(memory) - last + chance.integers(last, size=64)] ^= 1\n"
    )
    command = [sys.executable, "-c", program, path, str(feeding._arena.shape.parts[-1])]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writing:
        try:
            assert writing.stdout is not None
            assert writing.stdout.readline() == b"writes\n"
            began = time.monotonic()
            for epoch in count():
                assert epoch_of(loader) == torchs(0, epoch)
                assert time.monotonic() - began < LONGEST_S, "nothing was damaged"
                if epoch > 1 and loader.report().all_epochs.served.damaged:
                    break
        finally:
            writing.kill()
    served = loader.report().all_epochs.served
    assert served.damaged > 0
    assert any("another process wrote there" in said for said in loader.report().caveats)
    loader.close()


def test_a_reader_that_hangs_is_not_waited_for_for_ever(tars: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.data.staged_samples.PATIENCE_S", 0.05)
    monkeypatch.setattr("sentinel.data.chunk_reader.LONGEST_READ_S", 0.0)
    loader = loader_of(tars, batch_size=4)
    feeding = loader._feeding
    assert isinstance(feeding, FileFeeding)
    hangs, real = threading.Event(), feeding._reader._state.files.chunk
    monkeypatch.setattr(feeding._reader._state.files, "chunk", lambda *chunk: hangs.wait(LONGEST_S) and real(*chunk))
    batches = iter(loader)
    got = next(batches).tolist()
    assert loader.report().feed.direct_reads == 4
    hangs.set()
    got += [number for batch in batches for number in batch.tolist()]
    assert got == torchs(0, 0)


# Spawned workers are children of the trainer as forked ones are, and import torch each: those of a server are not.
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long), "forkserver"])
def test_workers_end_with_a_trainer_that_is_killed_though_nobody_reads_what_they_send(
    tars: list[str], tmp_path: Path, method: str
) -> None:
    """Each message is larger than a pipe. Workers have the trainer's output: it ends when the last of them has."""
    (tmp_path / "workers").mkdir()
    (tmp_path / "killed.py").write_text(
        "import os, signal, sys\n"
        "import sentinel.data, sentinel.data.loader_workers\n"
        "sentinel.data.loader_workers._GRACE_S = 0.5\n"
        "def words(sample):\n"
        f"    open({str(tmp_path / 'workers')!r} + f'/{{os.getpid()}}', 'w').close()\n"
        "    return b'word' * 2048\n"
        "if __name__ == '__main__':\n"
        "    batches = iter(sentinel.data.loader(sys.argv[2:], words, batch_size=32, memory='20%', workers=2,\n"
        "                                        collate_fn=list, multiprocessing_context=sys.argv[1]))\n"
        "    print(len(next(batches)), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, str(tmp_path / "killed.py"), method, *tars]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as trainer:
        try:
            assert trainer.communicate(timeout=LONGEST_S)[0] == b"32\n"
            assert trainer.returncode == -signal.SIGKILL
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(trainer.pid, signal.SIGKILL)
    workers = tuple(f"torch_{pid}_" for pid in os.listdir(tmp_path / "workers"))
    assert workers
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(workers)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_source_that_is_cut_short_ends_the_epoch_with_its_name(tars: list[str], workers: int) -> None:
    loader = loader_of(tars, workers=workers)
    os.truncate(tars[1], 512)
    with pytest.raises(FormatError, match="changed since it was indexed") as error:
        epoch_of(loader)
    assert error.value.path == tars[1]
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("unit", [16, "auto"])
def test_a_source_that_is_unlinked_in_mid_epoch_is_served_or_named(
    tars: list[str], workers: int, unit: int | str
) -> None:
    """Who has the file open reads on; who opens it then tells its name. No sample is another one's, and none is left
    out."""
    loader = loader_of(tars, unit=unit, workers=workers)
    batches, got = iter(loader), []
    got += next(batches).tolist()
    os.unlink(tars[1])
    try:
        got += [number for batch in batches for number in batch.tolist()]
    except FormatError as error:
        assert tars[1] in str(error)
        assert got == torchs(0, 0)[: len(got)]
    else:
        assert got == torchs(0, 0)
    loader.close()
    with pytest.raises(FormatError, match=os.path.basename(tars[1])):
        loader_of(tars)


def test_an_error_of_the_transform_is_the_users(tars: list[str]) -> None:
    def wrong(sample: dict[str, bytes]) -> int:
        raise RuntimeError("my own")

    for workers in (0, 2):
        loader = loader_of(tars, wrong, workers=workers, multiprocessing_context="fork" if workers else None)
        with pytest.raises(RuntimeError, match="my own"):
            epoch_of(loader)
        loader.close()


@pytest.mark.parametrize("left", [False, True])
def test_ctrl_c_while_workers_are_waited_for_costs_no_batch(
    tars: list[str], left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a batch, or for those of an iteration that was left: what they had still to send is nobody's."""
    loader = loader_of(tars, workers=2)
    batches = iter(loader)
    next(batches)

    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(loader._workers._iterator), "_get_data", interrupted)  # type: ignore[union-attr]
        with pytest.raises(KeyboardInterrupt):
            list(loader if left else batches)
    assert loader._workers is None  # they have ended
    assert epoch_of(loader) == torchs(0, 1)
    assert epoch_of(loader) == torchs(0, 2)
    loader.close()


@pytest.fixture
def limit() -> Iterator[Callable[..., None]]:
    """What is called in place of a function that a time limit meets: a handler of a signal raises TimeoutError."""

    def handler(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("the script's limit")

    before = signal.signal(signal.SIGUSR1, handler)
    yield lambda *_, **__: signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("left", [False, True])
def test_a_time_limit_while_workers_are_waited_for_costs_no_batch(
    tars: list[str], left: bool, monkeypatch: pytest.MonkeyPatch, limit: Callable[..., None]
) -> None:
    """It is a TimeoutError, as is what a lost worker leaves; no worker was lost."""
    loader = loader_of(tars, workers=2)
    batches = iter(loader)
    next(batches)
    with monkeypatch.context() as patch:
        patch.setattr(type(loader._workers._iterator), "_get_data", limit)  # type: ignore[union-attr]
        with pytest.raises(TimeoutError, match="the script's limit"):
            list(loader if left else batches)
    assert loader._workers is None
    assert epoch_of(loader) == torchs(0, 1)
    loader.close()


def test_a_time_limit_within_a_read_is_the_scripts(
    tars: list[str], monkeypatch: pytest.MonkeyPatch, limit: Callable[..., None]
) -> None:
    """Where each sample is read alone, as from the page cache."""
    loader = loader_of(tars, unit="auto")
    batches = iter(loader)
    next(batches)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", limit)
        with pytest.raises(TimeoutError, match="the script's limit"):
            list(batches)
    assert epoch_of(loader) == torchs(0, 1)
    loader.close()


def test_a_time_limit_is_never_taken_for_a_file_that_fails(
    tars: list[str], monkeypatch: pytest.MonkeyPatch, limit: Callable[..., None]
) -> None:
    data = open_data(tars)
    files = SourceFiles(data.layout, data.root, data.source)
    files.sample(0)
    opened_file = files._open[0]
    assert isinstance(opened_file, LocalFile)
    monkeypatch.setattr("sentinel.data.sources.stored_file.NAMED_S", 0.0)
    asked: list[tuple[str, Callable[[], object]]] = [
        ("pread", lambda: opened_file.read_once(0, 1)),
        ("pread", lambda: files.sample(0)),
        ("fstat", lambda: opened_file.is_as_indexed()),
        ("fstat", lambda: files.sample(0)),
        ("stat", lambda: opened_file.state()),
        ("open", lambda: LocalFile(tars[0])),
        ("posix_fadvise", lambda: expect_what_is_asked(opened_file)),
        ("preadv", lambda: in_page_cache(opened_file.descriptor, 0)),
        ("posix_fallocate", lambda: reserve(-1, 0, 1)),
    ]
    for name, question in asked:
        with monkeypatch.context() as patch:
            patch.setattr(os, name, limit)
            with pytest.raises(TimeoutError, match="the script's limit"):
                question()
    with pytest.raises(TimeoutError, match="the script's limit"):
        tried(limit)


@kills_a_worker
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("call", ["_try_put_index", "_process_data", "_try_get_data"])
def test_a_lost_worker_that_torch_tells_of_within_a_call_costs_time_only(
    tars: list[str], monkeypatch: pytest.MonkeyPatch, call: str, left: bool
) -> None:
    """Of its own it has a handler of SIGCHLD, which is no script's."""
    loader = loader_of(tars, workers=1)
    batches, delivered = iter(loader), []
    delivered += next(batches).tolist()
    iterator: Any = loader._workers._iterator  # type: ignore[union-attr]
    real, killed = getattr(iterator, call), []

    def kills(*given: Any) -> Any:
        if not killed:
            killed.append(iterator._workers[0].pid)
            os.kill(killed[0], signal.SIGKILL)
            time.sleep(LONGEST_S)  # the handler raises here
        return real(*given)

    monkeypatch.setattr(iterator, call, kills)
    if left:
        assert epoch_of(loader) == torchs(0, 1)
    else:
        assert delivered + [number for batch in batches for number in batch.tolist()] == torchs(0, 0)
    assert killed
    loader.close()


@kills_a_worker
def test_a_worker_killed_while_it_sends_what_is_not_waited_for(tars: list[str]) -> None:
    """The iteration was left: what its workers are at is waited for before the next one begins."""
    loader = loader_of(tars, numbered_bytes, collate_fn=list, workers=1, prefetch_factor=4)
    next(iter(loader))
    worker = until_it_sends(loader)
    os.kill(worker.pid, signal.SIGKILL)
    worker.join(timeout=600)
    assert [number for batch in loader for number, _ in batch] == torchs(0, 1)
    loader.close()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("leaves", [False, True])
def test_a_read_that_never_ends_holds_up_no_end(
    tars: list[str], monkeypatch: pytest.MonkeyPatch, workers: int, leaves: bool
) -> None:
    """Of an epoch, of an iteration that is left, and of a loader; what it brings later is written nowhere."""
    monkeypatch.setattr("sentinel.data.staged_samples.PATIENCE_S", 0.1)
    monkeypatch.setattr("sentinel.data.chunk_reader.LONGEST_READ_S", 0.3)
    loader = loader_of(tars, workers=workers)
    feeding = loader._feeding
    assert isinstance(feeding, FileFeeding)
    files, arena = feeding._reader._state.files, feeding._arena
    real, ends, held = files.chunk, threading.Event(), []

    def chunk(*given: Any) -> Any:
        if not held and threading.current_thread().name == "sentinel reader":
            held.append(threading.current_thread())
            ends.wait(LONGEST_S)
        return real(*given)

    monkeypatch.setattr(files, "chunk", chunk)
    began = time.monotonic()
    got = []
    for batch in loader:
        got += batch.tolist()
        if leaves and len(got) > 64:
            break
    if leaves:
        loader.set_epoch(1)
    else:
        assert got == torchs(0, 0)
    assert epoch_of(loader) == torchs(0, 1)
    loader.close()
    assert time.monotonic() - began < LONGEST_S, "it was waited for"
    assert held[0].is_alive()
    before = arena.pages.copy()
    ends.set()
    held[0].join(LONGEST_S)
    assert np.array_equal(arena.pages, before)


def test_a_batch_counts_as_received_once_nothing_is_waited_for(
    tars: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C, while the end of an epoch waits for reads."""
    loader = loader_of(tars)

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loader._feeding, "finish", interrupted)
    got: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        got.extend(number for batch in loader for number in batch.tolist())
    assert loader.state_dict()["delivered"] == len(got)
    loader.close()


def test_close_in_a_forked_child_leaves_the_readers_epoch_alone(tars: list[str]) -> None:
    loader = loader_of(tars)
    batches = iter(loader)
    next(batches)
    if (child := os.fork()) == 0:
        with contextlib.suppress(BaseException):
            loader.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    for _ in batches:
        pass
    assert loader.report().headline["ended"] == 0
    loader.close()


def said_in_a_child(does: Callable[[], object]) -> str:
    """What UsageError it raises in a forked child."""
    told, tells = os.pipe()
    if (child := os.fork()) == 0:
        try:
            does()
        except UsageError as error:
            os.write(tells, str(error).encode())
        finally:
            os._exit(0)
    os.close(tells)
    assert os.waitpid(child, 0)[1] == 0
    with open(told) as file:
        return file.read()


def test_a_loader_delivers_nothing_in_a_forked_child(tars: list[str]) -> None:
    """Both processes would use one memory, and the pipes of the same workers."""
    said = f"this loader belongs to process {os.getpid()}, which made it; make one in this process"
    for workers in (0, 1):
        loader = loader_of(tars, workers=workers)
        batches = iter(loader)
        got = next(batches).tolist()
        assert said_in_a_child(lambda loader=loader: next(iter(loader))) == said  # type: ignore[misc]
        assert said_in_a_child(lambda batches=batches: next(batches)) == said  # type: ignore[misc]
        assert got + [number for batch in batches for number in batch.tolist()] == torchs(0, 0)
        assert loader.report().headline["direct_reads"] == 0
        loader.close()


def test_samples_are_placed_in_no_forked_child_but_workers_fetch_them(tars: list[str]) -> None:
    samples = Samples(tars, number_of, memory="20%", unit=16)
    sampler = OrderSampler(samples)
    fed = DataLoader(samples, batch_size=32, sampler=sampler, num_workers=1, multiprocessing_context="fork")
    numbers = iter(sampler)
    next(numbers)
    for does in (lambda: next(numbers), lambda: next(iter(sampler))):
        assert "the memory of these samples belongs to process" in said_in_a_child(does)
    sampler.set_epoch(0)
    assert [number for batch in fed for number in batch.tolist()] == torchs(0, 0)
    samples.close()


def test_samples_of_a_forked_child_that_exits_leave_the_reader_alone(tars: list[str]) -> None:
    samples = Samples(tars, number_of, memory="20%", unit=16)
    sampler = OrderSampler(samples)
    got = []
    for number, batch in enumerate(DataLoader(samples, batch_size=32, sampler=sampler)):
        got += batch.tolist()
        if number == 2:
            if (child := os.fork()) == 0:
                with contextlib.suppress(BaseException):
                    weakref.finalize._exitfunc()  # type: ignore[attr-defined]  # as sys.exit would
                os._exit(0)
            os.waitpid(child, 0)
            assert samples._feeding._arena.counters[RUNNING]  # type: ignore[attr-defined]
    assert got == torchs(0, 0)
    samples.close()
