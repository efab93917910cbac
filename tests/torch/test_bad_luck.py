"""Training from a file where disk, limits, signals or the user interfere: it costs time, and a sentence, no byte."""

from __future__ import annotations

import ctypes
import errno
import functools
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel  # noqa: E402
from sentinel.reports import StorageFigures  # noqa: E402
from sentinel.session.storage_figures import alarms, notes_on  # noqa: E402
from sentinel.system import limits, native  # noqa: E402
from sentinel.tiers.ahead import ahead_counters  # noqa: E402
from sentinel.tiers.file_tier import FileTier  # noqa: E402
from sentinel.tiers.frames import FRAME_BYTES  # noqa: E402
from sentinel.tiers.pool_cap import taken_bytes  # noqa: E402
from tests.processes import LONGEST_S, until  # noqa: E402
from tests.torch.unlucky_training import (  # noqa: E402
    BUDGET,
    LOOK,
    At,
    before,
    begin,
    read_by_numpy,
    read_by_operators,
    read_in_a_child,
    train,
)
from tests.unlucky import Calls, Unlucky, Way  # noqa: E402

pytestmark = pytest.mark.needs("torch", "compiler", "native")
STEPS = 5


@pytest.fixture
def unlucky(unlucky_library: Path) -> Iterator[Unlucky]:
    made = Unlucky(unlucky_library)
    yield made
    made.end()


@functools.cache
def stock(steps: int) -> dict[str, Any]:
    assert not sentinel.active()
    return train(steps)


def trained(scratch: Path, at: At, steps: int = STEPS, **more: Any) -> tuple[StorageFigures, str]:
    """Bit-identically. What the report says, in figures and in sentences."""
    expected = stock(steps)
    begin(scratch, **more)
    assert train(steps, at) == expected
    setup = sentinel.report().setup
    sentinel.stop()
    assert setup.storage is not None
    return setup.storage, " ".join(setup.notes)


