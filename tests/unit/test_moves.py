"""What the end of each migration does to its block and to the books, told by a mover that plays a script."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from sentinel.core.cost import transfer_ns
from sentinel.core.machine import Link, TierSpec
from sentinel.core.plan import USE_DTYPE
from sentinel.core.run import OUTCOMES
from sentinel.core.units import format_bytes
from sentinel.migration.backoff import FAILURES
from sentinel.migration.birth_nodes import BirthNodes
from sentinel.migration.block_mover import BlockMover
from sentinel.migration.block_table import BlockTable
from sentinel.migration.job_memory import JobMemory
from sentinel.migration.move import Move
from sentinel.migration.mover import Moved, NativeMover, Outcome
from sentinel.migration.mover_order import Order
from sentinel.migration.moves import Moves
from sentinel.migration.outcomes import Outcomes
from sentinel.migration.page_audit import PageAudit
from sentinel.migration.run_recorder import RunRecorder
from sentinel.system import numa
from sentinel.tiers.emulated import EmulatedTier
from sentinel.tiers.tier import HeldBlock, Job
from tests.builders import GB, make_machine, make_profile, param, persistent_plan

FAST, SLOW, LAST = range(3)
NBYTES = 16 * 4096
ALL, MOST, HALF, FEW, NONE = NBYTES, NBYTES - 4096, NBYTES // 2, 4096, 0
EXTRA_NS, LAST_EXTRA_NS, LAYER = 1009, 2003, 2


class Script:
    """A mover, and a slower tier that it moves to and from: jobs end as `end` or `tell` says."""

    def __init__(self, extra_ns: int = EXTRA_NS) -> None:
        self.spec = TierSpec("slow", "node", 1 << 40, 0, 10**9, 10**9, node=1)
        self.holds_pages = True
        self.extra_ns = extra_ns
        self.jobs = 0
        self._ended: list[Moved] = []

    def job(self, block: HeldBlock, source: int, target: int, after: int = 0) -> Job:
        return Job(source, target, block.nbytes, block.held, after)

    def submit_all(self, orders: Sequence[Order]) -> int:
        self.jobs += len(orders)
        return self.jobs - len(orders) + 1

    def submitted(self) -> int:
        return self.jobs

    def delay_ns(self, rows: np.ndarray) -> np.ndarray:
        return np.full(len(rows), self.extra_ns, np.int64)

    def end(self, move: Move, outcome: Outcome, fast_bytes: int, moved_bytes: int, error: int = 0) -> None:
        held = (fast_bytes, NBYTES - fast_bytes)
        self.tell(Moved(move.job, 11, 13, moved_bytes, held, outcome, error, move.target))

    def tell(self, moved: Moved) -> None:
        self._ended.append(moved)

    def ended(self) -> int:
        return len(self._ended)

    def results_from(self, first: int) -> list[Moved]:
        return self._ended[first:]

    def cancel(self, job: int) -> bool:
        return False


class Stage:
    """One block of 16 pages that layer 2 reads, in `tier` of `tiers`, and what is needed to move it."""

    def __init__(self, tier: int, tiers: int = 2) -> None:
        profile = make_profile([param("w", NBYTES, [LAYER])], 4)
        uses = np.zeros(1, USE_DTYPE)
        uses["layer"], uses["touched_bytes"] = LAYER, NBYTES
        names, capacity = ("fast", "slow", "last")[:tiers], (1 << 26, 1 << 40, 1 << 40)[:tiers]
        plan = replace(persistent_plan(profile, [tier]), uses=uses, tier_names=names, capacity_bytes=capacity)
        self.script, self.recorder, self.said = Script(), RunRecorder(), list[str]()
        there = [None, self.script, Script(LAST_EXTRA_NS)][:tiers]
        self.where = BlockTable(plan, there)  # type: ignore[arg-type]
        self.where.held[0] = True
        self.where.place(0, tier)
        self.moves = Moves(there, self.script, self.where, lambda block: [])  # type: ignore[arg-type]
        job = JobMemory(lambda block: [], self.said.append)
        self.birth_nodes = BirthNodes(plan, range(tiers), lambda block: [(4096, NBYTES)], lambda may: None)
        self.outcomes = Outcomes(plan, job, self.where, self.birth_nodes, self.recorder, PageAudit(plan, 0))
        self.block_mover = BlockMover(self.moves, self.where, self.outcomes, job.clock)

    def submit(self, target: int, step: int = 0) -> Move | None:
        move = Move(step, 1, 0, 1 - target, target, NBYTES, "evict" if target else "prefetch")
        (under_way,), refused = self.block_mover.begin([move])
        self.outcomes.refused(refused)
        return under_way

    def move(self, target: int, outcome: Outcome, fast_bytes: int, *, error: int = 0, step: int = 0) -> None:
        before = self.where.fast_bytes[0]
        move = self.submit(target, step)
        assert move is not None
        assert self.served_fast_bytes == 0  # in flight: served by the slower of the two
        self.script.end(move, outcome, fast_bytes, abs(fast_bytes - before), error)
        self.block_mover.collect()
        assert self.moves.all() == []

    @property
    def served_fast_bytes(self) -> int:
        fast = int(self.where.served_fast_bytes[LAYER])
        assert int(self.where.slow_ns[LAYER]) == (0 if fast else EXTRA_NS)
        return fast


class End(NamedTuple):
    """A move to `target` leaves `fast_bytes` in the fast tier; it counts as in `tier`, and is told as `word`."""

    target: int
    outcome: Outcome
    fast_bytes: int
    tier: int
    word: str


ENDS = {
    "all goes up": End(FAST, Outcome.DONE, ALL, FAST, "done"),
    "all goes down": End(SLOW, Outcome.DONE, NONE, SLOW, "done"),
    "all was up already": End(FAST, Outcome.ALREADY, ALL, FAST, "already there"),
    "all was down already": End(SLOW, Outcome.ALREADY, NONE, SLOW, "already there"),
    "most goes up": End(FAST, Outcome.PARTIAL, MOST, FAST, "partial"),
    "half goes up": End(FAST, Outcome.PARTIAL, HALF, FAST, "partial"),
    "few go up": End(FAST, Outcome.PARTIAL, FEW, SLOW, "partial"),
    "most go down": End(SLOW, Outcome.PARTIAL, FEW, SLOW, "partial"),
    "few go down": End(SLOW, Outcome.PARTIAL, MOST, FAST, "partial"),
    "none goes up": End(FAST, Outcome.FAILED, NONE, SLOW, "failed"),
    "none goes down": End(SLOW, Outcome.FAILED, ALL, FAST, "failed"),
    "cancelled on the way up": End(FAST, Outcome.CANCELLED, NONE, SLOW, "skipped"),
    "cancelled on the way down": End(SLOW, Outcome.CANCELLED, ALL, FAST, "skipped"),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_block_is_where_most_of_it_is_and_booked_as_it_went(case: str) -> None:
    end = ENDS[case]
    stage = Stage(1 - end.target)
    failed = end.word in ("partial", "failed")
    stage.move(end.target, end.outcome, end.fast_bytes, error=errno.EBUSY if failed else 0)
    assert stage.where.tier[0] == end.tier
    assert stage.where.fast_bytes[0] == end.fast_bytes
    assert stage.served_fast_bytes == (NBYTES if end.tier == FAST else 0)
    run = stage.recorder.run(("fast", "slow"), ALL, emulated=False)
    (row,) = run.migrations
    started_in = NONE if end.target == FAST else ALL
    assert OUTCOMES[row["outcome"]] == end.word
    assert (row["source"], row["target"], row["nbytes"]) == (1 - end.target, end.target, NBYTES)
    assert row["moved_bytes"] == abs(end.fast_bytes - started_in)
    assert row["errno"] == (errno.EBUSY if failed else 0)
    assert run.counters.counted()[end.word.replace(" ", "_")] == 1
    stayed = NBYTES - end.fast_bytes if end.target == FAST else end.fast_bytes
    assert len(run.events) == len(stage.said) == failed
    if failed:
        ((_, sentence),) = run.events
        way = "from" if end.target == FAST else "to"
        assert f"({format_bytes(NBYTES)}) {way} it left {format_bytes(stayed)} where they were" in sentence
        assert ("from it" in sentence) == (end.target == FAST)


@pytest.mark.parametrize("outcome", [Outcome.PARTIAL, Outcome.FAILED], ids=["in part", "in whole"])
def test_a_block_that_fails_again_and_again_is_held_back(outcome: Outcome) -> None:
    stage = Stage(SLOW)
    for step in range(FAILURES):
        stage.move(FAST, outcome, FEW if outcome is Outcome.PARTIAL else NONE, error=errno.ENOMEM, step=step)
    assert stage.submit(FAST, step=FAILURES) is None
    assert stage.recorder.totals.held_back == 1
    assert "held where it is" in stage.recorder.events[-1][1]
    assert len(stage.said) == 1  # the first one only


def test_a_move_that_succeeds_ends_the_series_of_failures() -> None:
    stage = Stage(SLOW)
    for step, outcome in enumerate([Outcome.FAILED, Outcome.FAILED, Outcome.DONE, Outcome.FAILED, Outcome.FAILED]):
        if outcome is Outcome.DONE:
            stage.move(FAST, outcome, ALL, step=step)
            stage.move(SLOW, outcome, NONE, step=step)
        else:
            stage.move(FAST, outcome, NONE, error=errno.ENOMEM, step=step)
    assert stage.submit(FAST, step=5) is not None


def test_a_move_that_met_untouched_pages_has_their_policy_put_back_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[tuple[int, ...]] = []
    monkeypatch.setattr(numa, "bind", lambda *asked: bound.append(asked))
    stage = Stage(FAST)
    down = stage.submit(SLOW)
    assert down is not None
    stage.script.tell(Moved(down.job, 11, 13, 0, (0, NBYTES), Outcome.ALREADY, 0, SLOW, bound=True))
    stage.block_mover.collect()
    assert not bound
    stage.birth_nodes.go_home((0,))
    assert bound == [(4096, NBYTES, FAST)]


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.FAILED], ids=["comes back", "stays"])
def test_what_is_queued_behind_a_move_that_went_to_the_last_tier_starts_there(outcome: Outcome) -> None:
    stage = Stage(FAST, tiers=3)
    down, up = stage.submit(SLOW), stage.submit(FAST)
    assert down is not None
    assert up is not None
    stage.script.tell(Moved(down.job, 11, 13, NBYTES, (0, 0, NBYTES), Outcome.DONE, 0, LAST))
    stage.block_mover.collect()
    assert (stage.where.tier[0], up.source, up.served_by) == (LAST, LAST, LAST)
    assert stage.where.slow_ns[LAYER] == LAST_EXTRA_NS
    comes = outcome is Outcome.DONE
    held = (NBYTES, 0, 0) if comes else (0, 0, NBYTES)
    error = 0 if comes else errno.ENOMEM
    stage.script.tell(Moved(up.job, 17, 19, NBYTES if comes else 0, held, outcome, error, FAST))
    stage.block_mover.collect()
    assert stage.where.tier[0] == (FAST if comes else LAST)
    assert stage.where.slow_ns[LAYER] == (0 if comes else LAST_EXTRA_NS)
    rows = stage.recorder.run(("fast", "slow", "last"), ALL, emulated=False).migrations
    assert rows[["source", "target"]].tolist() == [(FAST, LAST), (LAST, FAST)]


def test_a_promotion_cancelled_behind_a_demotion_that_failed_leaves_the_block_where_it_is() -> None:
    stage = Stage(FAST, tiers=3)
    down, up = stage.submit(SLOW), stage.submit(FAST)
    assert down is not None
    assert up is not None
    stage.script.tell(Moved(down.job, 11, 13, 0, (NBYTES, 0, 0), Outcome.FAILED, errno.ENOMEM, SLOW))
    stage.block_mover.collect()
    assert stage.where.tier[0] == FAST
    stage.script.tell(Moved(up.job, 17, 19, 0, (NBYTES, 0, 0), Outcome.CANCELLED, 0, FAST))
    stage.block_mover.collect()
    assert stage.where.tier[0] == FAST
    assert stage.where.slow_ns[LAYER] == 0


@pytest.mark.needs("native")
def test_a_promotion_behind_a_demotion_that_was_sent_further_takes_the_time_from_there() -> None:
    machine = make_machine(promote=GB, demote=GB)
    fast, slow = machine.tiers
    links = (*machine.links, Link(FAST, LAST, GB // 50), Link(LAST, FAST, GB // 100))
    machine = replace(machine, tiers=(fast, slow, replace(slow, name="last")), links=links)
    mover = NativeMover(NBYTES, tiers=3)
    mover.force(NBYTES)
    mover.set_capacity(NBYTES - 1, SLOW)
    tiers = [None, EmulatedTier(machine, SLOW), EmulatedTier(machine, LAST)]
    moves = Moves(tiers, mover, Stage(FAST, tiers=3).where, lambda block: [])
    down, up = Move(0, 1, 0, FAST, SLOW, NBYTES, "evict"), Move(0, 2, 0, SLOW, FAST, NBYTES, "prefetch")
    for move in (down, up):
        assert moves.begin([move]).under_way == [move]
    moves.wait_for([up])
    ended = moves.collect()
    assert [(each.move.source, each.move.target, each.outcome) for each in ended] == [
        (FAST, LAST, "done"),
        (LAST, FAST, "done"),
    ]
    took = [transfer_ns(machine.link(source, target), NBYTES) for source, target in ((FAST, LAST), (LAST, FAST))]
    assert [each.stop_ns - each.start_ns for each in ended] == took
    mover.close()


def test_a_move_that_is_refused_ends_when_it_is() -> None:
    stage = Stage(FAST)
    before = time.monotonic_ns()
    assert stage.submit(FAST) is None
    (row,) = stage.recorder.run(("fast", "slow"), ALL, emulated=False).migrations
    assert OUTCOMES[row["outcome"]] == "already there"
    assert (row["start_ns"], before <= row["stop_ns"] <= time.monotonic_ns()) == (0, True)


class Books(dict[int, Move]):
    """Counts how often somebody goes through it."""

    scans = 0

    def __iter__(self) -> Iterator[int]:
        self.scans += 1
        return super().__iter__()


def test_a_look_at_pages_does_not_go_through_all_that_is_under_way() -> None:
    stage = Stage(SLOW)
    stage.moves._by_job = books = Books()
    for _ in range(3):
        begun = stage.moves.look_at(Move(0, 1, 0, FAST, SLOW, NBYTES, "stray"), first=False)
        assert begun.refused == []
    assert (len(books), books.scans) == (3, 0)
