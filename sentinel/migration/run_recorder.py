"""What happened while a plan was applied, as an executed Run. It is told values, and asks nobody.

Its tables are of bounded length: the first steps and the last ones are kept in detail, and totals count all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sentinel.core.counters import Counters
from sentinel.core.run import HELD_DTYPE, LAYER_DTYPE, MIGRATION_DTYPE, STEP_DTYPE, Run, TrialDecision

FIRST_STEPS = 4
LAST_STEPS = 64
"""Steps whose rows are kept: the first ones, and the last ones before the end."""
MAX_ROWS = 50_000
"""Rows of the last steps, of all tables together. Where steps have many rows, fewer than LAST_STEPS are kept."""
LEAST_STEPS = 2
"""Last steps that are kept however many rows they have."""
MAX_EVENTS = 256

Row = tuple[Any, ...]


class _Step:
    """Rows of one step: as of STEP_DTYPE, LAYER_DTYPE, MIGRATION_DTYPE, HELD_DTYPE."""

    __slots__ = ("held", "layers", "migrations", "row")

    def __init__(self) -> None:
        self.row: Row | None = None
        self.layers: list[Row] = []
        self.migrations: list[Row] = []
        self.held: list[Row] = []

    def __len__(self) -> int:
        return len(self.layers) + len(self.migrations) + len(self.held)


class RunRecorder:
    """`totals` count every step, also those whose rows are gone. `step` is the number of the step under way.

    Times are given as the clock shows them. Rows count from `began_ns`, when the plan was first applied, and 0 until
    then. `layer_began_ns` is when the layer under way began.

    `before`: what another plan did for the same steps until this one took its place. Its rows are not kept, since they
    are about other blocks; its events and counters of what went wrong are.
    """

    def __init__(self, before: Run | None = None) -> None:
        self.totals = Counters()
        self.events: list[tuple[int, str]] = [] if before is None else list(before.events)
        self.trials: list[tuple[int, TrialDecision]] = [] if before is None else list(before.trials)
        self.step = 0
        self.began_ns = self.layer_began_ns = 0
        self._before = Counters() if before is None else before.counters.of_another_plan()
        self._layer_stall_ns = 0
        self._first: list[_Step] = []
        self._last: deque[_Step] = deque()
        self._last_rows = 0
        self._now = _Step()
        self.begin_step(0)

    # ---- steps and layers -------------------------------------------------------------------------------

    def begin_step(self, now_ns: int) -> None:
        """A step began. One that was under way and has not ended counts as none, but for its migrations."""
        self._step_began_ns, self._step_stall_ns, self._step_peak_bytes = now_ns, 0, 0

    def begin_layer(self, now_ns: int, stall_ns: int) -> None:
        """A layer began, and has waited for `stall_ns` already."""
        self.layer_began_ns, self._layer_stall_ns = now_ns, stall_ns

    def end_layer(
        self, layer: int, now_ns: int, costs: tuple[int, int, int], high_bytes: Sequence[int], slow_high_bytes: int
    ) -> None:
        """`layer` of the plan has ended.

        `costs`: ns that its accesses took longer than in fast memory, bytes that the fast tier served, bytes touched.
        `high_bytes`: most bytes that each tier held in it; `slow_high_bytes`: all slower tiers together.
        """
        slow_ns, served_fast_bytes, touched_bytes = costs
        began, stall, high, now = self.layer_began_ns, self._layer_stall_ns, high_bytes[0], self._now
        since, took = began - self.began_ns, now_ns - began
        now.layers.append(
            (self.step, layer, since, took, stall, slow_ns, high, slow_high_bytes, served_fast_bytes, touched_bytes)
        )
        if len(high_bytes) > 2:
            now.held.extend([(self.step, layer, tier, high_bytes[tier]) for tier in range(1, len(high_bytes))])
        self._step_stall_ns += stall
        if high > self._step_peak_bytes:
            self._step_peak_bytes = high

    def pass_layers(self, fast_high_bytes: int) -> None:
        """Layers passed out of step: they have no rows, but what the fast tier held counts for the step's peak."""
        self._step_peak_bytes = max(self._step_peak_bytes, fast_high_bytes)

    def end_step(self, now_ns: int, *, in_step: bool, unmanaged_bytes: int) -> None:
        """The step under way ended, and the next began. `unmanaged_bytes`: most that were malloc's until now."""
        began, now, self._now = self._step_began_ns, self._now, _Step()
        times = (began - self.began_ns, now_ns - began, self._step_stall_ns)
        now.row = (self.step, *times, self._step_peak_bytes, unmanaged_bytes, in_step)
        totals = self.totals
        totals.steps += 1
        totals.steps_out_of_step += not in_step
        totals.stall_ns += self._step_stall_ns
        for row in now.layers:
            totals.slow_ns += row[5]
            totals.served_fast_bytes += row[8]
            totals.touched_bytes += row[9]
        totals.fast_peak_bytes = max(totals.fast_peak_bytes, self._step_peak_bytes)
        self._keep(now)
        self.step += 1
        self.begin_step(now_ns)

    def drop_step(self) -> None:
        """The step under way is none: its layers have no rows. Its migrations keep theirs, MAX_ROWS at most: a plan
        may give way in every step, and so never end one."""
        self._now.layers.clear()
        self._now.held.clear()
        del self._now.migrations[:-MAX_ROWS]

    def _keep(self, step: _Step) -> None:
        if len(self._first) < FIRST_STEPS:
            self._first.append(step)
            return
        self._last.append(step)
        self._last_rows += len(step)
        while len(self._last) > LAST_STEPS or (self._last_rows > MAX_ROWS and len(self._last) > LEAST_STEPS):
            self._last_rows -= len(self._last.popleft())

    # ---- what else happens ------------------------------------------------------------------------------

    def migration(self, row: Row, outcome: str) -> None:
        """A migration has ended; `row` as of MIGRATION_DTYPE, but its times as the clock shows them."""
        began, start, stop = self.began_ns, row[7], row[8]
        self._now.migrations.append((*row[:7], start and start - began, stop and stop - began, *row[9:]))
        totals = self.totals
        totals.migrations += 1
        totals.migrated_bytes += row[6]
        totals.add_outcome(outcome)

    def event(self, sentence: str) -> None:
        """Something happened, in the step under way, that a user should know. Beyond MAX_EVENTS only counted."""
        if len(self.events) < MAX_EVENTS:
            self.events.append((self._steps_so_far, sentence))
        else:
            self.totals.events_dropped += 1

    def trial(self, decision: TrialDecision) -> None:
        """Test and trial decided. Beyond MAX_EVENTS only counted."""
        self.totals.trials += 1
        if len(self.trials) < MAX_EVENTS:
            self.trials.append((self._steps_so_far, decision))

    @property
    def _steps_so_far(self) -> int:
        return self._before.steps_before + self.totals.steps

    # ---- the run ----------------------------------------------------------------------------------------

    def run(self, tier_names: tuple[str, ...], fast_capacity_bytes: int, *, emulated: bool) -> Run:
        """The Run so far. The step under way has no row in `steps` and none in `layers`; its migrations count."""
        steps = [*self._first, *self._last]
        return Run(
            kind="executed",
            emulated=emulated,
            tier_names=tier_names,
            fast_capacity_bytes=fast_capacity_bytes,
            steps=np.array([step.row for step in steps if step.row is not None], STEP_DTYPE),
            layers=np.array([row for step in steps for row in step.layers], LAYER_DTYPE),
            migrations=np.array([row for step in [*steps, self._now] for row in step.migrations], MIGRATION_DTYPE),
            held=np.array([row for step in steps for row in step.held], HELD_DTYPE),
            counters=self._counters(),
            events=tuple(self.events),
            trials=tuple(self.trials),
        )

    def _counters(self) -> Counters:
        counts = replace(self.totals)
        if counts.steps:
            counts.discarded_bytes_per_step = counts.discarded_bytes // counts.steps
        return counts.plus(self._before)
