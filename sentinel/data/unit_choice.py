"""How many samples of a data set are read at once: one rule for `loader` and for `sentinel data plan`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sentinel.core.errors import UsageError
from sentinel.core.units import format_bytes, format_ns, plain
from sentinel.data.chunk_reader import reads_in_flight
from sentinel.data.room_here import unit_within
from sentinel.data.sample_arena import ArenaShape
from sentinel.data.source_reads import SourceReads
from sentinel.samples import ALONE, SourceCosts, best_unit

UNIT = 64
"""Samples that are read at once, where neither `unit` says otherwise nor is it measured."""
AUTO_UNIT = "auto"
READ_ALONE = "reading each sample alone is cheapest here: nothing is staged, and memory= is not used"
CACHED = "all files are in the page cache, and each sample is read alone: nothing is staged, and memory= is not used"
_MOST_UNIT = 256


@dataclass(frozen=True)
class UnitChoice:
    """`unit`: samples that are read at once, or fewer where the memory is little; ALONE: each by who needs it, without
    memory. `why`: a sentence, "" where nothing was chosen. `cached`: all files are in the page cache.

    `gap_bytes`: of chunks that are read for some samples, the longest gap between two of them that is read too; None
    where chunks are read whole. `staged`, `alone`: what reads cost, as the reader sees it and as workers do that read
    each sample alone; None where nobody has asked.
    """

    unit: int = UNIT
    why: str = ""
    cached: bool = False
    gap_bytes: int | None = None
    staged: SourceCosts | None = None
    alone: SourceCosts | None = None


NO_CHOICE = UnitChoice()
"""Where nobody has chosen, nor asked what reads cost."""


def checked_unit(unit: int | str) -> int | str:
    """`unit` as a user gives it. Raises UsageError for what is neither a number of samples nor "auto"."""
    unit = plain(unit)
    if unit != AUTO_UNIT and (isinstance(unit, bool) or not isinstance(unit, int) or unit < 1):
        raise UsageError(f"unit={unit!r} is not a number of samples", 'give 1 or more, or "auto"')
    return unit


def choose_unit(
    reads: SourceReads,
    shape: ArenaShape,
    unit: int | str,
    kind: str = "exact",
    workers: int = 0,
    *,
    shares: bool = False,
) -> UnitChoice:
    """What `unit` means for an order of this kind, with memory of this shape and so many workers.

    "auto" is a choice in exact order only, for other orders depend on the unit, and only where chunks can be read in
    parts. What is measured is another unit each time: jobs that share (`shares`) take a fixed one. Raises UsageError
    for memory that does not hold the largest sample, where that is to be chosen by what reads cost.
    """
    data = reads.data
    if unit != AUTO_UNIT or kind != "exact" or data.layout.encoded:
        return _with_costs(reads, int(UNIT if unit == AUTO_UNIT else unit), "", workers)
    if reads.cached:
        return _with_costs(reads, ALONE, CACHED, workers)
    if shares:
        return _with_costs(reads, UNIT, "", workers)
    unit_within(data.layout, shape, UNIT)
    costs = reads.costs
    staged, alone = costs.of_reader(reads_in_flight(workers)), costs.of_workers(workers)
    best = best_unit(data.layout.cut(_MOST_UNIT), shape.n_pages * shape.page_bytes, staged, alone) or _MOST_UNIT
    said = f"of each {best} samples those that stay are read: a read takes {format_ns(costs.latency_ns)} here"
    why = READ_ALONE if best == ALONE else f"{said} and {format_bytes(costs.read_bytes_per_s)}/s, so that is cheapest"
    gap_bytes = None if best == ALONE else staged.gap_bytes
    return replace(_with_costs(reads, best, why, workers), gap_bytes=gap_bytes)


def _with_costs(reads: SourceReads, unit: int, why: str, workers: int) -> UnitChoice:
    costs = reads.known
    if costs is None:
        return UnitChoice(unit, why, reads.cached)
    staged, alone = costs.of_reader(reads_in_flight(workers)), costs.of_workers(workers)
    return UnitChoice(unit, why, reads.cached, staged=staged, alone=alone)
