"""Large tensors as their page ranges: a Profile in which each part is a tensor, and plans between the two. Pure.

A policy that knows whole tensors only plans page ranges if it is given parts: `split(profile)`, then `fold(plan)`.
The simulator and the sums by block look at a plan the other way: `unfold(plan)` says which parts its blocks hold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import PlanError
from sentinel.core.plan import Block, Plan, Slot
from sentinel.core.profile import RANGE_DTYPE, Profile
from sentinel.core.units import PAGE_BYTES


@dataclass(frozen=True, eq=False)
class Parts:
    """`profile`: its tensors are the parts, those of one tensor adjacent and in order; it has no ranges.

    `whole`, `first_page`: (parts,) the tensor of each in the profile it was made from, and where in it it begins.
    `first`: (n + 1,) the parts of tensor i are [first[i], first[i + 1]).
    """

    profile: Profile
    whole: NDArray[np.int64]
    first_page: NDArray[np.int64]
    first: NDArray[np.int64]
    names: tuple[str, ...]

    @property
    def cut(self) -> bool:
        """Whether any tensor has several parts."""
        return len(self.whole) >= len(self.first)

    def fold(self, plan: Plan) -> Plan:
        """A plan of parts as one of whole tensors: one slot each, and blocks that are page ranges of them.

        Raises PlanError if the parts of a tensor do not follow each other.
        """
        if not self.cut:
            return plan
        slots: dict[int, Slot] = {}
        for slot in sorted(plan.slots, key=lambda slot: slot.tensor):
            tensor = int(self.whole[slot.tensor])
            head = slots.get(tensor)
            if head is None:
                slots[tensor] = replace(slot, tensor=tensor, name=self.names[tensor])
            elif slot.offset != head.offset + int(self.first_page[slot.tensor]) * PAGE_BYTES:
                raise PlanError(f"the parts of {self.names[tensor]} do not follow each other")
            else:
                slots[tensor] = replace(head, nbytes=slot.offset + slot.nbytes - head.offset)
        blocks = tuple(self._folded(block, slots) for block in plan.blocks)
        return replace(plan, slots=tuple(slots.values()), blocks=blocks)

    def _folded(self, block: Block, slots: dict[int, Slot]) -> Block:
        tensors = tuple(dict.fromkeys(self.whole[list(block.tensors)].tolist()))
        name = block.name
        if len(tensors) == 1 and self.first[tensors[0] + 1] - self.first[tensors[0]] > 1:
            page = (block.offset - slots[tensors[0]].offset) // PAGE_BYTES
            name = f"{self.names[tensors[0]]}[{page}:{page + block.nbytes // PAGE_BYTES}]"
        return replace(block, tensors=tensors, name=name)

    def unfold(self, plan: Plan) -> Plan:
        """A plan of whole tensors with its slots, and the tensors of its blocks, as parts."""
        if not self.cut:
            return plan
        slots: list[Slot] = []
        for slot in plan.slots:
            for part in range(int(self.first[slot.tensor]), int(self.first[slot.tensor + 1])):
                begin = int(self.first_page[part]) * PAGE_BYTES
                nbytes = min(int(self.profile.tensors["nbytes"][part]), slot.nbytes - begin)
                name = self.profile.names[part]
                slots.append(replace(slot, tensor=part, name=name, offset=slot.offset + begin, nbytes=nbytes))
        place = {slot.tensor: slot for slot in slots}
        return replace(plan, slots=tuple(slots), blocks=tuple(self._unfolded(block, place) for block in plan.blocks))

    def _unfolded(self, block: Block, place: dict[int, Slot]) -> Block:
        parts: list[int] = []
        for tensor in block.tensors:
            low, high = int(self.first[tensor]), int(self.first[tensor + 1])
            if high - low == 1:
                parts.append(low)
                continue
            begin, end = block.offset, block.offset + block.nbytes
            held = (place[part] for part in range(low, high))
            parts += [slot.tensor for slot in held if slot.offset < end and begin < slot.offset + slot.nbytes]
        return replace(block, tensors=tuple(parts))


def split(profile: Profile) -> Parts:
    """The parts of `profile`: managed tensors that have ranges are cut where these begin and end, others are whole.

    Bytes and accesses are conserved: those of a tensor in a layer go to its parts by the pages touched there, or by
    bytes in a layer without ranges.
    """
    n = len(profile.names)
    ranges = profile.ranges[profile.tensors["managed"][profile.ranges["tensor"]]]
    if not len(ranges):
        same = np.arange(n)
        even = replace(profile, ranges=np.zeros(0, RANGE_DTYPE)) if len(profile.ranges) else profile
        return Parts(even, same, same * 0, np.arange(n + 1), profile.names)
    whole, first_page, stop_page = _cuts(profile, ranges)
    tensors = profile.tensors[whole]
    pieces = np.bincount(whole, minlength=n)[whole] > 1
    begin = first_page * PAGE_BYTES
    tensors["nbytes"][pieces] = np.minimum(stop_page * PAGE_BYTES, tensors["nbytes"])[pieces] - begin[pieces]
    names = tuple(
        f"{profile.names[i]}[{low}:{high}]" if piece else profile.names[i]
        for i, low, high, piece in zip(
            whole.tolist(), first_page.tolist(), stop_page.tolist(), pieces.tolist(), strict=True
        )
    )
    first = np.searchsorted(whole, np.arange(n + 1))
    accesses = _accesses(profile, ranges, first, first_page, tensors["nbytes"])
    expanded = replace(profile, names=names, tensors=tensors, accesses=accesses, ranges=np.zeros(0, RANGE_DTYPE))
    return Parts(expanded, whole, first_page, first, profile.names)


def _cuts(profile: Profile, ranges: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(parts,) tensor, first and stop page of each, by tensor and page."""
    pages = -(-profile.tensors["nbytes"] // PAGE_BYTES)
    everything = np.arange(len(pages))
    tensor = np.concatenate([everything, ranges["tensor"], ranges["tensor"]]).astype(np.int64)
    page = np.concatenate([np.zeros_like(pages), ranges["first_page"], ranges["stop_page"]]).astype(np.int64)
    inside = page < pages[tensor]
    apart = int(pages.max()) + 1
    key = np.unique(tensor[inside] * apart + page[inside])
    whole, first_page = key // apart, key % apart
    last = np.append(np.diff(whole) != 0, True)
    stop_page = np.where(last, pages[whole], np.append(first_page[1:], 0))
    return whole, first_page, stop_page


def _accesses(
    profile: Profile,
    ranges: NDArray[Any],
    first: NDArray[np.int64],
    first_page: NDArray[np.int64],
    part_bytes: NDArray[np.int64],
) -> NDArray[Any]:
    """The accesses of each part: one row a part and layer that touches it."""
    a = profile.accesses
    count = np.diff(first)[a["tensor"]]
    same = a[count == 1]
    same["tensor"] = first[same["tensor"]]
    cut, count = a[count > 1], count[count > 1]
    row = np.repeat(np.arange(len(cut)), count)
    begins = np.cumsum(count) - count
    part = np.arange(len(row)) - begins[row] + first[cut["tensor"]][row]
    told = _told(ranges, first, first_page, profile.n_layers, part, cut["layer"][row])
    spread = _spread_over_parts(cut, row, begins, part_bytes[part], *told)
    spread["tensor"] = part
    used = spread["touched_bytes"] + spread["read_bytes"] + spread["written_bytes"] > 0
    found = np.concatenate([same, spread[used | (spread["pages_touched"] != 0)]])
    return found[np.lexsort((found["layer"], found["tensor"]))]


def _spread_over_parts(
    a: NDArray[Any],
    row: NDArray[np.int64],
    begins: NDArray[np.int64],
    part_bytes: NDArray[np.int64],
    touched: NDArray[np.int64],
    written: NDArray[np.int64],
) -> NDArray[Any]:
    """The rows of `a` once a part: (pairs,). The pairs of row r are those from `begins[r]` on; `row`: of each pair."""
    out = a[row]
    known = np.bincount(row, touched, len(a))[row] > 0  # ranges tell of this tensor in this layer
    told_writes = np.where(known, np.maximum(written, 0), 0)
    by_touch = np.where(known, touched, part_bytes).astype(np.float64)
    by_write = np.where(np.bincount(row, told_writes, len(a))[row] > 0, told_writes, by_touch)
    for column, weight in (("touched_bytes", by_touch), ("read_bytes", by_touch), ("written_bytes", by_write)):
        out[column] = _spread(a[column], weight, row, begins)
    for column, seen in (("pages_touched", touched), ("pages_written", written)):
        even = _spread(np.maximum(a[column], 0), part_bytes.astype(np.float64), row, begins)
        out[column] = np.where(known, seen, np.where(out[column] < 0, -1, even))
    return out


def _told(
    ranges: NDArray[Any],
    first: NDArray[np.int64],
    first_page: NDArray[np.int64],
    length: int,
    part: NDArray[np.int64],
    layer: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each (part, layer): pages touched, and pages written or -1; both 0 where no range tells of it."""
    apart = int(first_page.max(initial=0)) + 1
    whole = np.repeat(np.arange(len(first) - 1), np.diff(first))
    of_part = whole * apart + first_page  # ascending
    at = np.searchsorted(of_part, ranges["tensor"].astype(np.int64) * apart + ranges["first_page"])
    key = at * length + ranges["layer"]
    order = np.argsort(key)
    key = key[order]
    wanted = part * length + layer
    place = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
    told = key[place] == wanted
    found = ranges[order][place]
    return np.where(told, found["pages_touched"], 0), np.where(told, found["pages_written"], 0)


def _spread(
    total: NDArray[Any], weight: NDArray[np.float64], row: NDArray[np.int64], begins: NDArray[np.int64]
) -> NDArray[np.int64]:
    """`total` of each row to its pairs by weight, in whole numbers that add up to it."""
    if not len(row):
        return np.zeros(0, np.int64)
    running = np.cumsum(weight)
    before = (running - weight)[begins][row]
    sums = np.add.reduceat(weight, begins)[row]
    scale = total[row] / np.maximum(sums, 1e-300)
    upto = np.rint((running - before) * scale).astype(np.int64)
    last = np.append(np.diff(row) != 0, True)
    upto[last] = total[row[last]]
    from_ = np.append(0, upto[:-1])
    from_[begins] = 0
    shares: NDArray[np.int64] = np.maximum(upto - from_, 0)
    return shares
