"""Run: what a plan did, simulated or executed. Tables of one row an event, times in ns since the run began."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sentinel.core.counters import Counters
from sentinel.core.rules import require
from sentinel.core.units import format_ns

Kind = Literal["simulated", "executed"]
OUTCOMES = ("done", "late", "failed", "skipped", "partial", "already there")
"""What became of a migration. `late`: done, but after it was due. `skipped`: not started."""

MIGRATION_DTYPE = np.dtype(
    [
        ("step", "<i4"),
        ("layer", "<i4"),  # in which it was submitted; 0 where all that moved comes home at the end
        ("block", "<i4"),
        ("source", "<i4"),
        ("target", "<i4"),
        ("nbytes", "<i8"),  # planned
        ("moved_bytes", "<i8"),
        ("start_ns", "<i8"),  # 0 in an executed run: it never began, or nobody saw it begin
        ("stop_ns", "<i8"),  # of one that never began: when it was refused or given up
        ("outcome", "<u1"),  # index into OUTCOMES
        ("reason", "<u1"),  # index into REASONS
        ("errno", "<i4"),
    ]
)
REASONS = ("prefetch", "evict", "mid-interval", "initial", "restore", "stray")
"""Why a migration was done. `stray`: the kernel had put those pages elsewhere, such as by copy-on-write."""
LAYER_DTYPE = np.dtype(
    [
        ("step", "<i4"),
        ("layer", "<i4"),
        ("start_ns", "<i8"),
        ("duration_ns", "<i8"),  # stalls and injected delays included
        ("stall_ns", "<i8"),  # waiting for migrations and for room
        ("slow_ns", "<i8"),  # delay of slow accesses: injected (emulated) or computed (simulated); 0 on real nodes
        ("fast_bytes", "<i8"),  # most held in the fast tier in this layer, transfers included
        ("slow_bytes", "<i8"),  # in all slower tiers together
        ("served_fast_bytes", "<i8"),  # bytes touched in the fast tier
        ("touched_bytes", "<i8"),
    ]
)
HELD_DTYPE = np.dtype([("step", "<i4"), ("layer", "<i4"), ("tier", "<i4"), ("nbytes", "<i8")])
"""The most that a slower tier held in a layer, transfers included."""
STEP_DTYPE = np.dtype(
    [
        ("step", "<i4"),
        ("start_ns", "<i8"),
        ("duration_ns", "<i8"),
        ("stall_ns", "<i8"),
        ("fast_peak_bytes", "<i8"),
        ("unmanaged_bytes", "<i8"),  # most that fell back to malloc at one time, since the plan was applied
        ("in_step", "?"),  # every tick came as planned
    ]
)


SYSCALL = "syscall"
"""Of the kernel's reasons to migrate pages, the one that a process asks for: move_pages or migrate_pages."""


@dataclass(frozen=True)
class MovedBy:
    """Pages of 4 KiB of managed memory that changed nodes.

    `reason`: the kernel's word, SYSCALL or one such as "numa_misplaced" (include/linux/migrate_mode.h). `own`: a thread
    of this process asked for it. `node`: where they went; -1 where the memory's node is not listed.
    """

    reason: str
    own: bool
    node: int
    pages: int


@dataclass(frozen=True)
class Witnessed:
    """What an independent witness saw of page migrations, whoever asked for them.

    `lost`: records that found no room in its log. `unmatched`: records without a beginning. `huge_pages`: of the pages
    that this process moved, those that went along in huge pages. `watching`: the session runs on, and the engine has
    not counted the step under way yet.
    """

    moved_by: tuple[MovedBy, ...] = ()
    lost: int = 0
    unmatched: int = 0
    huge_pages: int = 0
    watching: bool = False

    @property
    def own_pages(self) -> int:
        """Pages that this process moved."""
        return sum(row.pages for row in self.moved_by if row.own and row.reason == SYSCALL)


