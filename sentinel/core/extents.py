"""Extents of a profile: what is planned apart, a whole tensor or a page range of a large one. Pure.

`cut_extents` makes them, once: attribution calls it, and the reader of files that were written before there were any.
A policy knows tensors only. So it is given a profile in which each extent is a tensor (`extents_as_tensors`), or whole
tensors (`merge_extents`); `plan_of_tensors` turns the plan of the former into one of the profile's own tensors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import PlanError, UsageError
from sentinel.core.plan import Block, Plan, Slot
from sentinel.core.profile import EXTENT_DTYPE, Profile
from sentinel.core.ragged import positions
from sentinel.core.rules import first_broken
from sentinel.core.units import PAGE_BYTES

RANGE_DTYPE = np.dtype(
    [  # what a layer touched of one page range of a tensor
        ("tensor", "<i4"),
        ("layer", "<i4"),
        ("first_page", "<i4"),  # page index within the tensor
        ("stop_page", "<i4"),
        ("pages_touched", "<i4"),  # of the range, in the layer; at least 1
        ("pages_written", "<i4"),  # -1: unknown
    ]
)


def cut_extents(profile: Profile, ranges: NDArray[Any], most_accesses: int | None = None) -> Profile:
    """`profile`, whose tensors are whole, with its managed tensors cut where their ranges begin and end.

    `ranges`: dtype RANGE_DTYPE, one row a range and layer that touches it, sorted by (tensor, layer, first_page). The
    ranges of one tensor are the same in all layers and do not overlap; pages in none of them are touched in no layer.
    Bytes and accesses are conserved: those of a tensor in a layer go to its extents by the pages touched there, or by
    bytes in a layer that has no rows of the tensor. Raises UsageError for ranges that cannot be, and for those that
    make more than `most_accesses` of one extent in one layer.
    """
    problem = _range_problems(ranges, profile.tensors, profile.n_layers)
    if problem:
        raise UsageError(f"the page ranges of a profile break their own rules: {problem}", "record it again")
    tensor: NDArray[np.int64] = ranges["tensor"]
    ranges = ranges[profile.tensors["managed"][tensor]]
    if not len(ranges):
        return profile
    extents = _cuts(profile.tensors["nbytes"], ranges)
    first = np.searchsorted(extents["tensor"], np.arange(len(profile.names) + 1))
    made = int(np.diff(first)[profile.accesses["extent"]].sum())
    if most_accesses is not None and made > most_accesses:
        raise UsageError(f"page ranges and layers make {made} accesses of at most {most_accesses}", "record it again")
    return replace(profile, extents=extents, accesses=_accesses(profile, ranges, first, extents))


def extents_as_tensors(profile: Profile) -> Profile:
    """A profile in which each extent of `profile` is a tensor, named by its tensor and pages."""
    if not profile.is_cut:
        return profile
    e = profile.extents
    tensors = profile.tensors[e["tensor"]]
    tensors["nbytes"] = e["nbytes"]
    first, stop = e["offset"] // PAGE_BYTES, -(-(e["offset"] + e["nbytes"]) // PAGE_BYTES)
    several = np.bincount(e["tensor"])[e["tensor"]] > 1
    names = tuple(
        f"{profile.names[tensor]}[{low}:{high}]" if part else profile.names[tensor]
        for tensor, low, high, part in zip(*(c.tolist() for c in (e["tensor"], first, stop, several)), strict=True)
    )
    return replace(profile, names=names, tensors=tensors, extents=np.zeros(0, EXTENT_DTYPE), sources=())


def merge_extents(profile: Profile, which: NDArray[np.bool_] | None = None) -> Profile:
    """`profile` with one extent a tensor, and the accesses of each tensor's extents added up.

    `which`: (n,) the tensors that are merged; default: all.
    """
    if not profile.is_cut:
        return profile
    a, e, length = profile.accesses, profile.extents, profile.n_layers
    heads = e["offset"] == 0
    if which is not None:
        heads |= ~which[e["tensor"]]
    number = np.cumsum(heads) - 1  # of the extent that each becomes part of
    extents = e[heads]
    extents["nbytes"] = np.bincount(number, e["nbytes"], len(extents))
    extent = number[a["extent"]]
    _, first, place = np.unique(extent.astype(np.int64) * length + a["layer"], return_index=True, return_inverse=True)
    out = a[first]  # an operator that reads a tensor reads each of its extents: the counts of one are those of all
    out["extent"] = extent[first]
    for column in ("read_bytes", "written_bytes", "touched_bytes", "pages_touched", "pages_written"):
        out[column] = 0
        np.add.at(out[column], place, a[column])
    for column in ("pages_touched", "pages_written"):
        out[column][place[a[column] < 0]] = -1
    return replace(profile, accesses=out, extents=extents)


def extent_shares(plan: Plan, profile: Profile) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """(pairs,) block, extent and the share of the extent's bytes that lies in the block, if any; sorted by block."""
    blocks, slots = plan.block_columns, plan.slot_columns
    offset = np.zeros(len(profile.names), np.int64)
    offset[slots.tensor] = slots.offset
    tensor = blocks.tensors
    first = profile.first_extent
    count = first[tensor + 1] - first[tensor]
    block, extent = np.repeat(blocks.owner, count), positions(count) + np.repeat(first[tensor], count)
    nbytes = profile.extents["nbytes"][extent]
    at = offset[profile.extents["tensor"][extent]] + profile.extents["offset"][extent]
    begin = blocks.offset[block]
    inside = np.minimum(begin + blocks.nbytes[block], at + nbytes) - np.maximum(begin, at)
    some = inside > 0
    return block[some], extent[some], inside[some] / nbytes[some]


