"""The memory of a loader: reserved and sealed, seen by every process, gone with the last one."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from benchmarks.data_orders import layout_of  # noqa: E402
from sentinel.core.errors import UsageError  # noqa: E402
from sentinel.data.data_index import open_data  # noqa: E402
from sentinel.data.feeding import permutation  # noqa: E402
from sentinel.data.room_here import lead_for, memory_bytes  # noqa: E402
from sentinel.data.sample_arena import MOST_PAGES, ArenaShape, Missing, SampleArena, page_bytes_for, shape_within  # noqa: E402
from sentinel.samples import ArenaPages, Epoch, Order, Room, plan, simulate  # noqa: E402
from sentinel.system.limits import available_bytes  # noqa: E402
from tests.data_files import content, shards  # noqa: E402
from tests.processes import LONGEST_S  # noqa: E402

SHAPE = ArenaShape(n_samples=10, n_pages=40, page_bytes=64)


def got(arena: SampleArena, sample: int, nbytes: int) -> bytes | Missing:
    """What is copied, or why nothing is."""
    (found,) = arena.copy(np.array([sample]), np.array([nbytes]))
    return found if isinstance(found, Missing) else bytes(found)


def put(arena: SampleArena, sample: int, data: bytes, pages: list[int], read: int = 1) -> np.ndarray:
    one = np.array([sample])
    where = np.zeros(1, np.int64), np.array([len(data)]), one, np.array(pages, np.int32)
    entry = arena.put(np.frombuffer(data, np.uint8), *where, read)
    arena.publish(one, entry)
    return entry


@pytest.mark.parametrize("byte", [0, 3, 4, 7])
@pytest.mark.parametrize("flipped", [0x01, 0x80])
def test_no_two_changes_cancel_out(byte: int, flipped: int) -> None:
    """In whatever bytes of two words: of a thousand pairs, eight cancelled out where these were the highest."""
    arena = SampleArena(ArenaShape(n_samples=1, n_pages=1, page_bytes=4096))
    chance = np.random.default_rng(byte)
    pages = np.tile(chance.integers(0, 256, 4096, dtype=np.uint8), (4001, 1))
    for row in range(1, len(pages)):
        pages[row, 8 * chance.choice(512, 2, replace=False) + byte] ^= flipped
    ones = np.ones(len(pages), np.int64)
    sums = arena._sums(pages, ones, np.zeros_like(ones))
    assert not (sums[1:] == sums[0]).any()


def test_samples_lie_in_pages_anywhere() -> None:
    arena = SampleArena(SHAPE)
    for sample, (nbytes, pages) in enumerate([(1, [3]), (64, [9]), (65, [39, 0]), (300, [7, 8, 1, 30, 2])]):
        assert got(arena, sample, nbytes) is Missing.ABSENT
        entry = put(arena, sample, content(sample, nbytes), pages)
        assert got(arena, sample, nbytes) == content(sample, nbytes)
        arena.remove(np.array([sample]), entry + 1)  # of another read
        assert got(arena, sample, nbytes) == content(sample, nbytes)
    arena.remove(np.array([3]), entry)
    assert got(arena, 3, 300) is Missing.ABSENT
    assert got(arena, 2, 65) == content(2, 65)
    arena.clear()
    assert got(arena, 2, 65) is Missing.ABSENT


def test_the_samples_of_a_read_are_put_and_copied_together() -> None:
    arena = SampleArena(SHAPE)
    data = np.frombuffer(content(77, 900), np.uint8)
    samples, begins, nbytes = np.array([7, 2, 5]), np.array([0, 500, 700]), np.array([130, 64, 200])
    pages = np.array([5, 1, 9, 30, 31, 2, 3, 4], np.int32)  # 3 of the first, 1 of the second, 4 of the third
    arena.publish(samples, arena.put(data, begins, nbytes, samples, pages, 4))
    asked = np.array([2, 8, 5, 7])
    found = arena.copy(asked, np.array([64, 10, 200, 130]))
    assert found[1] is Missing.ABSENT
    assert [bytes(found[i]) for i in (0, 2, 3)] == [
        data[begin : begin + count].tobytes() for begin, count in ((500, 64), (700, 200), (0, 130))
    ]
    arena.publish(np.array([8]), arena.lost(np.array([8]), 9))
    assert got(arena, 8, 10) is Missing.LOST


def test_a_copy_of_what_is_replaced_meanwhile_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = SampleArena(SHAPE)
    put(arena, 4, content(4, 130), [5, 6, 7], read=1)
    real = arena._sums

    def replaced(*arguments: np.ndarray) -> np.ndarray:
        monkeypatch.undo()
        put(arena, 4, content(5, 130), [5, 6, 7], read=2)
        return real(*arguments)

    monkeypatch.setattr(arena, "_sums", replaced)
    assert got(arena, 4, 130) is Missing.ABSENT
    assert got(arena, 4, 130) == content(5, 130)


@pytest.mark.parametrize("where", ["pages", "following", "sums", "entries"])
def test_what_another_process_writes_is_found(where: str) -> None:
    """Each word that lies in the way of a sample, changed at random; the sample is never other bytes than those put."""
    arena, chance = SampleArena(SHAPE), np.random.default_rng(3)
    expected = content(4, 300)
    for _ in range(400):
        put(arena, 4, expected, [7, 8, 1, 30, 2])
        column = getattr(arena, where).reshape(-1)
        rows = {"pages": 64 * np.array([7, 8, 1, 30, 2])[:, None] + np.arange(64), "following": [7, 8, 1, 30]}
        at = int(chance.choice(np.ravel(rows.get(where, [4]))))
        column[at] ^= np.array(1 << int(chance.integers(8 * column.itemsize)), column.dtype)
        found = got(arena, 4, 300)
        assert found is Missing.DAMAGED or (where == "entries" and found in (Missing.LOST, Missing.ABSENT, expected))
        arena.clear()


def test_samples_that_were_exchanged_are_found() -> None:
    arena = SampleArena(SHAPE)
    put(arena, 1, content(1, 100), [5, 6])
    put(arena, 2, content(2, 100), [7, 8])
    arena.entries[1], arena.sums[1] = arena.entries[2], arena.sums[2]
    assert got(arena, 1, 100) is Missing.DAMAGED
    put(arena, 3, content(3, 128), [10, 11])
    arena.pages[[10, 11]] = arena.pages[[11, 10]]
    assert got(arena, 3, 128) is Missing.DAMAGED


def test_of_two_reads_of_a_sample_the_later_one_counts() -> None:
    """Reads that are carried out at once may end in any order."""
    arena = SampleArena(SHAPE)
    later = put(arena, 1, content(1, 100), [5, 6], read=8)
    earlier = put(arena, 1, content(1, 100), [7, 8], read=7)
    arena.remove(np.array([1]), earlier)
    assert got(arena, 1, 100) == content(1, 100)
    arena.remove(np.array([1]), later)
    assert got(arena, 1, 100) is Missing.ABSENT


def test_the_bell_rings_for_what_is_taken() -> None:
    arena = SampleArena(SHAPE)
    arena.take(np.array([3, 5]))
    assert np.flatnonzero(arena.taken).tolist() == [3, 5]
    began = time.monotonic()
    arena.wait(LONGEST_S)
    arena.wake()
    arena.wait(LONGEST_S)
    assert time.monotonic() - began < LONGEST_S, "it was rung before"


def test_nobody_can_shorten_it() -> None:
    arena = SampleArena(SHAPE)
    with pytest.raises(PermissionError):
        os.ftruncate(arena.descriptor, 0)
    assert os.fstat(arena.descriptor).st_blocks * 512 >= SHAPE.nbytes, "all of it is reserved"


def _copy(arena: SampleArena, found: multiprocessing.Queue[bytes | Missing]) -> None:
    arena.take(np.array([3]))
    found.put(got(arena, 2, 100))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_other_processes_see_it(method: str) -> None:
    arena = SampleArena(SHAPE)
    put(arena, 2, content(2, 100), [11, 4])
    context = multiprocessing.get_context(method)
    found = context.Queue()
    child = context.Process(target=_copy, args=(arena, found))
    child.start()
    assert found.get(timeout=LONGEST_S) == content(2, 100)
    child.join(timeout=600)
    arena.wait(LONGEST_S)  # the bell rang here
    assert arena.taken.tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]
    with pytest.raises(UsageError, match="cannot be pickled"):
        pickle.dumps(arena)


def test_nothing_is_left_of_it_after_kill_9() -> None:
    program = (
        "import os, signal; from sentinel.data.sample_arena import *; a = SampleArena(ArenaShape(10, 100, 4096))\n"
        "print(os.stat(a.descriptor).st_nlink, flush=True)\n"
        "print(*(os.readlink(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd')[:-1]), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == -signal.SIGKILL
    links, opened = done.stdout.splitlines()
    assert links == "0"  # no folder has it: its memory goes with the process
    assert "memfd:" in opened
    assert "/dev/shm/" not in opened


@pytest.mark.parametrize("memory", [4096, 50_000, 1 << 20, 12_345_678])
@pytest.mark.parametrize("even", [True, False])
def test_an_arena_is_never_larger_than_the_memory(memory: int, even: bool) -> None:
    nbytes = np.full(1000, 3000) if even else np.arange(100, 1100)
    shape = shape_within(memory, nbytes)
    assert shape.n_pages == 0 or shape.nbytes <= memory
    assert shape.n_pages * shape.page_bytes > 0.9 * min(memory, int(nbytes.sum())) - 50_000


def test_numbers_of_pages_are_no_larger_than_their_columns_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    assert np.iinfo(ArenaPages(1).take(1).dtype).max >= MOST_PAGES
    monkeypatch.setattr("sentinel.data.sample_arena.MOST_PAGES", 300)
    assert shape_within(1 << 30, np.full(1000, 3000)).n_pages == 300


def test_pages_suit_the_samples() -> None:
    assert page_bytes_for(np.array([777, 777])) == 784
    assert page_bytes_for(np.array([32_000, 32_768])) == 1024
    assert page_bytes_for(np.array([8000, 8384])) == 256
    assert page_bytes_for(np.array([1, 2])) == 64


def test_little_of_the_memory_is_kept_for_reading_ahead_and_for_ends_of_pages() -> None:
    """Reads a chunk in exact order in the room that a loader has for a fifth of the data set."""
    layout = layout_of(65_536, 64)
    shape = shape_within(layout.nbytes // 5, layout.sample_nbytes)
    room = Room(shape.n_pages * shape.page_bytes, shape.page_bytes, lead_for(layout, shape))
    reads, before = [], None
    for epoch in range(4):
        known = Epoch(permutation(layout.n_samples, Order(), epoch), permutation(layout.n_samples, Order(), epoch + 1))
        before = plan(layout, Order(), room, known, before)
        reads.append(simulate(layout, before).reads_per_chunk)
    assert reads[0] <= 3.5
    assert max(reads[1:]) <= 2.6


def test_redirect_has_groups_of_five_chunks_in_the_room_of_a_loader() -> None:
    """Tables and ends of pages take some of a fifth of the data: groups of six would be read 8.1 times."""
    for mean_bytes in (8 << 10, 40 << 10):
        layout = layout_of(8192, 64, mean_bytes)
        shape = shape_within(layout.nbytes // 5, layout.sample_nbytes)
        room = Room(shape.n_pages * shape.page_bytes, shape.page_bytes, lead_for(layout, shape))
        known = Epoch(permutation(layout.n_samples, Order(), 0))
        feed = simulate(layout, plan(layout, Order("redirect"), room, known))
        assert feed.reads_per_chunk == pytest.approx(7.6, rel=0.05)
        assert feed.peak_bytes <= room.nbytes


def test_amounts_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    layout = open_data(shards(tmp_path, [40])).layout
    assert memory_bytes("50%", layout) == layout.nbytes // 2 // 4096 * 4096
    assert memory_bytes("1MiB", layout) == 1 << 20
    with pytest.raises(UsageError, match=r"give at most .*iB"):
        memory_bytes(available_bytes() * 2, layout)
    with pytest.raises(UsageError, match="of the data set"):
        memory_bytes("20", layout)


LIMITS = """
import gc, json, os, resource, sys
from sentinel.core.errors import UsageError
from sentinel.data.sample_arena import SampleArena, ArenaShape
from sentinel.tiers.arena_place import ArenaPlace

