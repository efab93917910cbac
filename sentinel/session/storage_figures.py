"""What a session on a file tells: figures of its frames and its file, and the sentences that follow from them."""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from sentinel.core.disk_rates import DiskRates
from sentinel.core.errors import SentinelError
from sentinel.core.granule_uses import GranuleUses
from sentinel.core.rules import holding
from sentinel.core.units import PAGE_BYTES, counted, format_bytes
from sentinel.migration.memory import MemoryCounters
from sentinel.planner.window_bound import WindowBound, window_bound
from sentinel.profiler.step_period import LIMIT
from sentinel.reports import StorageFigures
from sentinel.session.step_rounds import StepRounds
from sentinel.system.disks import disk_of
from sentinel.system.progress import telling
from sentinel.tiers.ahead import AheadCounters, ahead_counters
from sentinel.tiers.file_tier import FileTier, FramedTensors
from sentinel.tiers.frames import FRAME_BYTES, REMEDIES
from sentinel.tiers.pool_cap import pool_now

NAMED = 'name the model, start_profile(model, optimizer, fast=..., slow="file:..."), or begin before it is built'

_FOREIGN = (
    "are in memory that is not torch's own, as where `from_pretrained` maps a checkpoint, and stay there, beside the"
    " budget; `parameter.data = parameter.data.clone()` brings one into it"
)
_NO_STEP = (
    "No step was recorded, so what an operator needs is read before it runs, and nothing ahead: that begins after three"
    f" training steps with torch.optim optimizers, of {LIMIT}, in this process."
)
_NONE_USED = (
    f"No operator of a training step used a tensor of {format_bytes(FileTier.least_bytes)} or more that is within the"
    " budget, so there is nothing to read ahead."
)
_ALL_SMALL = (
    f"No tensor had {format_bytes(FileTier.least_bytes)} or more: smaller ones stay in ordinary memory, which fast does"
    " not limit, so the file was not used."
)
_TOO_LONG = "A step uses more than 4 million pieces of 2 MiB: it is not recorded, and nothing is read ahead."
_OTHERS = (
    "Most operators were not those of the recorded step, as with batches of many shapes: nothing is read ahead there."
)
_NO_RATES = (
    "How fast a step could be on this disk is not known: fewer than 16 MiB were read, or written, while nothing went"
    " the other way."
)
_SLOW = 10
"""A disk is slow that moves a tenth of what it did at its best."""
_STEPS = 64
"""The last 64 steps are timed."""


@dataclass
class StepTimes:
    """How long training steps take, from the end of one to that of the next."""

    _ended_ns: int = 0
    _took_ns: deque[int] = field(default_factory=lambda: deque(maxlen=_STEPS))

    def ended(self) -> None:
        """A step has."""
        now = time.perf_counter_ns()
        if self._ended_ns:
            self._took_ns.append(now - self._ended_ns)
        self._ended_ns = now

    @property
    def median_ns(self) -> int:
        """Of the last 64; 0 where there was none."""
        return int(statistics.median(self._took_ns)) if self._took_ns else 0

    @property
    def least_ns(self) -> int:
        """Of the last 64; 0 where there was none."""
        return min(self._took_ns, default=0)


