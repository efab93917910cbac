"""Accesses that readers cannot see: each is really done here, is seen or is not, and what is not is named."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.core.units import PAGE_BYTES
from sentinel.profiler.pages import TRACKERS, AddressRange, make, native_touch, obstacle
from tests.contract.fixed_buffers import FixedBuffer
from tests.contract.page_workload import Memory, Seen, layers, seen

PAGES = 211
_ALLOWED = [name for name in TRACKERS if obstacle(name) is None]
FILLED = {5: 1, 6: 1, 7: 1}
pytestmark = pytest.mark.skipif(not _ALLOWED, reason="needs a page tracker: none is allowed here")


@pytest.fixture(scope="module")
def owned() -> Iterator[AddressRange]:
    taken = native_touch.map_range(PAGES * PAGE_BYTES)
    yield taken
    native_touch.unmap_range(taken)


@pytest.fixture(params=_ALLOWED)
def memory(request: pytest.FixtureRequest, owned: AddressRange) -> Memory:
    return Memory(owned, make(request.param))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "bytes"
    path.write_bytes(b"\x05" * 3 * PAGE_BYTES)
    return path


def _buffer(owned: AddressRange) -> memoryview:
    return memoryview((ctypes.c_char * (3 * PAGE_BYTES)).from_address(owned.start + 5 * PAGE_BYTES))


def _named(blind_to: tuple[str, ...], word: str) -> bool:
    return any(word in what for what in blind_to)


def test_direct_io_is_seen_or_named(memory: Memory, source: Path) -> None:
    stat = subprocess.run(["stat", "-f", "-c", "%T", source], capture_output=True, text=True, check=True, timeout=600)
    if stat.stdout.strip() not in ("ext2/ext3", "xfs", "btrfs"):
        pytest.skip(f"needs a file system with O_DIRECT: {stat.stdout.strip()} may accept it and copy as ever")
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        pytest.skip("needs a file system with O_DIRECT")
    buffer = _buffer(memory.owned)
    samples = layers(memory, 1, lambda layer: os.preadv(descriptor, [buffer], 0))
    os.close(descriptor)
    assert bytes(buffer) == source.read_bytes()
    expected = {} if _named(samples.quality.blind_to, "O_DIRECT") else FILLED
    assert seen(samples, memory.owned).touched == expected


def test_buffers_pinned_beforehand_are_filled_unseen_and_named(memory: Memory, source: Path) -> None:
    try:
        fixed = FixedBuffer(memory.owned.start + 5 * PAGE_BYTES, 3 * PAGE_BYTES)
    except OSError as error:
        pytest.skip(f"needs io_uring: {error.strerror}")
    buffer, descriptor = _buffer(memory.owned), os.open(source, os.O_RDONLY)
    ctypes.memset(memory.owned.start + 5 * PAGE_BYTES, 0, len(buffer))
    memory.tracker.start([memory.owned])
    memory.tracker.mark(0)
    with fixed:  # pinned in layer 0
        memory.tracker.mark(1)
        assert fixed.read(descriptor) == len(buffer)
        memory.tracker.mark(-1)
    samples = memory.tracker.stop()
    os.close(descriptor)
    assert bytes(buffer) == source.read_bytes()
    later: Seen = seen(type(samples)(samples.runs[samples.runs["layer"] == 1], samples.quality), memory.owned)
    assert later.touched == {}
    assert _named(samples.quality.blind_to, "io_uring's fixed buffers")


def test_calls_on_behalf_of_another_process_are_seen_or_named(memory: Memory) -> None:
    """process_vm_writev() into this process by itself goes the same way as by a debugger."""
    libc = ctypes.CDLL(None, use_errno=True)
    words = ctypes.create_string_buffer(b"7" * 8, 8)
    local = (ctypes.c_uint64 * 2)(ctypes.addressof(words), 8)
    remote = (ctypes.c_uint64 * 2)(memory.owned.start + 5 * PAGE_BYTES, 8)
    done: list[int] = []

    def write(layer: int) -> None:
        done.append(libc.process_vm_writev(os.getpid(), local, 1, remote, 1, 0))

    samples = layers(memory, 1, write)
    if done != [8]:
        pytest.skip("needs process_vm_writev: it is refused here")
    assert ctypes.string_at(memory.owned.start + 5 * PAGE_BYTES, 8) == words.raw
    expected = {} if _named(samples.quality.blind_to, "process_vm_*") else {5: 1}
    assert seen(samples, memory.owned).touched == expected


def _touch_and_leave(address: int) -> None:
    ctypes.memset(address, 9, 3 * PAGE_BYTES)
    os._exit(0)


def test_what_a_forked_child_touches_is_not_ours_and_named(memory: Memory) -> None:
    memory.tracker.start([memory.owned])
    memory.tracker.mark(0)
    child = multiprocessing.get_context("fork").Process(
        target=_touch_and_leave, args=(memory.owned.start + 5 * PAGE_BYTES,)
    )
    child.start()
    child.join(timeout=600)
    memory.tracker.mark(-1)
    samples = memory.tracker.stop()
    assert child.exitcode == 0
    assert seen(samples, memory.owned).touched == {}
    assert _named(samples.quality.blind_to, "forked children")


def test_huge_pages_do_not_blur_the_count(memory: Memory, tmp_path: Path) -> None:
    """Where the host gives large pages freely, a page still counts by itself."""
    wide = native_touch.map_range(8 << 20)
    try:
        ctypes.memset(wide.start, 1, wide.nbytes)
        pages = (0, 511, 512, 1031)
        at = Memory(wide, memory.tracker)
        samples = layers(at, 1, lambda layer: [at.touch(page, True) for page in pages])  # type: ignore[func-returns-value]
        if samples.quality.granularity_bytes == PAGE_BYTES:
            assert seen(samples, wide).touched == dict.fromkeys(pages, 1)
        else:
            assert samples.quality.notes[-1].startswith("no userfaultfd here")
    finally:
        native_touch.unmap_range(wide)
