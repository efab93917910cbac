"""What a report must be told because no noun holds it: how the session was set up, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from sentinel.system.host_load import HostLoad

if TYPE_CHECKING:
    from sentinel.reports.fast_memory_points import KnownPoints

Done = Literal["executed", "emulated", "simulated", "declared", "passive"]
"""What was done. `executed`: on this host's tiers. `emulated`: executed; copies are real, delays of slow accesses are
injected. `simulated`: computed. `declared`: simulated for a described machine because this host has no slower tier;
nothing was applied. `passive`: executed without a plan, under a budget whose overflow is in a file."""


MORE_PLANS_S = 10.0
"""So long plans for other amounts of fast memory are made for the report of a session that is over."""


class InPlace(NamedTuple):
    """A tensor that stayed where the framework had put it, and why."""

    name: str
    nbytes: int
    reason: str


class BucketRow(NamedTuple):
    """One shape. `bucket`: its number, or "unknown" for steps of shapes that had no plan at the time. Bytes are those
    that its steps asked for: all, those that found no slot, those served where another size was planned. What follows
    is of its plan, and None where it is not known: times of a step, the median of those applied; the share of touched
    bytes that fast memory served; the budget and the most that was held; migrated bytes of all its steps, and how often
    its plan took over from another one within a step, which is part of them."""

    bucket: str
    steps: int
    asked_bytes: int
    missed_bytes: int
    fitted_bytes: int
    step_ns_predicted: int | None = None
    step_ns_applied: int | None = None
    fast_served_fraction: float | None = None
    fast_capacity_bytes: int | None = None
    fast_peak_bytes: int | None = None
    migrated_bytes: int | None = None
    taken_over: int | None = None


class StorageFigures(NamedTuple):
    """A session under a budget without a plan.

    `pool_bytes`: memory promised to tensors, `least_pool_bytes`, `most_pool_bytes`: the least and the most that it ever
    was; `cap_bytes`: on the whole process, 0 without one; `taken_bytes`: by what is not in the pool, at the start;
    `most_taken_bytes`: the most; `spare_bytes`: of the cap, left free; `over_bytes`: by which the cap was missed;
    `looks` at what was taken. `resident_bytes`: what the kernel says that it takes; of it `cached_bytes`: pages of the
    file that the kernel has read, and `huge_bytes`: in huge pages. `file_bytes`: of the slow tier; `direct`: past the
    page cache. `tensor_peak_bytes`: most that tensors in frames had at one time; `elsewhere_peak_bytes`: most that
    other tensors had, mostly small ones. `read_bytes`, `written_bytes`, of them `fork_bytes` for forks;
    `dropped_granules`: left unwritten, since the file held them; `unread_bytes`: came without being read, since an
    operator made them zero. `beside_peak_bytes`: the most that was
    found in pages beside the promised memory, where stores that nobody announced had made them.
    `carried_pages`: written to unforeseen while on their way; `waited_stores`: of other threads. `operators`: with
    operands in frames; `waited_ns`: what they waited for these. `too_large`: operators whose operands do not fit
    together, the largest of `too_large_bytes`, the first `too_large_by`; `sliced`: elementwise ones that ran slice by
    slice instead. `refused`, `refused_bytes`: allocations beyond the budget. `failed`: operands that could not be read.

    `recorded`: whole steps, by the last of which what later ones need is read ahead; 0: none was. `matched`: operators
    that were found in the record, `missed`: others. `hit_bytes`: read ahead and there when needed, `late_bytes`: still
    on their way, `vain_bytes`: not needed before they left; `demanded_bytes`: read because an operator waited.
    `wait_before_ns`, `wait_after_ns`: of a step without a record, and with one. `record_too_long`: a step used more
    than is recorded.

    `step_ns`: the median of the last 64 steps. `bound_ns`: no way of executing the recorded step in this memory is
    faster, if it computes in `bound_compute_ns`, which is at most the fastest of these steps; `bound_read_bytes` and
    `bound_written_bytes` are moved at least. At
    `read_alone_bytes_per_s`, `write_alone_bytes_per_s`: the fastest that transfers were while nothing went the other
    way; 0: that is not known, and the bound is one of the other direction. It is 0 where neither is known.
    `read_lately_bytes_per_s`, `write_lately_bytes_per_s`: how fast the last such transfers were.

    `failed_reads`, `failed_writes`: transfers that the disk or a limit refused; `read_failure`, `write_failure`: errno
    of the last of each, or 0. `file_full`: times that the file had no room for a new tensor.
    """

    pool_bytes: int
    resident_bytes: int
    cached_bytes: int
    huge_bytes: int
    file_bytes: int
    direct: bool
    tensor_peak_bytes: int
    elsewhere_peak_bytes: int
    read_bytes: int
    written_bytes: int
    fork_bytes: int
    dropped_granules: int
    unread_bytes: int
    beside_peak_bytes: int
    carried_pages: int
    waited_stores: int
    operators: int
    waited_ns: int
    too_large: int
    too_large_bytes: int
    too_large_by: str
    refused: int
    refused_bytes: int
    failed: int
    least_pool_bytes: int
    most_pool_bytes: int
    cap_bytes: int
    taken_bytes: int
    most_taken_bytes: int
    spare_bytes: int
    over_bytes: int
    looks: int
    recorded: int = 0
    matched: int = 0
    missed: int = 0
    hit_bytes: int = 0
    late_bytes: int = 0
    vain_bytes: int = 0
    demanded_bytes: int = 0
    wait_before_ns: int = 0
    wait_after_ns: int = 0
    record_too_long: bool = False
    sliced: int = 0
    step_ns: int = 0
    bound_ns: int = 0
    bound_compute_ns: int = 0
    bound_read_bytes: int = 0
    bound_written_bytes: int = 0
    read_alone_bytes_per_s: int = 0
    write_alone_bytes_per_s: int = 0
    read_lately_bytes_per_s: int = 0
    write_lately_bytes_per_s: int = 0
    failed_reads: int = 0
    failed_writes: int = 0
    read_failure: int = 0
    write_failure: int = 0
    file_full: int = 0

    @property
    def for_tensors_bytes(self) -> int:
        """Memory for what tensors took at most; where a limit was lowered and bytes had to leave, the least of it."""
        least, most, peak = self.least_pool_bytes, self.most_pool_bytes, self.tensor_peak_bytes
        if least < peak <= most and self.read_bytes + self.written_bytes:
            return least
        return min(most, peak) if peak else most


@dataclass(frozen=True)
class Setup:
    """How a run was set up; whatever is not known is None or empty.

    `fast`, `cap`, `slow`, `tracker`, `script` as asked for or found (`"20%"`, `"emulated:cxl-asic-x8"`, `"ops"`).
    `kind`: only `"declared"` and `"passive"` need to be told, the others follow from the nouns. `setup_ns`: spent in
    `start_profile` and `end_profile`, planning apart; `plan_ns`: planning. `in_place`: (name, nbytes,
    reason) of tensors whose memory was not taken over. `unmanaged`: why allocations fell back to malloc ->
    bytes of all that did, counted at each allocation. `notes`: sentences for the top of the report. `buckets`: the
    shapes that steps came in, where there were several. `storage`: where the slow tier is a file. `profiled_load`,
    `applied_load`: how busy the host was in the profiled step, and from the first applied step on.
    `more_plans_s`: so long the report may make plans for other amounts of fast memory; 0 while the job trains.
    `known_points`: what such plans came to in an earlier report of the session.
    """

    tracker: str | None = None
    slow: str | None = None
    fast: str | None = None
    kind: Done | None = None
    setup_ns: int | None = None
    plan_ns: int | None = None
    in_place: tuple[tuple[str, int, str], ...] = ()
    unmanaged: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    buckets: tuple[BucketRow, ...] = ()
    script: str | None = None
    storage: StorageFigures | None = None
    profiled_load: HostLoad | None = None
    applied_load: HostLoad | None = None
    more_plans_s: float = 0.0
    known_points: KnownPoints | None = None
    cap: str | None = None
