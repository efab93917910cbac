"""On which node pages of a block are born that nobody has touched yet: at home, or where their block was moved.

A page that nobody has touched cannot move: it is born by the memory policy of its address, whoever touches it first. So
the mover gives the addresses of a block with such pages the policy of the node to which it goes. When the block is home
again, or its life ends, they get the policy of its home back: the next block at these addresses is born there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sentinel.core.errors import NativeError
from sentinel.core.plan import Plan
from sentinel.migration.move import Ended
from sentinel.system import numa
from sentinel.tiers.tier import FAST

MOST_RANGES = 4096
"""Each range with another policy than its neighbours' may cost the kernel two mappings more, of which a process has
65,530. While there are so many, the others' untouched pages are born at home, and the audit finds them."""


class BirthNodes:
    """Knows which blocks of `plan` have another memory policy than their home's, and puts that back.

    `nodes`: of each tier, None where it is no node. `ranges`: see JobMemory. `let_bind(may)`: whether the mover may
    change policies from now on.
    """

    def __init__(
        self,
        plan: Plan,
        nodes: Sequence[int | None],
        ranges: Callable[[int], Sequence[tuple[int, int]]],
        let_bind: Callable[[bool], None],
    ) -> None:
        # Persistent blocks are in an arena of the fast tier, whatever the plan starts them in.
        self._persistent = [block.persistent for block in plan.blocks]
        self._home = [FAST if block.persistent else block.tier for block in plan.blocks]
        self._nodes, self._ranges, self._let_bind = nodes, ranges, let_bind
        self._away: dict[int, int] = {}  # block -> how many ranges it has
        self._ranges_away = 0
        let_bind(True)

    def moved(self, ended: Ended) -> None:
        """A move has ended. If it met pages that nobody has touched, these are born where it went."""
        block = ended.move.block
        home = self._home[block]
        if ended.bound and ended.move.target != home:
            self._note(block, len(self._ranges(block)))
        elif ended.tier == home:
            self.go_home((block,))

    def go_home(self, blocks: Iterable[int]) -> None:
        """Pages of these blocks are born at home from now on."""
        if not self._away:  # as in most ticks
            return
        for block in blocks:
            node = self._nodes[self._home[block]]
            if block not in self._away or node is None:
                continue
            refused = sum(not _bound(address, nbytes, node) for address, nbytes in self._ranges(block))
            self._note(block, refused)  # tried again as its next life ends; until then the audit finds them

    def all_go_home(self) -> None:
        """As `go_home`, for whatever blocks it may be."""
        self.go_home(tuple(self._away))

    def give(self) -> bool:
        """Another plan takes over: pages of blocks that end here are born at home. Whether there are others, which keep
        what they have."""
        self.go_home([block for block in self._away if not self._persistent[block]])
        kept = any(self._persistent[block] for block in self._away)
        for block in tuple(self._away):
            self._note(block, 0)
        return kept

    def take(self, blocks: Iterable[int]) -> None:
        """Pages of these persistent blocks may be born elsewhere than at home, since the plan before."""
        for block in blocks:
            self._note(block, len(self._ranges(block)))

    def _note(self, block: int, ranges: int) -> None:
        """So many ranges of `block` have another policy than their home's."""
        self._ranges_away += ranges - self._away.pop(block, 0)
        if ranges:
            self._away[block] = ranges
        self._let_bind(self._ranges_away < MOST_RANGES)


def _bound(address: int, nbytes: int, node: int) -> bool:
    """Whether the kernel took it that pages there are born on `node`."""
    try:
        numa.bind(address, nbytes, node)
    except NativeError:
        return False
    return True