def bound_of(
    recorded: GranuleUses | None, most_pool_bytes: int, told: AheadCounters, least_ns: int, steps: int = 1
) -> WindowBound | None:
    """The window bound of the recorded step in the most frames that there were, at the fastest rates that transfers had
    while nothing went the other way. Each direction is bound by itself: a disk may do both at once. None where there is
    no recorded step, or no rate.

    `least_ns`: the fastest step. The recorded one is an early one, which may compute more slowly: operators are taken
    to be as much faster as would make them fit into the fastest step, and the bound is never above that. `steps`: were
    recorded together; the bound is one step's part of theirs."""
    rates = []
    if told.read_alone_ns:
        rates.append(DiskRates(told.read_alone_bytes * 1e9 / told.read_alone_ns, inf))
    if told.write_alone_ns:
        rates.append(DiskRates(inf, told.write_alone_bytes * 1e9 / told.write_alone_ns))
    if recorded is None or not rates:
        return None
    share = steps * least_ns / max(int(recorded.compute_ns.sum()), 1)
    if share < 1:
        recorded = replace(recorded, compute_ns=(recorded.compute_ns * share).astype(np.int64))
    with telling("looking for the bound"):
        found = [window_bound(recorded, most_pool_bytes // FRAME_BYTES, each) for each in rates]
    highest = max(found, key=lambda each: each.step_ns)
    return WindowBound(
        step_ns=min(highest.step_ns // steps, least_ns),
        compute_ns=highest.compute_ns // steps,
        read_bytes=highest.read_bytes // steps,
        written_bytes=highest.written_bytes // steps,
    )


def figures_of(
    framed: FramedTensors,
    tier: FileTier,
    ordinary: MemoryCounters,
    resident_bytes: tuple[int, int],
    recorded: GranuleUses | None,
    times: StepTimes,
    rounds: StepRounds,
) -> StorageFigures:
    """`ordinary`: of memory beside frames. `resident_bytes`: in all, and cached pages of the file. `recorded`: the
    round of steps that later ones were followed by, of which a bound is looked for, which takes seconds where it is
    long. `times`: of steps; without any there is no bound."""
    told, facts, pool, cap = framed.counters(), framed.facts, pool_now(), tier.cap
    ahead = ahead_counters()
    followed = recorded if times.least_ns else None
    bound = bound_of(followed, pool.most_frames * FRAME_BYTES, ahead, times.least_ns, rounds.of_record)
    return StorageFigures(
        pool_bytes=pool.frames * FRAME_BYTES,
        least_pool_bytes=pool.least_frames * FRAME_BYTES,
        most_pool_bytes=pool.most_frames * FRAME_BYTES,
        cap_bytes=0 if cap is None else cap.cap_bytes,
        taken_bytes=0 if cap is None else cap.taken_bytes,
        most_taken_bytes=0 if cap is None else max(cap.taken_bytes, pool.most_taken_bytes),
        spare_bytes=0 if cap is None else cap.spare_bytes,
        over_bytes=pool.over_bytes,
        looks=pool.looks,
        resident_bytes=resident_bytes[0],
        cached_bytes=resident_bytes[1],
        huge_bytes=pool.huge_frames * FRAME_BYTES,
        file_bytes=tier.file_bytes,
        direct=bool(facts.direct),
        tensor_peak_bytes=told.peak_live_bytes,
        elsewhere_peak_bytes=ordinary.unmanaged_peak_bytes,
        read_bytes=told.frames.read_bytes,
        written_bytes=told.frames.written_bytes,
        dropped_granules=told.frames.dropped,
        unread_bytes=told.frames.unread_bytes,
        beside_peak_bytes=told.frames.most_own_pages * PAGE_BYTES,
        carried_pages=told.frames.carried_pages,
        waited_stores=told.frames.waited,
        fork_bytes=told.frames.fork_bytes,
        operators=told.needs,
        waited_ns=told.need_ns,
        too_large=told.too_large,
        too_large_bytes=told.too_large_bytes,
        too_large_by=told.too_large_by.decode(),
        sliced=told.sliced,
        refused=told.refused,
        refused_bytes=told.refused_bytes,
        failed=told.failed,
        recorded=ahead.recorded,
        matched=ahead.matched,
        missed=ahead.missed,
        hit_bytes=ahead.hit_bytes,
        late_bytes=ahead.late_bytes,
        vain_bytes=ahead.vain_bytes,
        demanded_bytes=ahead.demanded_bytes,
        wait_before_ns=ahead.wait_before_ns,
        wait_after_ns=ahead.wait_after_ns // rounds.last,
        record_too_long=bool(ahead.too_long),
        step_ns=times.median_ns,
        bound_ns=0 if bound is None else bound.step_ns,
        bound_compute_ns=0 if bound is None else bound.compute_ns,
        bound_read_bytes=0 if bound is None else bound.read_bytes,
        bound_written_bytes=0 if bound is None else bound.written_bytes,
        read_alone_bytes_per_s=ahead.read_alone_bytes * 10**9 // max(ahead.read_alone_ns, 1),
        write_alone_bytes_per_s=ahead.write_alone_bytes * 10**9 // max(ahead.write_alone_ns, 1),
        read_lately_bytes_per_s=ahead.read_lately_bytes * 10**9 // max(ahead.read_lately_ns, 1),
        write_lately_bytes_per_s=ahead.write_lately_bytes * 10**9 // max(ahead.write_lately_ns, 1),
        failed_reads=told.frames.failed_reads,
        failed_writes=told.frames.failed_writes,
        read_failure=told.frames.read_failure,
        write_failure=told.frames.write_failure,
        file_full=told.frames.file_full,
    )


def notes_on(
    told: StorageFigures,
    tier: FileTier,
    unnamed_bytes: int,
    hourly_bytes: float,
    beside: tuple[str, ...],
    *,
    left_bytes: int = 0,
    foreign_bytes: int = 0,
) -> list[str]:
    """Sentences for the report. `unnamed_bytes`: of parameters that were there before; `hourly_bytes`: written to
    the disk in an hour; `beside`: what else is to be said; `left_bytes`: of the largest tensor that was left where it
    was; `foreign_bytes`: of parameters in memory that is not torch's own. What was to be within the budget and is not
    comes before the rest: of a run, the first few are told."""
    budget, there = format_bytes(told.pool_bytes), format_bytes(unnamed_bytes)
    allocations, refused = counted(told.refused, "allocation"), format_bytes(told.refused_bytes)
    more = "raise fast" if tier.cap is None else "raise cap (and fast, if given)"
    if told.file_full:
        more = "the file was full"
    elif told.failed_writes:
        more = "nobody could leave for them, since the file could not be written"
    # refused ones are large, unnamed ones and what was left may be
    large = told.tensor_peak_bytes or told.refused or unnamed_bytes or foreign_bytes or left_bytes >= tier.least_bytes
    why = (_NONE_USED if told.step_ns else _NO_STEP) if large else _ALL_SMALL  # of steps that are timed one is recorded
    return holding(
        (not (told.recorded or told.record_too_long), why),
        (told.record_too_long and not told.recorded, _TOO_LONG),
        (
            told.over_bytes,
            (
                f"The cap was missed by up to {format_bytes(told.over_bytes)}: the rest of the process left too"
                f" little; allow at least {format_bytes(told.cap_bytes + told.over_bytes)}"
            ),
        ),
        (
            told.refused,
            f"{allocations} ({refused} added up) found no room and took memory beyond the budget; {more}",
        ),
        (foreign_bytes > 0, f"{format_bytes(foreign_bytes)} of parameters {_FOREIGN}"),
        (
            unnamed_bytes > 0,
            f"{there} of parameters were there before and stayed in ordinary memory: {NAMED}",
        ),
        (told.missed > told.matched, _OTHERS),
        *((True, note) for note in beside),
        (told.recorded and not (told.read_alone_bytes_per_s or told.write_alone_bytes_per_s), _NO_RATES),
        *((True, sentence) for sentence in tier.told),
        (told.cap_bytes, _about_cap(told, tier)),
        (told.written_bytes, f"{format_bytes(hourly_bytes)} an hour are written to the disk, which wears."),
        *((True, sentence) for sentence in alarms(told, tier).values()),
        (told.failed, f"{counted(told.failed, 'operand')} could not be read ahead of use; the kernel read them"),
        (not told.direct, "The disk is read and written through the page cache only, which takes memory too."),
        (told.huge_bytes < told.pool_bytes, f"Only {format_bytes(told.huge_bytes)} of {budget} are huge pages."),
    )


def alarms(told: StorageFigures, tier: FileTier) -> dict[str, str]:
    """What costs much, each kind to be said at once and a single time: kind -> sentence."""
    reads = told.read_alone_bytes_per_s, told.read_lately_bytes_per_s
    writes = told.write_alone_bytes_per_s, told.write_lately_bytes_per_s
    kept, read = "what could not leave stayed in memory", "the kernel read what was needed, page by page"
    found = {
        "too large": (told.too_large, _about_too_large(told, tier)),
        "writes fail": (
            told.failed_writes,
            _about_failures(tier, f"{counted(told.failed_writes, 'write')} to", told.write_failure, kept),
        ),
        "reads fail": (
            told.failed_reads,
            _about_failures(tier, f"{counted(told.failed_reads, 'read')} from", told.read_failure, read),
        ),
        "file full": (told.file_full, _about_full(told, tier)),
        "reads are slow": (told.direct and _is_slow(*reads), _about_slow(tier, "read", *reads)),
        "writes are slow": (told.direct and _is_slow(*writes), _about_slow(tier, "written", *writes)),
    }
    return {kind: sentence for kind, (holds, sentence) in found.items() if holds}


def _about_failures(tier: FileTier, which: str, code: int, became: str) -> str:
    remedy = f"; {REMEDIES[code]}" if code in REMEDIES else ""
    return f"{which} the file in {tier.folder} failed ({os.strerror(code)}). No byte is lost: {became}{remedy}."


def _about_full(told: StorageFigures, tier: FileTier) -> str:
    """What would do: all that tensors have had at one time, and a quarter for holes between them. Where its disk or a
    limit refuses that, which."""
    needed = (told.tensor_peak_bytes + told.elsewhere_peak_bytes) * 5 // 4
    enough = max(needed, told.file_bytes + 1) // (64 << 20) * 64 + 64
    more = f"allow at least file:{tier.folder}={enough}MiB"
    if tier.bound is not None and enough << 20 > tier.bound.nbytes:  # it would be refused
        here = f"at the start, {tier.bound.why}: enough for {format_bytes(tier.bound.nbytes)}"
        more = f"file:{tier.folder}={enough}MiB would do, but {here}; {tier.bound.remedy}"
    elif told.file_full and enough << 20 > told.file_bytes + (free := _free_beside(tier)):  # else nobody is told
        more = f"{enough} MiB would do, and its disk has {format_bytes(free)} more; name a directory on another disk"
    return (
        f"The file in {tier.folder}, of {format_bytes(told.file_bytes)}, is full, so new tensors took memory beyond the"
        f" budget. All tensors of 1 MiB and more together can be no larger than the file; {more}"
    )


def _free_beside(tier: FileTier) -> int:
    """What its disk has free beside the file; without end where that cannot be told any more."""
    try:
        return disk_of(tier.folder).free_bytes
    except SentinelError:
        return 1 << 62


def _is_slow(best: int, lately: int) -> bool:
    return best > _SLOW * lately > 0


def _about_slow(tier: FileTier, moved: str, best: int, lately: int) -> str:
    return (
        f"The disk of {tier.folder} has become slow: it was {moved} at {format_bytes(best)}/s, and last at"
        f" {format_bytes(lately)}/s. Steps wait for it. See who else uses it (iostat), or the"
        " processors that transfers need (top), or name a directory on another disk"
    )


def _about_too_large(told: StorageFigures, tier: FileTier) -> str:
    """What operators cost whose operands do not fit together, and what would do for them."""
    missing = max(told.too_large_bytes - told.least_pool_bytes, FRAME_BYTES)  # under a cap there may be more by now
    if tier.cap is None:
        enough = f'fast="{told.too_large_bytes >> 20}MiB" would do'
    else:
        more = -(-missing * tier.cap.ranks * 8 // 7)  # an eighth of a cap stays free
        more = -(-more // (16 << 20)) * (16 << 20)
        enough = f"a cap higher by {format_bytes(more)} would do (and as much fast, if given)"
    return (
        f"{counted(told.too_large, 'operator')}, first {told.too_large_by}, used up to"
        f" {format_bytes(told.too_large_bytes)} at once, more than {format_bytes(told.least_pool_bytes)}: the kernel"
        " then reads its pages one by one, which is slow, and what it writes takes memory beyond the budget until"
        f" it is taken in, a few milliseconds later; {enough}"
    )


def _about_cap(told: StorageFigures, tier: FileTier) -> str:
    cap = tier.cap
    if cap is None:
        return ""
    least, most = format_bytes(told.least_pool_bytes), format_bytes(told.most_pool_bytes)
    return (
        f"{format_bytes(cap.cap_bytes)} is the cap on {cap.whose}: {format_bytes(cap.taken_bytes)} were taken"
        f" before, {format_bytes(cap.spare_bytes)} stay free, and tensors got {format_bytes(cap.pool_bytes)}; as"
        f" the rest took up to {format_bytes(told.most_taken_bytes)}, they had {least} to {most}."
    )
