"""When the engine asks where pages are: after forks, of what was written, and once in a while of everything."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sentinel.core.plan import USE_DTYPE, Plan
from sentinel.migration.ledger import Ledger
from sentinel.migration.residence import Residence
from sentinel.migration.strays import AUDIT_STEPS, CLEAN_STEPS, Strays
from sentinel.tiers import open_tiers
from sentinel.tiers.tier import Job
from tests.builders import MIB, act, make_profile, param
from tests.unit.engine_builders import emulated_machine, transient_plan

# a and b persist, in slow and in fast memory; x lives in layers 1 to 3, born slow.
PROFILE = make_profile([param("a", MIB, [1, 2]), param("b", MIB, [1]), act("x", MIB, 1, 4, [2])], 4)
A, B, X = range(3)


class Asked:
    """Flights that note who is looked at, and tell what they are told to."""

    def __init__(self) -> None:
        self.sweeps: list[tuple[int, int, int]] = []
        self.found: list[tuple[int, int, int, int]] = []
        self.under_way: set[int] = set()

    def sweep(self, block: int, step: int, layer: int) -> None:
        self.sweeps.append((block, step, layer))

    def take_strays(self) -> list[tuple[int, int, int, int]]:
        found, self.found = self.found, []
        return found

    def of(self, block: int) -> Sequence[int]:
        return [1] if block in self.under_way else []


class NoMover:
    def submit(self, job: Job) -> int:
        raise AssertionError

    def slow_bytes(self) -> int:
        return 0


class Stage:
    """A Strays with forks at will."""

    def __init__(self) -> None:
        self.forks = 0
        self.plan: Plan = transient_plan(PROFILE, [1, 0, 1], fast_bytes=4 * MIB)
        uses = np.array([(A, 1, 1, 1, 0, MIB, MIB), (A, 2, 1, 0, MIB, 0, MIB), (B, 1, 0, 1, 0, MIB, MIB)], USE_DTYPE)
        self.where = Residence(self.plan, uses, open_tiers(emulated_machine(4 * MIB), NoMover()))
        self.where.held[:] = [True, True, True]
        self.asked, self.ledger = Asked(), Ledger()
        self.strays = Strays(self.plan, uses, self.where, self.asked, self.ledger, lambda: self.forks)  # type: ignore[arg-type]

    def step(self, number: int) -> list[tuple[int, int, int]]:
        """Layers 1 to 3 of step `number`, and the tick that ends it; returns who was looked at."""
        self.asked.sweeps.clear()
        for layer in (1, 2, 3):
            self.strays.look(layer - 1, number, layer)
        self.strays.look(3, number + 1, 0)
        return list(self.asked.sweeps)


def test_without_a_fork_nobody_is_looked_at_but_once_in_a_while() -> None:
    stage = Stage()
    looked = [step for step in range(2 * AUDIT_STEPS) if stage.step(step)]
    assert looked == [AUDIT_STEPS - 1, 2 * AUDIT_STEPS - 1]
    assert [block for block, _, _ in stage.step(3 * AUDIT_STEPS - 1)] == [A, B, X]


def test_after_failures_everybody_is_looked_at_but_not_after_each() -> None:
    """They may mean that a node is gone, and that the kernel has placed all that was there elsewhere."""
    stage = Stage()
    looked = []
    for step in range(23):
        stage.ledger.totals["failed" if step % 2 else "partial"] += step >= 5
        if stage.step(step):
            looked.append(step)
    assert looked == [5, 6, 8, 12, 20]  # 1, 2, 4, 8 and 16 of them


def test_after_a_fork_what_was_written_away_from_home_is_looked_at() -> None:
    stage = Stage()
    stage.step(0)
    stage.forks = 1
    # a is written in layer 1; b is fast, where a new page of it would be too, and x was born slow
    assert stage.step(1) == [(A, 1, 2), (A, 2, 0)]
    assert stage.step(2) == [(A, 2, 2), (A, 3, 0)]
    assert CLEAN_STEPS == 2
    assert stage.step(3) == []


def test_a_transient_away_from_home_and_a_persistent_block_that_came_home() -> None:
    stage = Stage()
    stage.forks = 1
    stage.where.tier[X], stage.where.tier[A] = 0, 0
    assert stage.step(1) == [(X, 2, 0)]
    stage.where.held[X] = False  # dead
    assert stage.step(2) == []


def test_who_is_under_way_is_looked_at_later() -> None:
    stage = Stage()
    stage.forks = 1
    stage.asked.under_way = {A}
    assert stage.step(1) == stage.step(2) == stage.step(3) == []
    stage.asked.under_way = set()
    assert [stage.step(step) != [] for step in (4, 5, 6)] == [True, True, False]


def test_what_strayed_is_told_and_suspected_on() -> None:
    stage = Stage()
    stage.forks = 1
    stage.step(1)
    stage.asked.found = [(A, 3 * 4096, 0, 4096)]
    stage.step(2)
    assert stage.ledger.totals["kernel_placed_pages"] == 4
    ((_, sentence),) = stage.ledger.events
    assert "placed 4 pages against the plan (copy-on-write after a fork): 12.00 KiB were demoted again" in sentence
    assert "4.00 KiB could not be moved" in sentence
    assert stage.step(3) != []


def test_without_a_fork_the_reason_is_another() -> None:
    stage = Stage()
    stage.step(AUDIT_STEPS - 1)
    stage.asked.found = [(B, 0, 4096, 0)]
    stage.strays.tell_last()
    assert "reclaim" in stage.ledger.events[0][1]
    assert "4.00 KiB were promoted again" in stage.ledger.events[0][1]
