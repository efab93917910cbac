"""Witnessing: on real nodes, who moved which pages of the managed memory, told by the kernel and not by the engine."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from sentinel.core.errors import SentinelError
from sentinel.core.run import SYSCALL, MovedBy, Run, Witnessed
from sentinel.migration.memory import ManagedMemory
from sentinel.migration.sightings import REASONS, Sightings
from sentinel.migration.witness import MigrationWitness

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
        self._seen: Witnessed | None = None

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
        if not self._wanted or not self.why or self._seen is not None:
            return []
        return [f"page migrations were counted by the engine alone: {self.why}"]

    def step_ended(self) -> None:
        """Make room in the log, if it fills."""
        if not self.why and self._witness.waiting() > self._read_above:
            self._read()

    def with_witness_counts(self, run: Run) -> Run:
        """`run` with what was seen until now: pages by who moved them and where to."""
        if not self.why:
            self._read()
        if self._seen is None:
            return run
        return replace(run, witnessed=replace(self._seen, watching=not self.why))

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
        before = self._seen or Witnessed()
        self._seen = Witnessed(
            moved_by=added(before.moved_by, moved_by(seen)),
            lost=seen.lost,
            unmatched=before.unmatched + seen.unmatched,
            huge_pages=before.huge_pages + huge_pages(seen),
        )


def moved_by(seen: Sightings) -> tuple[MovedBy, ...]:
    """The pages that moved, by who moved them and the node that they moved to."""
    moves = seen.moves[seen.moves["moved"]]
    kinds, kind_of = np.unique(moves[["reason", "own", "to_node"]], return_inverse=True)
    pages = np.zeros(len(kinds), np.int64)
    np.add.at(pages, kind_of, moves["n_pages"])
    rows = zip(kinds.tolist(), pages.tolist(), strict=True)
    return tuple(MovedBy(_name_of(reason), own, node, n) for (reason, own, node), n in rows)


def _name_of(reason: int) -> str:
    """The kernel's name of a reason. A newer kernel may have more of them, which only have a number here."""
    return REASONS[reason] if 0 <= reason < len(REASONS) else f"reason {reason}"


def added(before: tuple[MovedBy, ...], now: tuple[MovedBy, ...]) -> tuple[MovedBy, ...]:
    """The pages of both, a row for each reason, asker and node."""
    pages: Counter[tuple[str, bool, int]] = Counter()
    for row in (*before, *now):
        pages[row.reason, row.own, row.node] += row.pages
    return tuple(MovedBy(*kind, n) for kind, n in sorted(pages.items()))


def huge_pages(seen: Sightings) -> int:
    """Of the pages that this process moved, those that went along in huge pages."""
    moves = seen.moves
    chosen = moves["moved"] & moves["own"] & (moves["reason"] == REASONS.index(SYSCALL)) & (moves["n_pages"] > 1)
    return int(moves["n_pages"][chosen].sum())
