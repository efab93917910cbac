"""From plan addresses to addresses in this process.

Persistent tensors keep the address they got when they were adopted and are found by name; transients live
in the placement arena, which starts where the plan's persistent part ends.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sentinel.core.plan import Plan
from sentinel.core.units import page_ceil

Homes = tuple[tuple[int, int, int], ...]
"""(offset, nbytes, tier): whose pages are born in which tier. Ranges do not overlap."""


@dataclass(frozen=True)
class SlotTable:
    """Transient slots for the allocator: keys (n, 2) of (layer, ordinal), offsets and nbytes (n,) in the arena.

    `left_out`, `left_out_bytes`: slots of the plan that lie beyond the arena, and are not among them.
    """

    keys: NDArray[np.int64]
    offsets: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    extent_bytes: int
    homes: Homes
    left_out: int = 0
    left_out_bytes: int = 0


def arena_start(plan: Plan) -> int:
    """Plan address at which the placement arena begins: past the last persistent slot's page."""
    ends = [slot.offset + slot.nbytes for slot in plan.slots if slot.key is None]
    return page_ceil(max(ends, default=0))


def slot_table(plan: Plan, arena_bytes: int) -> SlotTable:
    """The transient slots of `plan` that lie within an arena of so many bytes, relative to where it starts."""
    start = arena_start(plan)
    slots = [slot for slot in plan.slots if slot.key is not None]
    within = [slot for slot in slots if slot.offset + slot.nbytes <= start + arena_bytes]
    ends = ((s, min(s.offset + s.nbytes, start + arena_bytes)) for s in plan.segments)
    return SlotTable(
        keys=np.array([slot.key for slot in within], np.int64).reshape(len(within), 2),
        offsets=np.array([slot.offset - start for slot in within], np.int64),
        nbytes=np.array([slot.nbytes for slot in within], np.int64),
        extent_bytes=min(max(plan.extent_bytes - start, 0), arena_bytes),
        homes=tuple(
            (max(s.offset, start) - start, end - max(s.offset, start), s.tier)
            for s, end in ends
            if end > max(s.offset, start)
        ),
        left_out=len(slots) - len(within),
        left_out_bytes=sum(slot.nbytes for slot in slots) - sum(slot.nbytes for slot in within),
    )


def changed_homes(before: Homes, after: Homes) -> list[tuple[int, int, int]]:
    """(offset, nbytes, tier): ranges of which `after` says another tier than `before`, -1 where it says none."""
    cuts = sorted({edge for offset, nbytes, _ in (*before, *after) for edge in (offset, offset + nbytes)})
    tiers = zip(_tiers_at(before, cuts), _tiers_at(after, cuts), strict=True)
    found: list[tuple[int, int, int]] = []
    for (low, high), (was, now) in zip(pairwise(cuts), tiers, strict=False):
        if was == now:
            continue
        if found and found[-1][2] == now and found[-1][0] + found[-1][1] == low:
            low, _, _ = found.pop()
        found.append((low, high - low, now))
    return found


def _tiers_at(homes: Homes, places: Sequence[int]) -> list[int]:
    """The tier of each place, -1 where there is none."""
    rows = np.array(sorted(homes), np.int64).reshape(len(homes), 3)
    if not len(rows):
        return [-1] * len(places)
    starts, nbytes, tiers = rows.T
    at = np.maximum(np.searchsorted(starts, places, "right") - 1, 0)
    within = (starts[at] <= places) & (places < starts[at] + nbytes[at])
    found: list[int] = np.where(within, tiers[at], -1).tolist()
    return found


class Addresses:
    """Maps blocks of a plan to address ranges of this process, which are found once: where tensors live does not
    change while the plan is carried out, and a migration must not take longer where there are more tensors.

    `arena`: address and length of the placement arena; what a block has beyond it is nowhere. `persistent`: name of a
    tensor -> its address.
    """

    def __init__(self, plan: Plan, arena: tuple[int, int], persistent: Mapping[str, int]) -> None:
        start, (base, arena_bytes) = arena_start(plan), arena
        slots = sorted((slot for slot in plan.slots if slot.key is None), key=lambda slot: slot.offset)
        offsets = [slot.offset for slot in slots]
        at = [persistent.get(slot.name) for slot in slots]
        self._ranges: list[list[tuple[int, int]]] = []
        for block in plan.blocks:
            begin, end = block.offset, block.offset + block.nbytes
            pieces = []
            low, high = max(begin, start), min(end, start + arena_bytes)
            if high > low:
                pieces.append((base + low - start, high - low))
            first = max(bisect_right(offsets, begin) - 1, 0)
            for index in range(first, bisect_left(offsets, end, lo=first)):
                slot, address = slots[index], at[index]
                low = max(begin, slot.offset)
                high = min(end, slot.offset + page_ceil(slot.nbytes))
                if address is not None and high > low:
                    pieces.append((address + low - slot.offset, high - low))
            self._ranges.append(pieces)

    def ranges(self, block: int) -> list[tuple[int, int]]:
        """(address, nbytes) of each piece of `block`, whole pages. The caller does not change it."""
        return self._ranges[block]
