"""Witnessing: on real nodes, who moved which pages of the managed memory, told by the kernel and not by the engine."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from sentinel.core.errors import SentinelError
from sentinel.core.run import Run
from sentinel.migration.memory import ManagedMemory
from sentinel.migration.sightings import REASONS, Sightings
from sentinel.migration.witness import MigrationWitness
from sentinel.reports.who_moved import ANOTHER, COUNTER, HUGE, LOST, MOVERS, OWN, RUNNING, UNMATCHED

READ_SHARE = 0.25
"""A quarter of the log is left to fill while what is in it is read: a step may bring many records at once."""


class Witnessing:
    """Runs the witness over managed memory from `begin` to `end`, where this process may.

    `why`: why there is no witness; "" while there is one. Whatever goes wrong with it never touches training.
    """

    def __init__(self, log_entries: int = 1 << 18) -> None:
        self.why = "not begun"
        self._wanted = False
        self._witness = MigrationWitness(log_entries)
        self._read_above = int(log_entries * READ_SHARE)
        self._seen: Counter[str] = Counter()

    def begin(self, memory: ManagedMemory) -> None:
        """Watch both arenas of `memory` from now on."""
        self._wanted = True
        base, _, reserved = memory.exclusive_extent()
        try:
            self._witness.start([(base, reserved), (memory.placement_base, memory.placement_bytes)])
            self.why = ""
        except (SentinelError, OSError) as error:
            self.why = str(error)

    def notes(self) -> list[str]:
        """Why migrations on real nodes were not witnessed, as a sentence; empty where they were."""
        if not self._wanted or not self.why or self._seen:
            return []
        return [f"page migrations were counted by the engine alone: {self.why}"]

    def step_ended(self) -> None:
        """Make room in the log, if it fills."""
        if not self.why and self._witness.waiting() > self._read_above:
            self._read()

    def told(self, run: Run) -> Run:
        """`run` with what was seen until now among its counters: pages by who moved them and where to."""
        if not self.why:
            self._read()
        if not self._seen:
            return run
        running = {} if self.why else {RUNNING: 1}
        return replace(run, counters={**run.counters, **self._seen, **running})

    def end(self) -> None:
        """Watch no longer; what was seen stays."""
        if not self.why:
            self._read(last=True)
            self.why = self.why or "ended"
        self._witness.stop()

    def _read(self, *, last: bool = False) -> None:
        try:
            seen = self._witness.read(last=last)
        except (SentinelError, OSError) as error:
            self.why = str(error)
            self._witness.stop()
            return
        self._seen[LOST] = seen.lost
        self._seen[UNMATCHED] += seen.unmatched
        self._seen.update(counted(seen))


def counted(seen: Sightings) -> Counter[str]:
    """Counter name -> pages, by who moved them and the node that they moved to."""
    moves = seen.moves[seen.moves["moved"]]
    found: Counter[str] = Counter()
    for reason, own, node in {tuple(row) for row in np.unique(moves[["reason", "own", "to_node"]]).tolist()}:
        chosen = (moves["reason"] == reason) & (moves["own"] == own) & (moves["to_node"] == node)
        name = REASONS[reason]
        who = MOVERS.get(name, name) if name != "syscall" else OWN if own else ANOTHER
        found[COUNTER.format(who=who, node=node)] += int(moves["n_pages"][chosen].sum())
        if who == OWN:
            found[HUGE] += int(moves["n_pages"][chosen & (moves["n_pages"] > 1)].sum())
    return +found