@dataclass(frozen=True)
class TrialDecision:
    """What test and trial decided where promotions come late: to wait for them before `layer`, or not. Times in ns.

    `name`: of the layer. `again`: it was decided otherwise before. `wait_ns`: what waiting takes. `window_ns`: the
    shortest time from there to the next such layer, without the wait; `slower_ns`: by how much that is longer where
    nobody waits; `noise_ns`: how far the best of these times differ anyway.
    """

    layer: int
    name: str
    waits: bool
    again: bool
    wait_ns: int
    window_ns: int
    slower_ns: int
    noise_ns: int


@dataclass(frozen=True, eq=False)
class Run:
    """`emulated`: executed with injected delays. `held`: each slower tier by itself, where there are several; see
    `held_bytes`.

    `events` are sentences: what happened that a user should know, each with the step it happened in; `trials` are the
    decisions of test and trial, normal and many, likewise. `witnessed`: None where no witness ran.
    """

    kind: Kind
    emulated: bool
    tier_names: tuple[str, ...]
    fast_capacity_bytes: int
    steps: NDArray[Any]
    layers: NDArray[Any]
    migrations: NDArray[Any]
    counters: Counters = field(default_factory=Counters)
    events: tuple[tuple[int, str], ...] = ()
    origin: dict[str, str] = field(default_factory=dict)
    held: NDArray[Any] = field(default_factory=lambda: np.zeros(0, HELD_DTYPE))
    witnessed: Witnessed | None = None
    trials: tuple[tuple[int, TrialDecision], ...] = ()

    def __post_init__(self) -> None:
        dtypes = self.steps.dtype, self.layers.dtype
        held_rows = (0, max(len(self.tier_names) - 1, 0) * len(self.layers))
        require(
            (
                dtypes != (STEP_DTYPE, LAYER_DTYPE),
                "a run's tables have other dtypes",
                "use STEP_DTYPE and LAYER_DTYPE",
            ),
            (
                self.migrations.dtype != MIGRATION_DTYPE,
                "a run's migrations have another dtype",
                "use MIGRATION_DTYPE",
            ),
            (
                self.held.dtype != HELD_DTYPE or len(self.held) not in held_rows,
                "a run tells of slower tiers in other layers than its own",
                "one row a layer and slower tier, or none",
            ),
            (
                self.kind == "simulated" and self.emulated,
                "a simulated run is not emulated",
                "only executed runs are",
            ),
        )

    def __repr__(self) -> str:
        """One line, for prompts and notebooks; the tables have thousands of rows."""
        kind = f"{self.kind}, emulated" if self.emulated else self.kind
        step = "" if self.step_ns is None else f", {format_ns(self.step_ns)} a step"
        return f"<Run {kind}: {len(self.steps)} steps{step}, {len(self.migrations)} migrations>"

    @property
    def step_ns(self) -> int | None:
        """Median duration of the steps that ran as planned; None without one."""
        rows = self.steps["duration_ns"][self.steps["in_step"]]
        return int(np.median(rows)) if len(rows) else None

    @property
    def fast_mean_bytes(self) -> int | None:
        """Bytes held in the fast tier in the mean over the time of the steps that ran as planned, each layer with the
        most that it held, transfers included; None without such a layer."""
        rows = self.layers[np.isin(self.layers["step"], self.steps["step"][self.steps["in_step"]])]
        if not len(rows):
            return None
        spent = np.maximum(rows["duration_ns"], 0).astype(np.float64)
        return int(np.average(rows["fast_bytes"], weights=spent if spent.any() else None))

    def held_bytes(self, tier: int) -> NDArray[np.int64] | None:
        """The most that `tier` held in each of `layers`, transfers included; None if that was not written down."""
        if tier == 0:
            return self.layers["fast_bytes"].astype(np.int64)
        if len(self.tier_names) == 2:
            return self.layers["slow_bytes"].astype(np.int64)
        rows = self.held["nbytes"][self.held["tier"] == tier]
        return rows.astype(np.int64) if len(rows) == len(self.layers) else None
