"""Moves of blocks between tiers: which are under way, and which failed lately and wait.

A move is submitted to the tier beside fast memory that its block goes to or comes from. What has ended comes back as
values: whoever submits keeps the block table and the recorder up to date from them.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sentinel.core.errors import NativeError
from sentinel.core.plan import Reason
from sentinel.core.run import OUTCOMES, REASONS
from sentinel.migration.mover import Moved, NativeMover, Outcome
from sentinel.tiers.tier import FAST, HeldBlock, Tier

FAILURES = 3
"""After so many failures in a row to move a block to one tier, it is left where it is for HOLD_STEPS."""
HOLD_STEPS = 16
"""Steps until a block that failed FAILURES times is moved again; one more failure, and it is held again."""

Why = Reason | Literal["stray"]

_WORDS = {Outcome.DONE: "done", Outcome.PARTIAL: "partial", Outcome.FAILED: "failed", Outcome.ALREADY: "already there"}


@dataclass(slots=True, eq=False)
class Move:
    """`block`, of `nbytes`, goes from tier `source` to tier `target`, as was asked for in `layer` of `step`.

    `late`: it was due before a layer that has begun. `job`: how the mover numbers it.
    """

    step: int
    layer: int
    block: int
    source: int
    target: int
    nbytes: int
    reason: Why
    late: bool = False
    job: int = 0

    @property
    def served_by(self) -> int:
        """The tier that serves accesses to the block meanwhile: the slower of the two."""
        return max(self.source, self.target)


class Ended(NamedTuple):
    """A move that has ended, or one that was refused. `outcome` is one of OUTCOMES.

    `tier`: in which its block counts as being now; `bytes_in`: its bytes in each tier. `queued`: the move of that block
    that comes next. `held_back`: refused, since the block failed again and again. `gives_up`: this was its last try for
    HOLD_STEPS.
    """

    move: Move
    outcome: str
    tier: int
    bytes_in: Sequence[int]
    errno: int = 0
    moved_bytes: int = 0
    start_ns: int = 0
    stop_ns: int = 0
    queued: Move | None = None
    held_back: bool = False
    gives_up: bool = False

    @property
    def failed(self) -> bool:
        """Whether bytes stayed that were to move; of a look at pages, whether it could not begin."""
        return self.outcome in ("partial", "failed") and (self.move.reason != "stray" or not self.move.job)

    @property
    def stayed_bytes(self) -> int:
        """Bytes of the block that are not where it was to go."""
        return sum(self.bytes_in) - self.bytes_in[self.move.target]

    def row(self) -> tuple[int, ...]:
        """As of MIGRATION_DTYPE; times as the clock shows them."""
        move = self.move
        where = (move.step, move.layer, move.block, move.source, move.target, move.nbytes)
        why = (OUTCOMES.index(self.outcome), REASONS.index(move.reason), self.errno)
        return (*where, self.moved_bytes, self.start_ns, self.stop_ns, *why)


class Submitted(NamedTuple):
    """`under_way`: the move that brings the block where it was to go, if there is one. `refused`: what became of the
    move asked for, if that is not the one."""

    under_way: Move | None
    refused: Ended | None = None


class Backoff:
    """A block that cannot move is left alone for a while, instead of being tried in every step.

    Late migrations are another matter: test and trial (`trials`) decides about those, once for each layer.
    """

    def __init__(self) -> None:
        self._failures: Counter[tuple[int, int]] = Counter()  # by block and the tier that it could not reach
        self._until: dict[tuple[int, int], int] = {}

    def holds(self, block: int, target: int, step: int) -> bool:
        """Whether `block` is not to be sent to tier `target` in this step."""
        return bool(self._until) and step < self._until.get((block, target), 0)

    def moved(self, block: int, target: int) -> None:
        """A move of `block` to `target` has ended well."""
        if self._failures:
            self._failures.pop((block, target), None)
            self._until.pop((block, target), None)

    def failed(self, block: int, target: int, step: int) -> bool:
        """A move of `block` to `target` failed, in whole or in part. Whether it is held from now on."""
        self._failures[block, target] += 1
        if self._failures[block, target] < FAILURES:
            return False
        self._until[block, target] = step + 1 + HOLD_STEPS
        return True


class Moves:
    """Of each block at most one move runs, and one is queued behind it. `tiers[FAST]` is None."""

    def __init__(self, tiers: Sequence[Tier | None], mover: NativeMover) -> None:
        self._tiers, self._mover = tiers, mover
        self._by_job: dict[int, Move] = {}
        self._by_block: dict[int, list[Move]] = {}
        self._backoff = Backoff()
        self._ended = 0  # moves that the mover has ended and `collect` returned

    # ---- what is under way ------------------------------------------------------------------------------

    @property
    def blocks(self) -> Collection[int]:
        """The blocks for which something is under way."""
        return self._by_block

    def of(self, block: int) -> list[Move]:
        """What is under way for `block`, oldest first."""
        return list(self._by_block.get(block, ()))

    def all(self) -> list[Move]:
        """All that is under way, oldest first."""
        return list(self._by_job.values())

    def under_way(self, move: Move) -> bool:
        """Whether it has not been collected yet."""
        return move.job in self._by_job

    def must_end(self, moves: Iterable[Move]) -> bool:
        """Whether the block of one of them cannot be used where it is."""
        return any(not tier.used_in_place for move in moves if (tier := self._tiers[move.source]) is not None)

    # ---- submit -----------------------------------------------------------------------------------------

    def turn_back(self, block: int, target: int) -> bool:
        """Cancel what was submitted last for `block`, unless it goes to `target`. Whether there was something to
        cancel: then collect before a move to `target` is submitted."""
        pending = self._by_block.get(block)
        if not pending or pending[-1].target == target:
            return False
        self._mover.cancel(pending[-1].job)  # gone if it had not started
        return True

    def submit(self, move: Move, block: HeldBlock, tier: int, *, alive: bool = True) -> Submitted:
        """Begin to move `block`, which is in `tier`, or queue it behind what is under way for it.

        Refused if the block will not be at the source, is to wait since it failed again and again, or if there is no
        memory for one job more: that is a failed migration like others.
        """
        pending = self._by_block.get(move.block)
        here = pending[-1].target if pending else tier
        if here != move.source or not alive:
            there = here == move.target
            refused = Ended(move, "already there" if there else "skipped", here, block.held)
            return Submitted(pending[-1] if pending and there else None, refused)
        if move.reason != "restore" and self._backoff.holds(move.block, move.target, move.step):
            return Submitted(None, Ended(move, "skipped", here, block.held, held_back=True))
        if not pending:
            return self._send(move, block)
        bytes_in = [block.nbytes if index == here else 0 for index in range(len(self._tiers))]
        return self._send(move, block._replace(held=bytes_in), pending[-1].job)

    def look_at(self, move: Move, block: HeldBlock, *, first: bool) -> Submitted:
        """Send pages of `block`, for which nothing is under way, to where it is, should the kernel have put some
        elsewhere. `first`: they leave fast memory before anything is promoted."""
        return self._send(move, block, first=first)

    def _send(self, move: Move, block: HeldBlock, after: int = 0, *, first: bool = False) -> Submitted:
        beside = self._tiers[move.target or move.source]
        assert beside is not None
        try:
            if move.target == FAST:
                move.job = beside.recall(block, after)
            else:
                move.job = beside.admit(block, after, source=move.source, first=first)
        except NativeError as refusal:
            if refusal.errno != errno.ENOMEM:
                raise
            gives_up = self._backoff.failed(move.block, move.target, move.step)
            here = move.target if move.reason == "stray" else move.source
            return Submitted(None, Ended(move, "failed", here, block.held, refusal.errno, gives_up=gives_up))
        if not beside.holds_pages and move.reason != "stray":
            move.nbytes -= block.held[move.target]  # another plan cut the block otherwise: a part may be there
        self._by_job[move.job] = move
        self._by_block.setdefault(move.block, []).append(move)
        return Submitted(move)

    # ---- end --------------------------------------------------------------------------------------------

    def cancel(self, move: Move) -> bool:
        """Whether it had not started, and now never will."""
        return self._mover.cancel(move.job)

    def wait_for(self, moves: Iterable[Move]) -> None:
        """Until they have ended. One that waits for room that nothing will free is cancelled."""
        for move in moves:
            if not self._mover.wait(move.job):
                self._mover.cancel(move.job)

    def end(self, block: int) -> None:
        """Drop what has not started for `block`, wait for what has."""
        for move in reversed(self.of(block)):
            if not self._mover.cancel(move.job):
                self._mover.wait(move.job)

    def collect(self) -> Sequence[Ended]:
        """What has ended since the last call, oldest first. A look at a counter if nothing has."""
        if self._mover.ended() == self._ended:
            return ()
        found = [self._end_of(moved) for moved in self._mover.results()]
        return [ended for ended in found if ended is not None]

    def _end_of(self, moved: Moved) -> Ended | None:
        self._ended += 1
        move = self._by_job.pop(moved.job, None)
        if move is None:  # an interrupt came between its submission and these books
            return None
        pending = self._by_block[move.block]
        pending.remove(move)
        if not pending:
            del self._by_block[move.block]
        outcome = "late" if move.late and moved.outcome is Outcome.DONE else _WORDS.get(moved.outcome, "skipped")
        return Ended(
            move,
            outcome,
            _place(move, moved),
            moved.held[: len(self._tiers)],
            moved.errno,
            moved.moved_bytes,
            moved.start_ns,
            moved.stop_ns,
            queued=pending[-1] if pending else None,
            gives_up=self._gives_up(move, moved.outcome),
        )

    def _gives_up(self, move: Move, outcome: Outcome) -> bool:
        """Whether this end is the last of so many failures that the block is held where it is."""
        if move.reason == "stray":
            return False
        if outcome in (Outcome.PARTIAL, Outcome.FAILED):
            return self._backoff.failed(move.block, move.target, move.step)
        if outcome is not Outcome.CANCELLED:
            self._backoff.moved(move.block, move.target)
        return False


def _place(move: Move, moved: Moved) -> int:
    """The tier in which the block of an ended move is: one in parts is where most of it is."""
    if move.reason == "stray":
        return move.target  # it was there before
    arrived = moved.outcome in (Outcome.DONE, Outcome.ALREADY)
    if moved.outcome is Outcome.PARTIAL:
        here = moved.held[move.target]
        arrived = 2 * here >= move.nbytes if move.target == FAST else 2 * here > move.nbytes
    return move.target if arrived else move.source
