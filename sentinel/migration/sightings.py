"""What the witness saw, put together: which page moved, from where to where, and for what reason. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

REASONS = (
    "compaction",
    "memory_failure",
    "memory_hotplug",
    "syscall",  # move_pages, migrate_pages, or a change of cpuset
    "mempolicy_mbind",
    "numa_misplaced",  # NUMA balancing, promotion by the kernel's tiering included
    "contig_range",
    "longterm_pin",
    "demotion",  # by the kernel under pressure
    "damon",
)
"""Why the kernel migrates, by number: `enum migrate_reason` of include/linux/migrate_mode.h."""

# struct witness_record and enum witness_kind of ebpf/migrations.h
RECORD_DTYPE = np.dtype(
    [("sequence", "<u8"), ("address", "<u8"), ("value", "<u8"), ("thread", "<u4"), ("kind", "<u2"), ("own", "<u2")]
)
SET_PAGE, REMOVE_PAGE, SET_HUGE, REMOVE_HUGE, BATCH = 1, 2, 3, 4, 5

MOVE_DTYPE = np.dtype(
    [
        ("address", "<u8"),
        ("n_pages", "<u4"),
        ("from_node", "<i4"),
        ("to_node", "<i4"),
        ("reason", "<i4"),
        ("own", "?"),
        ("moved", "?"),
    ]
)
"""One attempt of the kernel on one page, or on the `n_pages` of a huge one. `own`: asked for by a thread of this
process. `moved`: false where the page stayed in its old frame. A node is -1 where its memory is not listed."""

_FRAME_MASK = (1 << 34) - 1  # 64 TiB; above it a migration entry keeps the accessed and dirty bits (4-level tables)
_HUGE_PAGES = 512


@dataclass(frozen=True)
class Frames:
    """Which node has which page frame: blocks of `block_frames` frames, `node_of_block[i]` -1 where there is none."""

    block_frames: int
    node_of_block: NDArray[np.int32]

    def nodes(self, frames: NDArray[np.uint64]) -> NDArray[np.int32]:
        """(n,) node of each frame."""
        block = (frames // np.uint64(self.block_frames)).astype(np.int64)
        known = block < len(self.node_of_block)
        return np.where(known, self.node_of_block[np.where(known, block, 0)], -1).astype(np.int32)


@dataclass(frozen=True, eq=False)
class Sightings:
    """The moves in the watched ranges, in no particular order.

    `lost`: records for which the log had no room, so pages may be missing. `unmatched`: ends of migrations whose
    beginning was not seen, as of a page mapped by several processes after the first. `machine_wide`: reason ->
    (pages moved, pages failed), of all processes since the witness began.
    """

    moves: NDArray[Any]
    lost: int
    unmatched: int
    machine_wide: Mapping[str, tuple[int, int]]

    def pages(self, reason: str) -> int:
        """How many pages moved for this reason."""
        chosen = self.moves["moved"] & (self.moves["reason"] == REASONS.index(reason))
        return int(self.moves["n_pages"][chosen].sum())


def join(records: NDArray[Any], frames: Frames) -> tuple[NDArray[Any], int, NDArray[Any]]:
    """(moves of MOVE_DTYPE, unmatched ends, records to join again with later ones).

    `records` of RECORD_DTYPE in the order of their sequence. The page records of a thread belong to the next end of
    a batch in the same thread; where that is still to come, they are handed back.
    """
    by_thread = records[np.lexsort((records["sequence"], records["thread"]))]
    ends = np.flatnonzero(by_thread["kind"] == BATCH)
    place = np.searchsorted(ends, np.arange(len(by_thread)))
    end = by_thread[ends[np.minimum(place, len(ends) - 1)]] if len(ends) else by_thread
    finished = (place < len(ends)) & (end["thread"] == by_thread["thread"])
    is_page = by_thread["kind"] != BATCH
    chosen = finished & is_page
    moves, unmatched = _pairs(by_thread[chosen], end["value"][chosen], frames)
    rest = by_thread[~finished & is_page]
    return moves, unmatched, rest[np.argsort(rest["sequence"])]


def _pairs(records: NDArray[Any], reasons: NDArray[Any], frames: Frames) -> tuple[NDArray[Any], int]:
    """An entry that was set and then removed, at one address by one thread, is one attempt."""
    order = np.lexsort((records["sequence"], records["address"], records["thread"]))
    records, reasons = records[order], reasons[order]
    before, after = records[:-1], records[1:]
    removal = (records["kind"] == REMOVE_PAGE) | (records["kind"] == REMOVE_HUGE)
    pair = removal[1:] & (before["address"] == after["address"]) & (before["thread"] == after["thread"])
    pair &= before["kind"] == after["kind"] - 1
    begun, ended = before[pair], after[pair]
    huge = ended["kind"] == REMOVE_HUGE
    old, new = _frame_of_swap_entry(begun["value"]), _frame_of_present_entry(ended["value"], huge)
    moves = np.zeros(len(ended), MOVE_DTYPE)
    moves["address"] = ended["address"]
    moves["n_pages"] = np.where(huge, _HUGE_PAGES, 1)
    moves["from_node"], moves["to_node"] = frames.nodes(old), frames.nodes(new)
    moves["reason"] = reasons[1:][pair].astype(np.int32)
    moves["own"] = ended["own"] != 0
    moves["moved"] = old != new
    return moves, int(removal.sum()) - len(moves)


def _frame_of_present_entry(entries: NDArray[np.uint64], huge: NDArray[np.bool_]) -> NDArray[np.uint64]:
    frame = entries >> np.uint64(12) & np.uint64(_FRAME_MASK)
    return np.where(huge, frame & ~np.uint64(_HUGE_PAGES - 1), frame)  # a huge entry's lowest bit is no address


def _frame_of_swap_entry(entries: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """x86-64: five bits of type, then the inverted offset from bit 9 on (arch/x86/include/asm/pgtable_64.h), whose
    low bits are the frame (include/linux/swapops.h)."""
    return (~entries << np.uint64(5)) >> np.uint64(14) & np.uint64(_FRAME_MASK)