def refused(limit, folder):
    shape = ArenaShape(100, 4096, 4096)
    before = sorted(os.listdir("/proc/self/fd"))
    if limit == "v":
        held = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (held + (2 << 20),) * 2)
    elif limit == "f":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20,) * 2)
    else:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) - 1 + int(folder), 4096))
        folder = ""
    said = ""
    try:
        SampleArena(shape, place=ArenaPlace(folder=folder))
    except UsageError as error:
        said = str(error)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))
    gc.collect()
    assert sorted(os.listdir("/proc/self/fd")) == before, "a descriptor is left"
    return said

def main():
    for case in sys.argv[1:]:
        if (pid := os.fork()) == 0:
            print(json.dumps([case, refused(*case.split(":"))]), flush=True)
            return
        print(json.dumps([case, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]), flush=True)

main()
"""
LIMITED = [("f", ""), ("f", "/tmp"), ("v", ""), ("n", "0"), ("n", "1")]


@pytest.fixture(scope="module")
def told_of_limits() -> tuple[list[list[object]], str]:
    """What each case says, and how the child that is limited ends; and stderr of all: one process imports for them."""
    cases = [":".join(case) for case in LIMITED]
    command = [sys.executable, "-c", LIMITS, *cases]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.mark.parametrize(("limit", "folder"), LIMITED)
def test_a_limit_of_the_process_is_named(
    limit: str, folder: str, told_of_limits: tuple[list[list[object]], str]
) -> None:
    lines, errors = told_of_limits
    case = f"{limit}:{folder}"
    assert [case, 0] in lines, errors
    (said,) = [each for of, each in lines if of == case and isinstance(each, str)]
    assert "of memory for samples are refused" in said
    assert f"raise `ulimit -{limit}`" in said
