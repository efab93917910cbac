"""The memory of a loader: reserved and sealed, seen by every process, gone with the last one."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'sentinel-hm[torch]'")

from sentinel.core.errors import UsageError  # noqa: E402
from sentinel.data.data_index import open_data  # noqa: E402
from sentinel.data.room_here import available_bytes, memory_bytes  # noqa: E402
from sentinel.data.sample_arena import ArenaShape, SampleArena, page_bytes_for, shape_within  # noqa: E402
from tests.data_files import content, shards  # noqa: E402

SHAPE = ArenaShape(n_samples=10, n_pages=40, page_bytes=64)


def got(arena: SampleArena, sample: int, nbytes: int) -> bytes:
    """What is copied; a text that no sample has where there is none."""
    found = arena.copy(sample, nbytes)
    return b"none" if found is None else bytes(found)


def put(arena: SampleArena, sample: int, data: bytes, pages: list[int], read: int = 1) -> int:
    entry = arena.put(np.frombuffer(data, np.uint8), np.array(pages, np.int32), read)
    arena.publish(sample, entry)
    return entry


def test_samples_lie_in_pages_anywhere() -> None:
    arena = SampleArena(SHAPE)
    for sample, (nbytes, pages) in enumerate([(1, [3]), (64, [9]), (65, [39, 0]), (300, [7, 8, 1, 30, 2])]):
        assert arena.copy(sample, nbytes) is None
        entry = put(arena, sample, content(sample, nbytes), pages)
        assert got(arena, sample, nbytes) == content(sample, nbytes)
        arena.remove(sample, entry + 1)  # of another read
        assert got(arena, sample, nbytes) == content(sample, nbytes)
    arena.remove(3, entry)
    assert arena.copy(3, 300) is None
    assert got(arena, 2, 65) == content(2, 65)
    arena.clear()
    assert arena.copy(2, 65) is None


def test_a_copy_of_what_is_replaced_meanwhile_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = SampleArena(SHAPE)
    put(arena, 4, content(4, 130), [5, 6, 7], read=1)
    real = arena._chain

    def replaced(page: int, count: int) -> list[int] | None:
        chain = real(page, count)
        put(arena, 4, content(5, 130), [5, 6, 7], read=2)
        return chain

    monkeypatch.setattr(arena, "_chain", replaced)
    assert arena.copy(4, 130) is None
    monkeypatch.undo()
    arena.following[5] = 1 << 30  # whatever lies there
    assert arena.copy(4, 130) is None


def test_of_two_reads_of_a_sample_the_later_one_counts() -> None:
    """Reads that are carried out at once may end in any order."""
    arena = SampleArena(SHAPE)
    later = put(arena, 1, content(1, 100), [5, 6], read=8)
    earlier = put(arena, 1, content(1, 100), [7, 8], read=7)
    arena.remove(1, earlier)
    assert got(arena, 1, 100) == content(1, 100)
    arena.remove(1, later)
    assert got(arena, 1, 100) == b"none"


def test_nobody_can_shorten_it() -> None:
    arena = SampleArena(SHAPE)
    with pytest.raises(PermissionError):
        os.ftruncate(arena.descriptor, 0)
    assert os.fstat(arena.descriptor).st_blocks * 512 >= SHAPE.nbytes, "all of it is reserved"


def _copy(arena: SampleArena, found: multiprocessing.Queue[bytearray | None]) -> None:
    arena.taken[3] = 1
    found.put(arena.copy(2, 100))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_other_processes_see_it(method: str) -> None:
    arena = SampleArena(SHAPE)
    put(arena, 2, content(2, 100), [11, 4])
    context = multiprocessing.get_context(method)
    found = context.Queue()
    child = context.Process(target=_copy, args=(arena, found))
    child.start()
    assert found.get(timeout=60) == content(2, 100)
    child.join()
    assert arena.taken.tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]
    with pytest.raises(UsageError, match="cannot be pickled"):
        pickle.dumps(arena)


def test_nothing_is_left_of_it_after_kill_9() -> None:
    program = (
        "import os, signal; from sentinel.data.sample_arena import *; a = SampleArena(ArenaShape(10, 100, 4096))\n"
        "print(os.stat(a.descriptor).st_ino, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    shm = sorted(os.listdir("/dev/shm"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert int(done.stdout) > 0
    assert sorted(os.listdir("/dev/shm")) == shm


@pytest.mark.parametrize("memory", [4096, 50_000, 1 << 20, 12_345_678])
@pytest.mark.parametrize("even", [True, False])
def test_an_arena_is_never_larger_than_the_memory(memory: int, even: bool) -> None:
    nbytes = np.full(1000, 3000) if even else np.arange(100, 1100)
    shape = shape_within(memory, nbytes)
    assert shape.n_pages == 0 or shape.nbytes <= memory
    assert shape.n_pages * shape.page_bytes > 0.9 * min(memory, int(nbytes.sum())) - 50_000


def test_pages_suit_the_samples() -> None:
    assert page_bytes_for(np.array([777, 777])) == 777
    assert page_bytes_for(np.array([32_000, 32_768])) == 1984
    assert page_bytes_for(np.array([1, 2])) == 64


def test_amounts_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    layout = open_data(shards(tmp_path, [40])).layout
    assert memory_bytes("50%", layout) == layout.nbytes // 2 // 4096 * 4096
    assert memory_bytes("1MiB", layout) == 1 << 20
    with pytest.raises(UsageError, match=r"give at most .*iB"):
        memory_bytes(available_bytes() * 2, layout)
    with pytest.raises(UsageError, match="of the data set"):
        memory_bytes("20", layout)
