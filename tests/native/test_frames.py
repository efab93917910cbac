"""Frames seen from Python; their own tests (kernel_profiler/tests/test_frames*.cpp) have the rest."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sentinel.core.errors import NativeError, TierError, UsageError
from sentinel.system import limits, native
from sentinel.system.disks import disk_of, mount_of
from sentinel.tiers.frames import FRAME_BYTES, Counters, Frames, State
from tests.driven_frames import DrivenFrames
from tests.processes import LONGEST_S

pytestmark = pytest.mark.needs("native")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def frames(folder: Path) -> Iterator[DrivenFrames]:
    made = DrivenFrames(folder, frames=4, granules=10, regions=20)
    yield made
    native.library().sn_system_fail(-1, 0, 0)
    made.close()


def test_frames_give_memory_back_and_get_it_anew(frames: DrivenFrames) -> None:
    frames.attach(0, 4)
    for granule in range(4):
        _write(frames, granule, granule + 1)
    frames.resize(1)
    assert [state == State.AWAY for state in frames.states()[:4]].count(True) == 3
    assert all(_holds(frames, granule, granule + 1) for granule in range(4))
    with pytest.raises(TierError, match="making 5 frames of those that have memory"):
        frames.resize(5)
    frames.need(frames.facts().base, 4 * FRAME_BYTES, writes=True)
    assert all(_holds(frames, granule, granule + 1) for granule in range(4))


def _write(frames: DrivenFrames, granule: int, value: int) -> None:
    ctypes.memset(frames.facts().base + granule * FRAME_BYTES, value, FRAME_BYTES)


def _holds(frames: DrivenFrames, granule: int, value: int) -> bool:
    found = ctypes.string_at(frames.facts().base + granule * FRAME_BYTES, FRAME_BYTES)
    return found == bytes([value]) * FRAME_BYTES


def test_what_was_made_is_told(frames: DrivenFrames, folder: Path) -> None:
    facts, disk = frames.facts(), disk_of(folder)
    assert (facts.frames, facts.granules, facts.regions) == (4, 10, 20)
    assert facts.pool_bytes == pytest.approx(4 * FRAME_BYTES, rel=0.01)
    assert facts.unnamed == disk.unnamed
    assert facts.direct <= disk.direct
    assert frames.states() == [State.ABSENT] * 10
    counters = frames.counters()
    assert (counters.free_frames, counters.free_regions, counters.in_state[:]) == (4, 20, [10, *[0] * 6])
    assert not any(getattr(counters, field[0]) for field in Counters._fields_[3:])


def test_the_kernel_counts_as_many_resident_bytes_as_were_promised(frames: DrivenFrames) -> None:
    frames.attach(0, 4)
    for granule in range(4):
        _write(frames, granule, granule)
    assert _pss_of("memfd:sentinel-frames") == pytest.approx(4 * FRAME_BYTES, rel=0.01)


def _pss_of(name: str) -> int:
    """Bytes of a file that this process has mapped, a page that is mapped twice counted once."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split(maxsplit=1)[0]
        if not first.endswith(":"):
            inside = name in line
        elif inside and first == "Pss:":
            total += int(line.split()[1]) * 1024
    return total


def test_more_than_there_is_memory_for_is_right_whenever_it_is_needed(frames: DrivenFrames) -> None:
    base, order = frames.facts().base, random.Random(7)
    for granule in range(10):
        frames.attach(granule, 1)
        _write(frames, granule, granule)
    for _ in range(30):
        first, count = order.randrange(8), order.randrange(1, 3)
        frames.need(base + first * FRAME_BYTES, count * FRAME_BYTES, writes=order.random() < 0.5)
        assert all(_holds(frames, granule, granule) for granule in range(first, first + count))
        states = frames.states()
        assert sum(state in (State.DIRTY, State.CLEAN) for state in states) <= 4
    assert all(_holds(frames, granule, granule) for granule in range(10))  # away ones too
    counters = frames.counters()
    assert counters.dropped > 0
    assert counters.read_bytes > 0


def test_transfers_go_on_beside_the_program(frames: DrivenFrames) -> None:
    frames.attach(0, 4)
    for granule in range(4):
        _write(frames, granule, 40 + granule)
    out = frames.collect(frames.leave(0, 4))
    assert (out.moved, out.stayed, out.errno) == (4, 0, 0)
    assert out.stop_ns > out.start_ns
    arriving = frames.arrive(1, 2)
    frames.cancel(arriving)
    done = frames.collect(arriving)
    assert done.moved + done.stayed == 2
    assert all(_holds(frames, granule, 40 + granule) for granule in range(4))
    with pytest.raises(NativeError):
        frames.collect(arriving)