def plan_of_tensors(plan: Plan, profile: Profile) -> Plan:
    """The plan of `extents_as_tensors(profile)` as one of `profile`: a slot a tensor, and blocks that are page ranges.

    Raises PlanError if the extents of a tensor do not follow each other.
    """
    if not profile.is_cut:
        return plan
    extents = profile.extents
    slots: dict[int, Slot] = {}
    for slot in sorted(plan.slots, key=lambda slot: slot.tensor):
        tensor = int(extents["tensor"][slot.tensor])
        name, head = profile.names[tensor], slots.get(tensor)
        if head is None:
            slots[tensor] = replace(slot, tensor=tensor, name=name)
        elif slot.offset != head.offset + int(extents["offset"][slot.tensor]):
            raise PlanError(f"the extents of {name} do not follow each other")
        else:
            slots[tensor] = replace(head, nbytes=slot.offset + slot.nbytes - head.offset)
    several = np.bincount(extents["tensor"]) > 1
    blocks = []
    for block in plan.blocks:
        tensors = tuple(dict.fromkeys(extents["tensor"][list(block.tensors)].tolist()))
        if len(tensors) == 1 and several[tensors[0]]:
            block = _named(block, slots[tensors[0]])
        blocks.append(replace(block, tensors=tensors))
    return replace(plan, slots=tuple(slots.values()), blocks=tuple(blocks))


def _named(block: Block, slot: Slot) -> Block:
    """`block`, a page range of the tensor in `slot`, named after it."""
    page = (block.offset - slot.offset) // PAGE_BYTES
    return replace(block, name=f"{slot.name}[{page}:{page + block.nbytes // PAGE_BYTES}]")


