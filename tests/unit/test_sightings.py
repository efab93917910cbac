"""Records of the witness put together: from entries as x86-64 writes them to moves with nodes and reasons."""

from __future__ import annotations

import numpy as np

from sentinel.migration.sightings import (
    BATCH,
    REASONS,
    RECORD_DTYPE,
    REMOVE_HUGE,
    REMOVE_PAGE,
    SET_HUGE,
    SET_PAGE,
    Frames,
    Sightings,
    join,
)
from tests.seen_pages import pages, pages_by_reason, within

FRAMES = Frames(0x1000, np.array([0, 0, 1], np.int32))
NEAR, FAR = 0x6AC7, 0x2005
SYSCALL, BALANCING = REASONS.index("syscall"), REASONS.index("numa_misplaced")


def _swap_entry(frame: int) -> int:
    """A write-migration entry, young and soft-dirty: the one that a 6.12 kernel wrote for frame 0x6AC7."""
    return 0xF7FFE7FFFF2A7002 ^ ((frame ^ NEAR) << 9)


def _present_entry(frame: int) -> int:
    return 0x8000000000000867 | frame << 12


def _records(*rows: tuple[int, int, int, int]) -> np.ndarray:
    """(address, value, thread, kind), in this order."""
    return np.array([(i + 1, a, v, t, k, t == 1) for i, (a, v, t, k) in enumerate(rows)], RECORD_DTYPE)


def _joined(*rows: tuple[int, int, int, int]) -> tuple[list[tuple[object, ...]], int, int]:
    moves, unmatched, rest = join(_records(*rows), FRAMES)
    return moves.tolist(), unmatched, len(rest)


def _there_and_back(thread: int, address: int, frames: tuple[int, int]) -> list[tuple[int, int, int, int]]:
    old, new = frames
    return [
        (address, _swap_entry(old), thread, SET_PAGE),
        (address, _present_entry(new), thread, REMOVE_PAGE),
    ]


def test_no_records_are_no_moves() -> None:
    assert _joined() == ([], 0, 0)
    assert _joined((0, SYSCALL, 1, BATCH)) == ([], 0, 0)


def test_an_entry_from_a_real_kernel_gives_its_frame() -> None:
    frames = Frames(1, np.where(np.arange(0x8000) == NEAR, 7, -1).astype(np.int32))
    moves, _, _ = join(_records(*_there_and_back(1, 0x4000, (NEAR, 0x10)), (1, SYSCALL, 1, BATCH)), frames)
    assert moves["from_node"].tolist() == [7]


def test_threads_that_interleave_keep_their_own_reasons() -> None:
    first, second = _there_and_back(1, 0x4000, (0x1234, FAR)), _there_and_back(2, 0x8000, (FAR, 0x1235))
    rows = [second[0], first[0], first[1], second[1], (1, BALANCING, 2, BATCH), (1, SYSCALL, 1, BATCH)]
    assert _joined(*rows) == (
        [(0x4000, 1, 0, 1, SYSCALL, True, True), (0x8000, 1, 1, 0, BALANCING, False, True)],
        0,
        0,
    )


def test_a_page_that_stayed_where_it_was_did_not_move_but_a_retry_may() -> None:
    rows = [*_there_and_back(1, 0x4000, (NEAR - 0x6000, NEAR - 0x6000)), *_there_and_back(1, 0x4000, (0x0AC7, FAR))]
    moves, unmatched, rest = join(_records(*rows, (1, SYSCALL, 1, BATCH)), FRAMES)
    assert moves["moved"].tolist() == [False, True]
    assert (unmatched, len(rest)) == (0, 0)
    assert pages(Sightings(moves, 0, 0, {})) == 1


def test_what_the_kernel_has_not_ended_waits_for_the_next_time() -> None:
    rows = _there_and_back(1, 0x4000, (0x10, FAR))
    assert _joined(*rows) == ([], 0, 2)
    assert _joined(*rows, (1, SYSCALL, 2, BATCH)) == ([], 0, 2)
    _, _, rest = join(_records(*rows), FRAMES)
    later = _records(*rows, (1, SYSCALL, 1, BATCH))[2:]
    moves, _, rest = join(np.concatenate([rest, later]), FRAMES)
    assert (len(moves), len(rest)) == (1, 0)


def test_the_second_mapping_of_a_page_is_no_second_move() -> None:
    set_one, remove_one = _there_and_back(1, 0x4000, (0x10, FAR))
    assert _joined(set_one, set_one, remove_one, remove_one, (1, SYSCALL, 1, BATCH)) == (
        [(0x4000, 1, 0, 1, SYSCALL, True, True)],
        1,
        0,
    )


def test_a_huge_page_counts_512_and_its_attribute_bit_is_no_address() -> None:
    rows = [
        (0x200000, _swap_entry(0x200), 1, SET_HUGE),
        (0x200000, _present_entry(0x2201), 1, REMOVE_HUGE),
        (1, SYSCALL, 1, BATCH),
    ]
    moves, _, _ = join(_records(*rows), FRAMES)
    seen = Sightings(moves, 0, 0, {})
    assert (pages(seen), pages(seen, to_node=1), pages_by_reason(seen)) == (512, 512, {"syscall": 512})
    assert pages(within(seen, [(0x200000, 4096)])) == 512
    assert pages(within(seen, [(0x201000, 4096)])) == 0


def test_memory_that_is_not_listed_is_on_no_node() -> None:
    assert FRAMES.nodes(np.array([0, 0x1FFF, 0x2000, 0x3000, 1 << 33], np.uint64)).tolist() == [0, 0, 1, -1, -1]
