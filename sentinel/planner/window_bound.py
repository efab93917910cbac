"""The window bound: a time below which no way of executing a step within so many frames can stay.

A window is the time from the begin of operator i to that of operator j. When i begins, its own granules are in frames;
each other frame holds at most one granule, takes one in, or has one on its way out. Of the granules whose bytes the
operators after i up to j need from before, D, those that are in no frame then are read within the window: at least

    D - frames + those granules of i that are not among them

When j begins the same holds of the granules that operators i to j - 1 have changed and whose bytes are still needed, W:
within the window, and not before they were changed, at least so many were written:

    W - frames + those granules of j that are not among them

Reads of windows that follow one another add up, and so do writes, since no transfer is counted in two of them: R and S
of a window are the most that any cut of it into windows adds up to. The cuts of reads and of writes may differ. Reads
and writes share the disk, so a window takes at least

    max(compute of its operators, R x time of a read + S x time of a write)

and a step the most that any cut of it into windows, from any operator on around to it again, adds up to. Steps that are
alike may share windows over their ends: that is why cuts may begin anywhere.

Relaxed: what lies in frames at a window's begin, and what of it is changed, is the best for that window; within a
window transfers and operators overlap freely, and births within it need no frame. Where there are more than `_CUTS`
operators, windows begin and end at that many of them only, which costs the bound something, never its truth. Of an
operator whose granules exceed the frames nothing is said at the ends of a window: it runs on what it finds.

Where a tier's bytes cannot be used in place, plans have this bound too (`profile_window_bound_ns`). What a layer uses
is in memory as the layer begins, and what is born in it and outlives it as it ends. So a layer is two operators: its
begin, which takes its time, and its end, which takes none. Memory is the fast tier and all others that are used in
place; reads and writes are promotions from, and demotions to, those that are not. Relaxed, beside all that: tensors are
cut into units, of which parts are left out; what is born and dies within a layer is left out; bytes that nobody has
changed need not be written to leave.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.core.cost import base_ns
from sentinel.core.disk_rates import DiskRates
from sentinel.core.extents import extents_as_tensors
from sentinel.core.granule_contents import GranuleContents, granule_contents
from sentinel.core.granule_uses import BORN, DIED, READS, WRITES, GranuleUses
from sentinel.core.machine import Machine
from sentinel.core.profile import Profile
from sentinel.core.ragged import positions
from sentinel.core.units import HUGE_PAGE_BYTES, PAGE_BYTES

_CUTS = 256
"""Where windows may begin: work grows with the cube, 256 take about a second."""

_ROUNDING = 1e-9
"""Taken off a sum of floating-point numbers, as a share."""


@dataclass(frozen=True)
class WindowBound:
    """`step_ns`: no step is shorter; `compute_ns` of it is that of all operators. `read_bytes`, `written_bytes`: a step
    reads and writes no less."""

    step_ns: int
    compute_ns: int
    read_bytes: int
    written_bytes: int


def window_bound(uses: GranuleUses, frames: int, rates: DiskRates) -> WindowBound:
    """The bound of steps of `uses` within `frames` frames of a granule each. Raises ValueError for fewer than 1."""
    if frames < 1:
        raise ValueError(f"frames: {frames}, expected at least 1")
    compute = int(uses.compute_ns.sum())
    contents = granule_contents(uses)
    if not len(contents.operator):
        return WindowBound(compute, compute, 0, 0)
    cuts = _cuts(uses, contents)
    reads, writes = (_best_cut(np.maximum(each, 0).astype(np.float64)) for each in _transfers(contents, cuts, frames))
    half = len(cuts) // 2
    passed = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.tile(uses.compute_ns, 2))])[cuts]
    transfers = reads * rates.read_ns + writes * rates.write_ns
    steps = _best_cut(np.maximum((passed[None, :] - passed[:, None]).astype(np.float64), transfers))
    begin = np.arange(half + 1)
    around = (begin, begin + half)
    return WindowBound(
        step_ns=max(int(steps[around].max() * (1 - _ROUNDING) + 1e-6), compute),
        compute_ns=compute,
        read_bytes=int(reads[around].max()) * HUGE_PAGE_BYTES,
        written_bytes=int(writes[around].max()) * HUGE_PAGE_BYTES,
    )


def _cuts(uses: GranuleUses, contents: GranuleContents) -> NDArray[np.int64]:
    """Operators at which windows begin and end, over two steps: 2 x cuts + 1 of them. Where there are too many, there
    are more where more is needed and changed, and where operators take longer."""
    n = uses.operators
    if n <= _CUTS:
        one = np.arange(n)
    else:
        weight = np.bincount(contents.operator, contents.needs + contents.writes * 1.0, n)
        weight = weight / max(weight.sum(), 1) + uses.compute_ns / max(int(uses.compute_ns.sum()), 1) / 4 + 1e-3 / n
        passed = np.concatenate([np.zeros(1), np.cumsum(weight)])
        one = np.unique(np.searchsorted(passed, np.arange(_CUTS) * (passed[-1] / _CUTS)))
        one = one[one < n]
    return np.concatenate([one, one + n, [one[0] + 2 * n]]).astype(np.int64)


def _transfers(
    contents: GranuleContents, cuts: NDArray[np.int64], frames: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each window, by the numbers of its two cuts, how many granules are read in it at least, and how many written;
    not above 0 where that is none. Of windows longer than a step nothing is said.

    Granules are counted in rectangles of windows, which are summed up from their corners.
    """
    n, size = contents.operators, len(cuts)
    at, before, after, until = (
        np.concatenate([row, row + n]) for row in (contents.operator, contents.previous, contents.next, contents.until)
    )
    written = np.concatenate([contents.written, contents.written + n])
    needs, writes, goes_on = (np.tile(row, 2) for row in (contents.needs, contents.writes, contents.next_needs))
    own = np.searchsorted(cuts, at)  # the first cut that is not before the operator
    is_cut = (cuts[own] == at) & (np.bincount(contents.operator, minlength=n)[at % n] <= frames)
    everywhere, none = np.full(len(at), size), np.zeros(len(at), np.int64)

    # D: the first access after i needs it, so the one before that is not after i.
    read = _rectangles(size, needs, (np.searchsorted(cuts, before), own), (own, everywhere)) - frames
    # The granules of i, but for those that are among D: the next access needs it, and is not after j.
    read += _rectangles(size, is_cut, (own, own + 1), (own + 1, everywhere))
    read -= _rectangles(size, is_cut & goes_on, (own, own + 1), (np.searchsorted(cuts, after), everywhere))

    # W: written from i on, before j, and needed at j or later.
    behind, latest = np.searchsorted(cuts, at, "right"), np.searchsorted(cuts, until, "right")
    written_out = _rectangles(size, writes, (none, behind), (behind, np.maximum(latest, behind))) - frames
    # The granules of j, but for those that are among W: it needs what was written from i on.
    written_out += _rectangles(size, is_cut, (none, own), (own, own + 1))
    since = np.searchsorted(cuts, written, "right")
    written_out -= _rectangles(size, is_cut & needs, (none, np.minimum(since, own)), (own, own + 1))
    return read, written_out