def _cuts(nbytes: NDArray[np.int64], ranges: NDArray[Any]) -> NDArray[Any]:
    """The extents of tensors of so many bytes."""
    pages = -(-nbytes // PAGE_BYTES)
    tensor = np.concatenate([np.arange(len(pages)), ranges["tensor"], ranges["tensor"]]).astype(np.int64)
    page = np.concatenate([np.zeros_like(pages), ranges["first_page"], ranges["stop_page"]]).astype(np.int64)
    inside = page < pages[tensor]
    apart = int(pages.max()) + 1
    key = np.unique(tensor[inside] * apart + page[inside])
    out = np.zeros(len(key), EXTENT_DTYPE)
    out["tensor"], out["offset"] = key // apart, key % apart * PAGE_BYTES
    last = np.append(np.diff(out["tensor"]) != 0, True)
    end = np.where(last, nbytes[out["tensor"]], np.append(out["offset"][1:], 0))
    out["nbytes"] = end - out["offset"]
    return out


def _accesses(profile: Profile, ranges: NDArray[Any], first: NDArray[np.int64], extents: NDArray[Any]) -> NDArray[Any]:
    """The accesses of each extent: one row an extent and layer that touches it. `first`: of each tensor."""
    a = profile.accesses  # of whole tensors
    count = np.diff(first)[a["extent"]]
    same = a[count == 1]
    same["extent"] = first[same["extent"]]
    cut, count = a[count > 1], count[count > 1]
    row = np.repeat(np.arange(len(cut)), count)
    begins = np.cumsum(count) - count
    extent = positions(count) + first[cut["extent"]][row]
    told = _told(ranges, extents, profile.n_layers, extent, cut["layer"][row])
    spread = _spread_over_extents(cut, row, begins, extents["nbytes"][extent], *told)
    spread["extent"] = extent
    used = spread["touched_bytes"] + spread["read_bytes"] + spread["written_bytes"] > 0
    found = np.concatenate([same, spread[used | (spread["pages_touched"] != 0)]])
    return found[np.lexsort((found["layer"], found["extent"]))]


def _spread_over_extents(
    a: NDArray[Any],
    row: NDArray[np.int64],
    begins: NDArray[np.int64],
    extent_bytes: NDArray[np.int64],
    touched: NDArray[np.int64],
    written: NDArray[np.int64],
) -> NDArray[Any]:
    """(pairs,) the rows of `a` once an extent. Pairs of row r are those from `begins[r]` on; `row`: of each pair."""
    out = a[row]
    known = np.bincount(row, touched, len(a))[row] > 0  # ranges tell of this tensor in this layer
    told_writes = np.where(known, np.maximum(written, 0), 0)
    by_touch = np.where(known, touched, extent_bytes).astype(np.float64)
    by_write = np.where(np.bincount(row, told_writes, len(a))[row] > 0, told_writes, by_touch)
    for column, weight in (("touched_bytes", by_touch), ("read_bytes", by_touch), ("written_bytes", by_write)):
        out[column] = _spread(a[column], weight, row, begins)
    for column, seen in (("pages_touched", touched), ("pages_written", written)):
        even = _spread(np.maximum(a[column], 0), extent_bytes.astype(np.float64), row, begins)
        out[column] = np.where(known, seen, np.where(out[column] < 0, -1, even))
    return out


def _told(
    ranges: NDArray[Any], extents: NDArray[Any], length: int, extent: NDArray[np.int64], layer: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each (extent, layer): pages touched, and pages written or -1; both 0 where no range tells of it."""
    page = extents["offset"] // PAGE_BYTES
    apart = int(page.max()) + 1
    of_extent = extents["tensor"].astype(np.int64) * apart + page  # ascending
    at = np.searchsorted(of_extent, ranges["tensor"].astype(np.int64) * apart + ranges["first_page"])
    key = at * length + ranges["layer"]
    order = np.argsort(key)
    key = key[order]
    wanted = extent * length + layer
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


def _range_problems(r: NDArray[Any], t: NDArray[Any], n_layers: int) -> str:
    if r.dtype != RANGE_DTYPE:
        return "the table of ranges has another dtype than declared"
    if not len(r):
        return ""
    if r["tensor"].min() < 0 or r["tensor"].max() >= len(t) or r["layer"].min() < 0 or r["layer"].max() >= n_layers:
        return "a range names a tensor or layer that is not there"
    order = np.lexsort((r["first_page"], r["layer"], r["tensor"]))
    same = (np.diff(r["tensor"]) == 0) & (np.diff(r["layer"]) == 0)
    kinds = np.unique(r[["tensor", "first_page", "stop_page"]])
    overlap = (kinds["tensor"][1:] == kinds["tensor"][:-1]) & (kinds["first_page"][1:] < kinds["stop_page"][:-1])
    broken = first_broken(
        (not t["persistent"][r["tensor"]].all(), "a range is of a tensor that does not live across steps"),
        (
            r["first_page"].min() < 0 or (r["stop_page"] > -(-t["nbytes"][r["tensor"]] // PAGE_BYTES)).any(),
            "a range lies outside its tensor",
        ),
        (
            (r["pages_touched"] < 1).any()
            or (r["pages_touched"] > r["stop_page"].astype(np.int64) - r["first_page"]).any(),
            "a range has no pages, or more are touched than it has",
        ),
        (
            (r["pages_written"] < -1).any() or (r["pages_written"] > r["pages_touched"]).any(),
            "more pages of a range are written than touched",
        ),
        ((np.diff(order) != 1).any(), "ranges are not sorted by (tensor, layer, first_page)"),
        ((same & (np.diff(r["first_page"]) == 0)).any(), "a range occurs twice in a layer"),
        (overlap.any(), "ranges of one tensor overlap"),
    )
    return broken or ""