def test_a_full_disk_leaves_the_bytes_in_memory(frames: DrivenFrames) -> None:
    frames.attach(0, 4)
    for granule in range(4):
        _write(frames, granule, granule)
    writev = {"x86_64": 296, "aarch64": 70}[os.uname().machine]
    native.library().sn_system_fail(writev, 1, errno.ENOSPC)
    out = frames.collect(frames.leave(0, 4))
    assert out.stayed > 0
    assert out.errno == errno.ENOSPC
    assert all(_holds(frames, granule, granule) for granule in range(4))
    assert frames.collect(frames.leave(0, 4)).errno == 0


def test_what_does_not_fit_is_refused_with_what_would_help(frames: DrivenFrames) -> None:
    with pytest.raises(TierError, match="giving frames to 5 granules") as told:
        frames.attach(0, 5)
    assert told.value.errno == errno.ENOSPC
    frames.attach(0, 4)
    with pytest.raises(NativeError):
        frames.need(frames.facts().base + 9 * FRAME_BYTES, 1)  # nothing is there


def test_a_child_reads_what_was_there_and_is_told_that_it_has_no_frames(frames: DrivenFrames) -> None:
    for granule in range(10):
        frames.attach(granule, 1)
        _write(frames, granule, granule)
    go, let = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(go, 1)
        right = all(_holds(frames, granule, granule) for granule in range(10))
        with pytest.raises(NativeError) as told:
            frames.attach(0, 1)
        frames.close()
        os._exit(0 if right and told.value.errno == errno.ECHILD else 1)
    assert frames.counters().generations == 1
    for granule in range(10):
        frames.need(frames.facts().base + granule * FRAME_BYTES, 1, writes=True)
        _write(frames, granule, 100 + granule)
    os.write(let, b"x")
    assert os.waitpid(pid, 0)[1] == 0
    os.close(go)
    os.close(let)
    assert all(_holds(frames, granule, 100 + granule) for granule in range(10))
    assert frames.counters().generations == 0


@pytest.mark.parametrize(
    ("place", "code", "says"),
    [
        ("missing", errno.ENOENT, "name a directory that exists"),
        ("file", errno.ENOTDIR, "name a directory"),
        ("/dev/shm", errno.EMEDIUMTYPE, "in memory"),
    ],
)
def test_a_place_that_will_not_do_is_named(folder: Path, place: str, code: int, says: str) -> None:
    if place == "/dev/shm" and not (Path(place).is_dir() and disk_of(place).in_memory):
        pytest.skip("needs a file system in memory at /dev/shm")
    if place == "file":
        (folder / place).touch()
    with pytest.raises(TierError, match=says) as told:
        Frames(folder / place, frames=1, granules=1, regions=1)
    assert told.value.errno == code
    assert str(folder / place) in str(told.value)


@pytest.mark.parametrize("wrong", [{"frames": 0}, {"granules": 1 << 32}, {"regions": -1}])
def test_counts_that_make_no_sense_are_refused(folder: Path, wrong: dict[str, int]) -> None:
    counts = {"frames": 1, "granules": 1, "regions": 1} | wrong
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Frames(folder, **counts)


def test_more_granules_than_the_kernel_maps_are_refused(folder: Path) -> None:
    most = limits.most_mappings()
    assert most == int(Path("/proc/sys/vm/max_map_count").read_text())
    with pytest.raises(TierError, match=r"sysctl vm\.max_map_count") as told:
        Frames(folder, frames=1, granules=most, regions=1)
    assert told.value.errno == errno.E2BIG


_LIMITED = """
import resource, sys
from sentinel.core.errors import TierError
from sentinel.system import native
from sentinel.tiers.frames import Frames
native.library()
resource.setrlimit(getattr(resource, sys.argv[2]), (int(sys.argv[3]),) * 2)
try:
    Frames(sys.argv[1], frames=64, granules=64, regions=64)
except TierError as refused:
    print(refused.errno, refused)
"""


