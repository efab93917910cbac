"""The tables of an executed Run, in bounded memory: the first steps and the last ones in detail, totals of all."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.counters import Counters
from sentinel.core.run import HELD_DTYPE, LAYER_DTYPE, MIGRATION_DTYPE, STEP_DTYPE, Run

FIRST_STEPS = 4
LAST_STEPS = 64
MAX_ROWS = 50_000
"""Of the last steps, all kinds together; where steps have many, fewer of them are kept, but LEAST_STEPS."""
LEAST_STEPS = 2
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


class Ledger:
    """Collects rows; `totals` count every step, also those whose rows are gone.

    `before`: what another plan did for the same steps until this one took its place. Its rows are about other blocks;
    what went wrong stays told and counted.
    """

    def __init__(self, before: Run | None = None) -> None:
        self.totals = Counters()
        self.events: list[tuple[int, str]] = [] if before is None else list(before.events)
        self._before = Counters() if before is None else before.counters.of_another_plan()
        self._first: list[_Step] = []
        self._last: deque[_Step] = deque()
        self._last_rows = 0
        self._now = _Step()

    def layer(self, row: Row, held: Iterable[Row] = ()) -> None:
        """A layer has ended; `row` as of LAYER_DTYPE, `held` as of HELD_DTYPE."""
        self._now.layers.append(row)
        self._now.held.extend(held)

    def migration(self, row: Row, outcome: str) -> None:
        """A migration has ended; `row` as of MIGRATION_DTYPE."""
        self._now.migrations.append(row)
        totals = self.totals
        totals.migrations += 1
        totals.migrated_bytes += row[6]
        totals.add_outcome(outcome)

    def event(self, sentence: str) -> None:
        """Something happened, in the step under way, that a user should know. Beyond MAX_EVENTS only counted."""
        if len(self.events) < MAX_EVENTS:
            self.events.append((self._before.steps_before + self.totals.steps, sentence))
        else:
            self.totals.events_dropped += 1

    def no_step(self) -> None:
        """The step under way is none: its layers have no rows. Its migrations keep theirs, MAX_ROWS at most: an
        engine may give way in every step, and so never end one."""
        self._now.layers.clear()
        self._now.held.clear()
        del self._now.migrations[:-MAX_ROWS]

    def end_step(self, row: Row) -> None:
        """The step has ended; `row` as of STEP_DTYPE."""
        now, self._now = self._now, _Step()
        now.row = row
        self.totals.steps += 1
        self.totals.steps_out_of_step += not row[6]
        self.totals.stall_ns += row[3]
        for entry in now.layers:
            self.totals.slow_ns += entry[5]
            self.totals.served_fast_bytes += entry[8]
            self.totals.touched_bytes += entry[9]
        if len(self._first) < FIRST_STEPS:
            self._first.append(now)
        else:
            self._last.append(now)
            self._last_rows += len(now)
            while len(self._last) > LAST_STEPS or (self._last_rows > MAX_ROWS and len(self._last) > LEAST_STEPS):
                self._last_rows -= len(self._last.popleft())

    def run(self, tier_names: tuple[str, ...], fast_capacity_bytes: int, *, emulated: bool) -> Run:
        """The Run so far. The step under way has no row in `steps` and none in `layers`; its migrations count."""
        steps = [*self._first, *self._last]
        return Run(
            kind="executed",
            emulated=emulated,
            tier_names=tier_names,
            fast_capacity_bytes=fast_capacity_bytes,
            steps=_table([step.row for step in steps if step.row is not None], STEP_DTYPE),
            layers=_table([row for step in steps for row in step.layers], LAYER_DTYPE),
            migrations=_table([row for step in [*steps, self._now] for row in step.migrations], MIGRATION_DTYPE),
            held=_table([row for step in steps for row in step.held], HELD_DTYPE),
            counters=self._counters(),
            events=tuple(self.events),
        )

    def _counters(self) -> Counters:
        counts = replace(self.totals)
        if counts.steps:
            counts.discarded_bytes_per_step = counts.discarded_bytes // counts.steps
        return counts.plus(self._before)


def _table(rows: list[Row], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.array(rows, dtype)