Bounds = tuple[NDArray[np.int64], NDArray[np.int64]]


def _rectangles(size: int, chosen: NDArray[np.bool_], rows: Bounds, columns: Bounds) -> NDArray[np.int64]:
    """(size, size) in how many of the `chosen` rectangles of half-open `rows` and `columns` each place lies."""
    (top, bottom), (left, right) = ((low[chosen], high[chosen]) for low, high in (rows, columns))
    corners = np.zeros((size + 1) * (size + 1), np.int64)
    for row, column, sign in (
        (top, left, 1),
        (bottom, left, -1),
        (top, right, -1),
        (bottom, right, 1),
    ):
        corners += sign * np.bincount(row * (size + 1) + column, minlength=len(corners))
    return np.asarray(corners.reshape(size + 1, size + 1).cumsum(0).cumsum(1)[:size, :size])


def _best_cut(value: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, N): the most that any cut of the window from cut i to cut j into windows adds up to; 0 where it is longer
    than one step."""
    best = np.full_like(value, -np.inf)
    np.fill_diagonal(best, 0.0)
    for end in range(1, len(value)):
        near = slice(max(end - len(value) // 2, 0), end)
        best[near, end] = (best[near, near] + value[near, end]).max(1)
    return np.maximum(best, 0.0)


_MOST_USES = 1 << 19
"""Units are as small as this allows, but whole pages."""


def needs_windows(machine: Machine) -> bool:
    """Whether a tier of `machine` cannot be used in place."""
    return not all(tier.addressable for tier in machine.tiers)


def profile_window_bound_ns(profile: Profile, machine: Machine) -> int:
    """No plan's step is shorter than so many ns; 0 where all tiers are used in place."""
    if not needs_windows(machine):
        return 0
    profile = extents_as_tensors(profile)
    used = profile.tensors["nbytes"][profile.accesses["extent"]]
    unit_bytes = max(-(-int(used.sum()) // (_MOST_USES * PAGE_BYTES)), 1) * PAGE_BYTES
    uses = _uses(profile, machine, unit_bytes)
    memory = sum(tier.capacity_bytes for tier in machine.tiers if tier.addressable)
    frames = max(-(-memory // unit_bytes), 1)
    away = [index for index, tier in enumerate(machine.tiers) if not tier.addressable]
    read, write = (
        sum(machine.link(*ends).bandwidth_bytes_per_s for ends in pairs) * HUGE_PAGE_BYTES / unit_bytes
        for pairs in ([(tier, machine.hub) for tier in away], [(machine.hub, tier) for tier in away])
    )
    apart = (DiskRates(read, np.inf), DiskRates(np.inf, write))  # as if the other direction took no time
    rates = apart if machine.full_duplex else (DiskRates(read, write),)
    return max(window_bound(uses, frames, each).step_ns for each in rates)


def _uses(profile: Profile, machine: Machine, unit_bytes: int) -> GranuleUses:
    """Operator 2k is the begin of layer k, operator 2k + 1 its end."""
    t, a, length = profile.tensors, profile.accesses, profile.n_layers
    compute, traffic = base_ns(profile, machine)
    compute_ns = np.zeros(2 * length, np.int64)
    compute_ns[::2] = np.floor(np.maximum(compute, traffic))
    units = np.where(t["managed"], t["nbytes"] // unit_bytes, 0)
    lasting = t["persistent"]
    outlives = ~lasting & (t["stop"] - t["start"] > 1)
    tensor, layer = a["extent"].astype(np.int64), a["layer"].astype(np.int64)
    kind = READS * (a["read_bytes"] > 0) + WRITES * (a["written_bytes"] > 0)
    born = ~lasting[tensor] & (layer == t["start"][tensor])
    later = ~born & (kind > 0) & (lasting | outlives)[tensor]
    made = born & (kind > 0) & outlives[tensor]
    those = np.flatnonzero(outlives)
    tensors = np.concatenate([tensor[later], tensor[made], those, those])
    operators = np.concatenate(
        [2 * layer[later], 2 * layer[made] + 1, 2 * t["start"][those] + 1, 2 * ((t["stop"][those] - 1) % length)]
    )
    kinds = np.concatenate(
        [kind[later], np.full(made.sum(), WRITES), np.full(len(those), BORN), np.full(len(those), DIED)]
    )
    return _of_units(compute_ns, tensors, operators, kinds, units)


def _of_units(
    compute_ns: NDArray[np.int64],
    tensors: NDArray[np.int64],
    operators: NDArray[np.int64],
    kinds: NDArray[np.int64],
    units: NDArray[np.int64],
) -> GranuleUses:
    """The uses of each tensor's `units`; several kinds of one tensor in one operator become one."""
    key, which = np.unique(operators * len(units) + tensors, return_inverse=True)
    kind = np.zeros(len(key), np.uint8)
    np.bitwise_or.at(kind, which, kinds.astype(np.uint8))
    operator, tensor = key // len(units), key % len(units)
    count = units[tensor]
    base = np.cumsum(units) - units
    per_operator = np.bincount(operator, count, len(compute_ns)).astype(np.int64)
    return GranuleUses(
        compute_ns,
        np.concatenate([np.zeros(1, np.int64), np.cumsum(per_operator)]),
        (np.repeat(base[tensor], count) + positions(count)).astype(np.int32),
        np.repeat(kind, count),
    )