@pytest.mark.parametrize(
    ("limit", "amount", "code", "says"),
    [
        ("RLIMIT_FSIZE", 1 << 20, errno.EFBIG, "ulimit -f"),
        ("RLIMIT_NOFILE", 4, errno.EMFILE, "ulimit -n"),
        ("RLIMIT_AS", 100 << 20, errno.ENOMEM, "ulimit -v"),
    ],
)
def test_limits_of_the_process_are_named(folder: Path, limit: str, amount: int, code: int, says: str) -> None:
    command = [sys.executable, "-c", _LIMITED, str(folder), limit, str(amount)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.startswith(f"{int(code)} ")
    assert says in done.stdout
    assert list(folder.glob(".sentinel*")) == []


_KILLED = """
import ctypes, sys, time
from sentinel.tiers.frames import FRAME_BYTES
from tests.driven_frames import DrivenFrames
frames = DrivenFrames(sys.argv[1], frames=4, granules=8, regions=8)
for granule in range(8):
    frames.attach(granule, 1)
    ctypes.memset(frames.facts().base + granule * FRAME_BYTES, granule, FRAME_BYTES)
frames.leave(0, 8)
print("there", flush=True)
time.sleep(3600)
"""


def test_a_killed_process_leaves_no_file(folder: Path) -> None:
    command = [sys.executable, "-c", _KILLED, str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "there\n"
        process.send_signal(signal.SIGKILL)
        process.wait(LONGEST_S)
    assert not list(folder.iterdir())


_LOST = """
import ctypes, os, sys
from sentinel.tiers.frames import FRAME_BYTES
from tests.driven_frames import DrivenFrames
frames = DrivenFrames(sys.argv[1], frames=2, granules=2, regions=2)
frames.attach(0, 2)
frames.collect(frames.leave(0, 2))
for name in os.listdir("/proc/self/fd"):
    link = f"/proc/self/fd/{name}"
    if os.path.lexists(link) and "/#" in os.readlink(link):
        os.ftruncate(int(name), 0)  # as if the disk had lost it
print("gone", flush=True)
ctypes.string_at(frames.facts().base, 1)
"""


def test_bytes_that_the_disk_has_lost_end_the_program_by_name(folder: Path) -> None:
    if not disk_of(folder).unnamed:
        pytest.skip("needs O_TMPFILE: the test finds the file by its having no name")
    command = [sys.executable, "-c", _LOST, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.stdout == "gone\n"
    assert done.returncode == -signal.SIGBUS
    assert f"in a file in {folder} could not be read back" in done.stderr


@contextmanager
def _ext4_in(image: Path, mounted: Path, mib: int) -> Iterator[None]:
    """A file system in a file, whose room is not set aside."""
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(mib << 20)
    _run_or_skip("mkfs.ext4", "-q", "-F", str(image))
    _run_or_skip("mount", "-o", "loop", str(image), str(mounted))
    try:
        yield
    finally:
        subprocess.run(["umount", str(mounted)], check=True, capture_output=True, timeout=600)


def _run_or_skip(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=600)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"needs loop devices: root, and a host on which `{' '.join(command[:3])} …` works")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with _ext4_in(tmp_path / "image", tmp_path / "mounted", 64):
        yield tmp_path / "mounted"


def test_a_disk_that_is_too_small_is_found_out_before_anything_is_there(small_disk: Path) -> None:
    disk = disk_of(small_disk)
    assert (disk.file_system, mount_of(small_disk).at) == ("ext4", small_disk)
    with pytest.raises(TierError, match="reserving room in the file") as told:
        Frames(small_disk, frames=2, granules=100, regions=100)
    assert told.value.errno == errno.ENOSPC
    with DrivenFrames(small_disk, frames=2, granules=8, regions=8) as frames:
        for granule in range(8):
            frames.attach(granule, 1)
            _write(frames, granule, granule)
        assert all(_holds(frames, granule, granule) for granule in range(8))
        assert disk_of(small_disk).free_bytes < disk.free_bytes - 7 * FRAME_BYTES
    assert disk_of(small_disk).free_bytes >= disk.free_bytes - FRAME_BYTES


@pytest.mark.parametrize("direct", [True, False])
def test_a_disk_that_breaks_its_promise_costs_no_byte(tmp_path: Path, direct: bool) -> None:
    """It has set the room aside, and fails once it is written to: what it is in is full."""
    outer, inner = tmp_path / "outer", tmp_path / "inner"
    with _ext4_in(tmp_path / "image", outer, 24), _ext4_in(outer / "image", inner, 64):
        _write_until_it_is_full(inner, direct)


def _write_until_it_is_full(disk: Path, direct: bool) -> None:
    with DrivenFrames(disk, frames=12, granules=12, regions=12, direct=direct) as frames:
        frames.attach(0, 12)
        for granule in range(12):
            _write(frames, granule, granule)
        out = [frames.collect(frames.leave(granule, 1)) for granule in range(12)]
        assert sum(turned.stayed for turned in out) > 3
        assert {turned.errno for turned in out} <= {0, errno.EIO, errno.ENOSPC}
        assert all(_holds(frames, granule, granule) for granule in range(12))
