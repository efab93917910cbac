"""Shapes that the step of a job comes in: a bucket each, with its dataflow and its plan.

Sequence lengths, the last batch of an epoch, tasks that take turns: the same cycle of layers, other sizes. The
allocator tells them apart by what a step asks for first (kernel_profiler/src/tables.h). Steps whose layers come in
another order are no shape of their own: they run out of step, on slots but without migrations, and the report says so
(docs/decisions/0072); where all do from now on, see layer_cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.run import Run
from sentinel.migration.engine import Engine
from sentinel.reports.setup import BucketRow
from sentinel.session.binding import Homes
from sentinel.session.planning import Dataflow

MOST = 10
"""At most 10 buckets; steps of any further shape are served by the buckets whose slots they fit in."""
NEW_SHARE = 0.1
"""A step is of a new shape if its allocation sizes differ from the plan's by more than 10 % of its bytes."""
FALLBACK_SHARE = 0.4
"""A step is of a new shape, too, if more than 40 % of its bytes find no slot that is large enough. Below that, sizes
that are never twice the same, such as those of sparse gradients, are one shape."""
RETIME_STEPS = 16
"""After 16 applied steps layer times are taken once more: three steps say little where other jobs use the host."""
IN_VAIN = 20
"""At most 20 steps are recorded that turn out to be of a known shape."""


@dataclass
class Served:
    """What some steps asked for, in bytes: all; what found no slot (`missed`); what was served where another size was
    planned (`fitted`)."""

    steps: int = 0
    asked_bytes: int = 0
    missed_bytes: int = 0
    fitted_bytes: int = 0

    def add(self, asked_bytes: int, missed_bytes: int, fitted_bytes: int) -> None:
        """One step more."""
        self.steps += 1
        self.asked_bytes += asked_bytes
        self.missed_bytes += missed_bytes
        self.fitted_bytes += fitted_bytes


@dataclass(eq=False)
class Bucket:
    """`number` is that of its table of slots. `served`: its own steps. `taken_over`: how often its plan
    followed on another within a step. `retimed_at`: after so many of its steps layer times are taken once more.
    `homes`: (offset, bytes, tier) of what its plan has born where, once it is served. `ranges(block)`: (address,
    nbytes) of a block's pieces, once there was an `engine`; `executed` once that has ended.
    """

    number: int
    flow: Dataflow
    served: Served = field(default_factory=Served)
    taken_over: int = 0
    retimed_at: int = RETIME_STEPS
    homes: Homes = ()
    engine: Engine | None = None
    ranges: Callable[[int], list[tuple[int, int]]] | None = None
    executed: Run | None = None

    @property
    def plan(self) -> Plan:
        """What its steps run by."""
        assert self.flow.plan is not None
        return self.flow.plan

    def run(self) -> Run | None:
        """What was executed until now; None if nothing was."""
        return self.engine.so_far() if self.engine is not None else self.executed


def rows_of(buckets: Sequence[Bucket], strangers: Served) -> tuple[BucketRow, ...]:
    """For the report; none where all steps were of one shape."""
    if len(buckets) < 2 and not strangers.steps:
        return ()
    rows = [_row(bucket) for bucket in buckets]
    return (*rows, _served("unknown", strangers)) if strangers.steps else tuple(rows)


def _served(name: str, served: Served) -> BucketRow:
    return BucketRow(name, served.steps, served.asked_bytes, served.missed_bytes, served.fitted_bytes)


def _row(bucket: Bucket) -> BucketRow:
    run, simulated, plan = bucket.run(), bucket.flow.simulated, bucket.plan
    row = _served(str(bucket.number), bucket.served)._replace(
        step_ns_predicted=simulated.step_ns if simulated is not None else plan.predicted_step_ns,
        fast_capacity_bytes=plan.capacity_bytes[0],
        taken_over=bucket.taken_over,
    )
    if run is None:
        return row
    touched = run.counters.touched_bytes
    return row._replace(
        step_ns_applied=run.step_ns,
        fast_served_fraction=run.counters.served_fast_bytes / touched if touched else None,
        fast_peak_bytes=run.counters.fast_peak_bytes,
        migrated_bytes=run.counters.migrated_bytes,
    )


@dataclass(frozen=True)
class Likeness:
    """Of the bytes that a step asked for, the share by which sizes differ from the plan's, and that finds no slot."""

    unlike: float
    missed: float

    @property
    def known(self) -> bool:
        """Whether the plan's bucket is that of the step."""
        return self.unlike <= NEW_SHARE and self.missed <= FALLBACK_SHARE


def likeness(plan: Plan, profile: Profile) -> Likeness:
    """How well `plan` would serve what a recorded step allocated from its first tick on."""
    sizes = {slot.key: slot.nbytes for slot in plan.slots if slot.key is not None}
    first = min(1, profile.n_layers - 1)
    rows = profile.tensors[(profile.tensors["key_layer"] >= first) & (profile.tensors["managed"] != 0)]
    keys = zip(rows["key_layer"].tolist(), rows["key_ordinal"].tolist(), strict=True)
    planned, asked = np.fromiter((sizes.get(key, 0) for key in keys), np.int64, len(rows)), rows["nbytes"]
    total = max(int(asked.sum()), 1)
    return Likeness(int(np.abs(asked - planned).sum()) / total, int(asked[asked > planned].sum()) / total)


def known_bucket(buckets: Sequence[Bucket], flow: Dataflow) -> Bucket | None:
    """The bucket of a recorded step, if it has one already."""
    profile = flow.profile
    if profile is None or not buckets:
        return None
    found = [(likeness(bucket.plan, profile), bucket) for bucket in buckets]
    alike, best = min(found, key=lambda each: (not each[0].known, each[0].unlike, each[1].number))
    return best if alike.known else None


class ShapeScheduler:
    """Schedules the recording of a step for a new bucket: when a shape that no bucket knows is due again.

    Nothing tells the shape of a step before it begins. But it was seen twice, so many steps apart, and is expected
    once more after as many: the next step where all are new, every other where two take turns, an epoch later
    where it is the last batch. Where steps come at random the guess may fail; that is allowed IN_VAIN times.
    """

    def __init__(self) -> None:
        self.in_vain = 0
        self._last: int | None = None
        self._gap: int | None = None

    def ended(self, step: int, *, unknown: bool) -> bool:
        """Step number `step` has ended. Whether to record the next one."""
        if unknown:
            self._gap = None if self._last is None else step - self._last
            self._last = step
        if self._last is None or self._gap is None or self.in_vain >= IN_VAIN:
            return False
        return step + 1 == self._last + self._gap

    def recorded(self, *, known: bool) -> None:
        """The step was recorded, and its shape was in a bucket already, or is from now on."""
        self.in_vain += known
        if not known:
            self._last = self._gap = None