@contextmanager
def lowered(limit: str, amount: int) -> Iterator[None]:
    number = getattr(resource, limit)
    before = resource.getrlimit(number)
    if before[0] != resource.RLIM_INFINITY and amount > before[0]:
        pytest.skip(f"needs {limit} above {amount}")
    resource.setrlimit(number, (amount, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(number, before)


def addresses_in_use() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def private_bytes() -> int:
    """What counts against RLIMIT_DATA."""
    found = re.search(r"VmData:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def descriptors_in_use() -> int:
    """None below is free."""
    free = os.dup(0)
    os.close(free)
    return free


@pytest.mark.parametrize(
    ("code", "says"),
    [(errno.ENOSPC, "more room"), (errno.EDQUOT, "a larger quota"), (errno.EIO, "the kernel's log (dmesg)")],
)
def test_what_can_no_longer_be_written_stays(
    code: int, says: str, scratch: Path, unlucky: Unlucky, capsys: pytest.CaptureFixture[str]
) -> None:
    told, notes = trained(scratch, before(2, lambda: unlucky.order(Way.FAIL, Calls.WRITES, code)))
    assert told.failed_writes > 0
    assert told.write_failure == code
    said = " ".join(capsys.readouterr().err.split())
    for text in (notes, said):
        assert f"to the file in {scratch} failed ({os.strerror(code)}). No byte is lost: what could not leave" in text
        assert says in text
    assert said.count("No byte is lost") == 1
    assert "raise fast" not in notes


def test_what_can_no_longer_be_read_in_large_transfers_is_read_by_the_kernel(
    scratch: Path, unlucky: Unlucky, capsys: pytest.CaptureFixture[str]
) -> None:
    told, notes = trained(scratch, before(2, lambda: unlucky.order(Way.FAIL, Calls.READS, errno.EIO)))
    assert told.failed_reads > 0
    for text in (notes, " ".join(capsys.readouterr().err.split())):
        assert f"from the file in {scratch} failed (Input/output error). No byte is lost: the kernel read" in text


NUMBERS = {"x86_64": (295, 296, 9, 10), "aarch64": (69, 70, 222, 226)}[os.uname().machine]
FAILING = {
    name: (number, code)
    for name, number, code in zip(
        ("preadv", "pwritev", "mmap", "mprotect"),
        NUMBERS,
        (errno.EIO, errno.ENOSPC, errno.ENOMEM, errno.ENOMEM),
        strict=True,
    )
}


@pytest.mark.parametrize("places", [5, pytest.param(12, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", FAILING)
def test_a_call_that_fails_at_any_place_loses_nothing(name: str, places: int, scratch: Path) -> None:
    """One call of a training, in each of `places` trainings another one."""
    number, code = FAILING[name]
    fail = native.function("sn_system_fail", ctypes.c_uint64, ctypes.c_long, ctypes.c_uint64, ctypes.c_int)
    more_than_there_are = 1 << 40
    expected = stock(3)

    def left(nth: int) -> int:
        """Of `nth` calls, those that a training did not come to."""
        begin(scratch)
        fail(number, nth, code)
        try:
            assert train(3) == expected, f"call {nth}"
        finally:
            uncalled = fail(number, 0, 0)
        sentinel.stop()
        return int(uncalled)

    calls = more_than_there_are - left(more_than_there_are)
    # threads take turns in other ways each time: the last ones may not come
    assert 0 in [left(nth) for nth in range(1, calls + 1, -(-calls // places))]


def test_a_quota_that_is_too_small_is_named(scratch: Path) -> None:
    expected = stock(2)
    fallocate = {"x86_64": 285, "aarch64": 47}[os.uname().machine]
    native.library().sn_system_fail(fallocate, 1, errno.EDQUOT)
    with pytest.raises(sentinel.SentinelError, match=r"reserving room in the file .*a larger quota"):
        begin(scratch)
    assert not sentinel.active()
    assert train(2) == expected


@pytest.mark.parametrize(
    ("calls", "code", "says"),
    [
        (Calls.MEMORY, errno.EPERM, r"memory of frames \(memfd_create\); allow that system call: rules"),
        (Calls.MEMORY, errno.ENOSYS, r"memory of frames \(memfd_create\); allow that system call: the kernel lacks"),
        (Calls.FILES, errno.EROFS, r"a file in the directory \(open\); name .* this one is mounted read-only"),
    ],
)
def test_a_call_that_the_host_refuses_is_named(
    calls: Calls, code: int, says: str, scratch: Path, unlucky: Unlucky
) -> None:
    expected = stock(2)
    unlucky.order(Way.FAIL, calls, code)
    with pytest.raises(sentinel.TierError, match=says) as refused:
        begin(scratch)
    assert refused.value.errno == code
    assert os.strerror(code) in str(refused.value)
    assert not sentinel.active()
    assert train(2) == expected
    unlucky.order(Way.AS_EVER)
    begin(scratch)  # nothing of the one before is in the way
    assert train(2) == expected


READ_ONLY = """
import sys, sentinel
try:
    sentinel.start_profile(fast="8MiB", slow="file:" + sys.argv[1])
except sentinel.UsageError as refused:
    print(refused)
assert not sentinel.active()
"""


def test_a_directory_that_is_mounted_read_only_is_named(scratch: Path) -> None:
    mounts = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1"'
    alone = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    tried = [*alone, mounts, "sh", str(scratch)]
    if shutil.which("unshare") is None or subprocess.run(tried, check=False, timeout=300).returncode:
        pytest.skip("needs name spaces of mounts: unshare --user --map-root-user --mount")
    command = [*alone, f'{mounts} && exec "$2" -c "$3" "$1"', "sh", str(scratch), sys.executable, READ_ONLY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{scratch} is on a file system that is mounted read-only" in " ".join(done.stdout.split())


def test_short_transfers_and_interrupted_ones_go_on(scratch: Path, unlucky: Unlucky) -> None:
    told, notes = trained(scratch, before(1, lambda: unlucky.order(Way.FITFUL)))
    assert unlucky.told("seen") > 50
    assert (told.failed_reads, told.failed_writes, told.failed, told.refused) == (0, 0, 0, 0)
    assert "No byte is lost" not in notes


@pytest.mark.slow
def test_a_disk_that_becomes_50_times_slower_costs_time(
    scratch: Path, unlucky: Unlucky, capsys: pytest.CaptureFixture[str]
) -> None:
    def at(step: int, model: Any) -> None:
        if step == 9:
            for _ in range(8):  # soon nobody needs to be written before he leaves
                read_by_operators(model)
        if step == 10:
            known = ahead_counters()
            assert known.read_alone_bytes > 0
            ns_per_kib = 1024 * known.read_alone_ns / known.read_alone_bytes
            unlucky.order(Way.SLOW, amount=int(50 * ns_per_kib * 2) + 1)  # two threads read
        if step == 11:
            until(lambda: is_slow(model))

    def is_slow(model: Any) -> bool:
        read_by_operators(model)
        now = ahead_counters()
        return now.read_alone_bytes * now.read_lately_ns > 40 * now.read_lately_bytes * now.read_alone_ns > 0

    told, notes = trained(scratch, at, steps=12)
    assert (told.failed_reads, told.failed_writes) == (0, 0)
    if not told.direct:
        pytest.skip("needs a file system with direct transfers")
    for text in (notes, " ".join(capsys.readouterr().err.split())):
        assert f"The disk of {scratch} has become slow: it was read at" in text


def test_a_disk_that_is_slow_from_the_start_has_not_become_slow() -> None:
    tier = FileTier("/data", 8 << 20, 128 << 20)
    same = dict.fromkeys(("read_alone_bytes_per_s", "read_lately_bytes_per_s"), 10 << 20)
    known = StorageFigures(**{name: "" if name == "too_large_by" else 0 for name in StorageFigures._fields})
    known = known._replace(direct=True)
    assert alarms(known._replace(**same), tier) == {}
    assert alarms(known._replace(read_alone_bytes_per_s=100 << 20), tier) == {}  # there was no other
    found = alarms(known._replace(**same)._replace(read_alone_bytes_per_s=101 << 20), tier)
    assert list(found) == ["reads are slow"]
    through_the_cache = known._replace(**same)._replace(read_alone_bytes_per_s=101 << 20, direct=False)
    assert alarms(through_the_cache, tier) == {}  # that is fast at first, and no disk
    assert "at 101.00 MiB/s, and last at 10.00 MiB/s" in found["reads are slow"]


def test_a_job_of_small_tensors_is_not_told_to_take_more_steps() -> None:
    tier = FileTier("/data", 8 << 20, 128 << 20)
    known = StorageFigures(**{name: "" if name == "too_large_by" else 0 for name in StorageFigures._fields})
    small = notes_on(known, tier, unnamed_bytes=0, hourly_bytes=7, beside=())
    assert small[0].startswith("No tensor had 1.00 MiB or more")
    had, refused = known._replace(tensor_peak_bytes=1 << 20), known._replace(refused=1)
    for figures, unnamed_bytes, left_bytes in ((had, 0, 0), (refused, 0, 0), (known, 1 << 20, 0), (known, 0, 1 << 20)):
        told = notes_on(figures, tier, unnamed_bytes=unnamed_bytes, hourly_bytes=7, beside=(), left_bytes=left_bytes)
        assert told[0].startswith("No step was recorded")
        stepped = figures._replace(step_ns=1)  # data is large, and nothing that a step uses
        told = notes_on(stepped, tier, unnamed_bytes=unnamed_bytes, hourly_bytes=7, beside=(), left_bytes=left_bytes)
        assert told[0].startswith("No operator of a training step used a tensor of 1.00 MiB or more")
    assert notes_on(known, tier, 0, 7, (), left_bytes=(1 << 20) - 1)[0].startswith("No tensor had 1.00 MiB or more")


def test_memory_beyond_the_budget_is_told_before_what_is_written() -> None:
    """Of all notes a terminal shows the first few only."""
    tier = FileTier("/data", 8 << 20, 128 << 20)
    known = StorageFigures(**{name: "" if name == "too_large_by" else 0 for name in StorageFigures._fields})
    figures = known._replace(recorded=1, refused=9, refused_bytes=857 << 20, written_bytes=1 << 30, direct=True)
    figures = figures._replace(matched=1, missed=9)  # as a validation makes them
    well = "overlap_optimizer: all is well."
    first, *rest = notes_on(figures, tier, 0, 7, (well,), foreign_bytes=8 << 20)
    assert first == "9 allocations (857.00 MiB added up) found no room and took memory beyond the budget; raise fast"
    assert well in rest
    assert any("are written to the disk" in told for told in rest)


def test_a_directory_that_vanishes_is_missed_by_the_next_session_only(scratch: Path) -> None:
    place = scratch / "gone"
    place.mkdir()

    def at(step: int, model: Any) -> None:
        if step == 2:
            place.rmdir()
            assert read_in_a_child(model) == read_by_numpy(model)

    told, _ = trained(place, at)
    assert told.written_bytes > 0
    assert told.fork_bytes > 0
    with pytest.raises(sentinel.UsageError, match="gone is not a directory"):
        begin(place)


def test_a_limit_on_files_that_comes_late_is_named(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as until_its_end:
        limit = lowered("RLIMIT_FSIZE", 4 << 20)
        told, notes = trained(scratch, before(2, lambda: until_its_end.enter_context(limit)))
    assert told.failed_writes > 0
    for text in (notes, " ".join(capsys.readouterr().err.split())):
        assert "failed (File too large)" in text
        assert "ulimit -f" in text


def test_steps_and_forks_need_no_addresses(scratch: Path) -> None:
    def at(step: int, model: Any) -> None:
        if step == 2:
            until_its_end.enter_context(lowered("RLIMIT_AS", addresses_in_use() + (16 << 20)))
        if step == 3:
            assert read_in_a_child(model) == read_by_numpy(model)

    with ExitStack() as until_its_end:
        told, _ = trained(scratch, at)
    assert (told.failed, told.refused, told.failed_writes) == (0, 0, 0)
    assert told.fork_bytes > 0


def test_a_fork_without_descriptors_is_told(scratch: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Steps need none."""

    def at(step: int, model: Any) -> None:
        if step == 2:
            reader, writer = os.pipe()
            with lowered("RLIMIT_NOFILE", descriptors_in_use()):
                if (pid := os.fork()) == 0:
                    os.write(writer, b"x")
                    os._exit(0)
                ended.append(os.waitpid(pid, 0)[1])
            os.close(writer)
            ended.append(len(os.read(reader, 1)))
            os.close(reader)
        if step == 3:
            steps.enter_context(lowered("RLIMIT_NOFILE", descriptors_in_use()))
        if step == 4:
            steps.close()

    ended: list[int] = []
    with ExitStack() as steps:
        told, _ = trained(scratch, at)
    assert ended == [1 << 8, 0]  # it ended itself before it came to user code
    assert "allow more open files (ulimit -n)" in capfd.readouterr().err
    assert (told.failed, told.refused) == (0, 0)


@pytest.mark.parametrize(
    ("limit", "amount", "says"),
    [
        ("RLIMIT_FSIZE", lambda: 1 << 20, "ulimit -f"),
        ("RLIMIT_NOFILE", descriptors_in_use, "ulimit -n"),
        ("RLIMIT_AS", lambda: addresses_in_use() + (64 << 20), "ulimit -v"),
        ("RLIMIT_DATA", lambda: private_bytes() + (100 << 20), r"\(ulimit -d, .* no more than file:.*=7[024]MiB"),
    ],
)
def test_a_limit_refuses_a_session_by_name(limit: str, amount: Callable[[], int], says: str, scratch: Path) -> None:
    expected = stock(2)
    begin(scratch)  # what is made once in a process is there
    sentinel.stop()
    with lowered(limit, amount()), pytest.raises(sentinel.SentinelError, match=says):
        begin(scratch)
    assert not sentinel.active()
    assert train(2) == expected


def test_a_full_file_is_told_with_a_size_that_would_do(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody leaves for tensors that the file has no room for."""
    expected = stock(STEPS)
    sentinel.start_profile(fast=24 << 20, slow=f"file:{scratch}=24MiB")
    assert train(STEPS) == expected
    setup = sentinel.report().setup
    sentinel.stop()
    assert setup.storage is not None
    assert setup.storage.file_full > 0
    assert setup.storage.refused > 0
    assert setup.storage.written_bytes == 0
    notes, said = " ".join(setup.notes), " ".join(capsys.readouterr().err.split())
    assert "raise fast" not in notes
    assert said.count("is full") == 1
    for text in (notes, said):
        enough = re.search(rf"allow at least (file:{re.escape(str(scratch))}=\d+MiB)", text)
        assert enough is not None
        sentinel.start_profile(fast=24 << 20, slow=enough[1])
        assert train(STEPS) == expected
        told = sentinel.report().setup.storage
        sentinel.stop()
        assert told is not None
        assert (told.file_full, told.refused) == (0, 0)
        assert told.written_bytes > 0


def test_a_full_file_that_a_limit_keeps_small_is_told_with_the_limit(
    scratch: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size that would do is refused until the limit is raised."""
    with monkeypatch.context() as limited:
        limited.setattr(limits, "private_memory_left", lambda: 72 << 20)
        sentinel.start_profile(fast=24 << 20, slow=f"file:{scratch}=24MiB")
        train(STEPS)
        notes = " ".join(sentinel.report().setup.notes)
        sentinel.stop()
        for text in (notes, " ".join(capsys.readouterr().err.split())):
            assert "allow at least" not in text
            found = re.search(
                r"; (file:\S+=\d+MiB) would do, but at the start, .*\(ulimit -d, .*: enough for 54\.00 MiB; raise that"
                r" limit",
                text,
            )
            assert found is not None
        with pytest.raises(sentinel.UsageError, match=r"enough for 54\.00 MiB"):
            sentinel.start_profile(fast=24 << 20, slow=found[1])
    sentinel.start_profile(fast=24 << 20, slow=found[1])
    train(STEPS)
    told = sentinel.report().setup.storage
    sentinel.stop()
    assert told is not None
    assert (told.file_full, told.refused) == (0, 0)


def test_a_limit_on_private_memory_makes_a_file_smaller(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the file holds is mapped so that stores make pages of the process's own: the kernel counts all of it."""
    expected = stock(STEPS)
    with lowered("RLIMIT_DATA", private_bytes() + (400 << 20)):
        sentinel.start_profile(fast=BUDGET, slow=f"file:{scratch}")
        assert train(STEPS) == expected
        setup = sentinel.report().setup
        sentinel.stop()
    assert setup.storage is not None
    assert 200 << 20 < setup.storage.file_bytes <= 300 << 20
    assert setup.storage.written_bytes > 0
    for text in (" ".join(setup.notes), " ".join(capsys.readouterr().err.split())):
        assert re.search(r"The file is [23]\d\d.00 MiB: .* private memory, .*\(ulimit -d, .* raise that limit", text)


@pytest.mark.parametrize("capped", [False, True])
def test_with_as_much_memory_as_tensors_take_nothing_moves(capped: bool, scratch: Path) -> None:
    peak = trained(scratch, lambda *_: None, fast="128MiB")[0].tensor_peak_bytes
    most = -(-peak // FRAME_BYTES) * FRAME_BYTES
    more = {"cap": (taken_bytes() + most + (256 << 20)) * 8 // 7} if capped else {}
    told, _ = trained(scratch, lambda *_: None, fast=most, **more)
    assert told.pool_bytes == told.most_pool_bytes == told.least_pool_bytes == most
    assert (told.read_bytes, told.written_bytes, told.dropped_granules, told.refused) == (0, 0, 0, 0)


def test_a_foreign_thread_forks_within_a_transfer(scratch: Path, unlucky: Unlucky) -> None:
    found: dict[str, Any] = {}

    def at(step: int, model: Any) -> None:
        if step != 2:
            return
        unlucky.let_go_at_fork()
        unlucky.order(Way.HOLD)
        reader = threading.Thread(target=read_by_operators, args=(model,))
        forker = threading.Thread(target=lambda: found.update(child=read_in_a_child(model)))
        reader.start()
        until(lambda: unlucky.told("held"))
        forker.start()
        for thread in (forker, reader):
            thread.join(LONGEST_S)
        found["own"] = read_by_numpy(model)

    told, _ = trained(scratch, at)
    assert unlucky.told("held_at_fork") > 0
    assert found["child"] == found["own"]
    assert told.failed == told.refused == 0


def test_a_program_that_a_session_starts_has_nothing_of_it(scratch: Path, unlucky: Unlucky) -> None:
    def at(step: int, model: Any) -> None:
        if step != 2:
            return
        unlucky.let_go_at_fork()  # where Python does not start programs by vfork
        unlucky.order(Way.HOLD)
        reader = threading.Thread(target=read_by_operators, args=(model,))
        reader.start()
        until(lambda: unlucky.told("held"))
        command = [sys.executable, "-c", LOOK, str(scratch)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600, check=True, close_fds=False)
        unlucky.order(Way.AS_EVER)
        reader.join(LONGEST_S)
        assert json.loads(done.stdout) == []

    trained(scratch, at)
