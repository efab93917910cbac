"""A move of a block between tiers, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sentinel.core.plan import Reason
from sentinel.core.run import OUTCOMES, REASONS

Why = Reason | Literal["stray"]

_OUTCOME, _REASON = ({word: index for index, word in enumerate(words)} for words in (OUTCOMES, REASONS))


@dataclass(slots=True, eq=False)
class Move:
    """`block`, of `nbytes`, goes from tier `source` to tier `target`, as was asked for in `layer` of `step`.

    `late`: it was due before a layer that has begun. `job`: how the mover numbers it. `sent_further`: the tier that was
    asked for had no room, and `target` is the last one.
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
    sent_further: bool = False

    @property
    def served_by(self) -> int:
        """The tier that serves accesses to the block meanwhile: the slower of the two."""
        return max(self.source, self.target)


class Ended(NamedTuple):
    """A move that has ended, or one that was refused. `outcome` is one of OUTCOMES.

    `tier`: in which its block counts as being now; `bytes_in`: its bytes in each tier. `queued`: the move of that block
    that comes next. `held_back`: refused, since the block failed again and again. `gives_up`: this was its last try for
    HOLD_STEPS. `bound`: pages of its block that nobody has touched are born where it went.
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
    bound: bool = False

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
        return (
            move.step,
            move.layer,
            move.block,
            move.source,
            move.target,
            move.nbytes,
            self.moved_bytes,
            self.start_ns,
            self.stop_ns,
            _OUTCOME[self.outcome],
            _REASON[move.reason],
            self.errno,
        )
