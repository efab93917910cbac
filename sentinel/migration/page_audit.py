"""Which blocks' pages to look at, since the kernel may have put some elsewhere than they had been moved: strays.

After a fork the child shares all private pages. Whoever writes one first gets a new page, on the node of the
memory policy there, wherever the old one had been moved to: a write to a demoted block fills fast memory that no
account knows of. So, after a fork, a block is looked at when a layer that writes it has ended; what strayed leaves
fast memory before anything else is promoted, up to FIRST_BYTES a step; of the rest a share each step. Each block is
looked at once in AUDIT_STEPS steps, whatever the reason may be: reclaim, a changed cpuset, a node taken offline.
Migrations that fail may be a sign of the latter, so after the first that failed, and whenever twice as many have, each
is looked at within HURRIED_STEPS; so it is where tensors were loaded in mid-session.

To look at a block takes as long as to ask for each of its pages: 0.1 to 0.3 s a GiB. So a step looks at a share of the
bytes, in turn, and a layer at a part of that, behind the moves that begin with it. Only for the first FIRST_BYTES that
were written after a fork do promotions wait.

That is the kernel's doing, and an outcome in the report; it does not break the budget of ours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np

from sentinel.core.plan import Plan
from sentinel.core.units import PAGE_BYTES, format_bytes
from sentinel.migration.move import Ended
from sentinel.tiers.tier import FAST

AUDIT_STEPS = 64
"""Each block is looked at once in 64 steps; each step looks at about as many bytes."""
HURRIED_STEPS = 8
"""After failures, each block is looked at once in 8 steps; after a fork, each suspect at most 8 steps later."""
FIRST_BYTES = 1 << 30
"""After a fork promotions wait until 1 GiB of what a step wrote, and one block, are looked at: 0.1 to 0.3 s. For an
optimizer's state of 80 GiB they would wait for 6 to 24 s."""
CLEAN_STEPS = 2
"""After a fork a block is suspected until looks at the end of 2 steps have found nothing that had strayed."""

_FORK = "copy-on-write after a fork"
_OTHER = "reclaim, balancing, tensors that were loaded, a changed cpuset, a node taken offline or something else"


class Check(NamedTuple):
    """Look at the pages of `block`, which is in tier `target`: some may be in tier `source`. `first`: before anything
    is promoted."""

    block: int
    source: int
    target: int
    first: bool


class Blocks(NamedTuple):
    """Of each block the tier in which it counts as being, and whether it is alive; and which blocks are under way."""

    tier: Sequence[int]
    held: Sequence[bool]
    under_way: Collection[int]


class PageAudit:
    """Of a plan, which carries its uses, on tiers that hold pages. `forks`: how often the process has forked."""

    def __init__(self, plan: Plan, forks: int) -> None:
        self._forks = forks
        self._movable = [index for index, block in enumerate(plan.blocks) if not block.fixed]
        self._nbytes = [block.nbytes for block in plan.blocks]
        self._total = sum(self._nbytes[index] for index in self._movable)
        self._turns = self._dealt()
        self._hurried = HURRIED_STEPS  # of these steps, so many are over
        self._born_in = [block.tier for block in plan.blocks]
        # By the memory policy: persistent blocks are in an arena of the fast tier, whatever the plan starts them in.
        self._home = [0 if block.persistent else block.tier for block in plan.blocks]
        uses = plan.uses
        rows = uses[(uses["writes"] > 0) | (uses["written_bytes"] > 0)]
        rows = rows[np.argsort(rows["layer"], kind="stable")]
        written = rows["block"].tolist()
        bounds = np.searchsorted(rows["layer"], np.arange(plan.n_layers + 1)).tolist()
        self._written: list[tuple[int, ...]] = [tuple(written[begin:end]) for begin, end in pairwise(bounds)]
        self._first_room = FIRST_BYTES  # of this step
        self._n_layers = plan.n_layers
        self._in_passing: dict[int, None] = {}  # blocks that no promotion waits for, in order
        self._each_layer = 0  # so many of them
        self._suspects: dict[int, int] = {}  # block -> checks at the end of a step that it still has to pass
        self._why = _OTHER
        self._next_failures = 1  # after so many failures, all are looked at
        self._found: list[tuple[int, int, int, int]] = []  # block, bytes demoted, promoted, that could not be moved

    def hurry(self) -> None:
        """Tensors were loaded under a plan: their pages were born wherever the policy of their addresses has it. Each
        block is looked at within HURRIED_STEPS."""
        self._hurried = 0

    def _dealt(self) -> list[list[int]]:
        """The blocks of each of AUDIT_STEPS steps: each block in one, by where it begins when all lie in a row."""
        turns: list[list[int]] = [[] for _ in range(AUDIT_STEPS)]
        before = 0
        for block in self._movable:
            turns[before * AUDIT_STEPS // self._total].append(block)
            before += self._nbytes[block]
        return turns

    # ---- what to look at --------------------------------------------------------------------------------

    def forked(self, forks: int) -> None:
        """The process has forked so often until now."""
        if forks == self._forks:
            return
        self._forks = forks
        self._suspects = dict.fromkeys(self._movable, CLEAN_STEPS)
        self._why = _FORK

    def after_layer(self, layer: int, blocks: Blocks) -> list[Check]:
        """What promotions wait for as `layer`, not the last one of the step, has ended."""
        if not self._suspects:  # as in most ticks
            return []
        return [self._check(block, blocks, first=True) for block in self._come_first(layer, blocks)]

    def after_step(self, layer: int, step: int, failures: int, blocks: Blocks) -> list[Check]:
        """What promotions wait for as `layer`, the last one of the step, has ended and `step` begins, when so many
        moves have failed until now. What else this step is to look at, `in_passing` tells."""
        if not self._suspects:
            self._why = _OTHER
        if failures >= self._next_failures:  # at least twice as many as when this was last true
            self._next_failures = 2 * failures
            self._hurried = 0
        turns = [step % AUDIT_STEPS]
        if self._hurried < HURRIED_STEPS:
            each = AUDIT_STEPS // HURRIED_STEPS
            turns = [self._hurried * each + turn for turn in range(each)]
            self._hurried += 1
        checks: dict[int, bool] = {}
        if self._suspects:
            checks = dict.fromkeys(self._come_first(layer, blocks), True)
            self._add_suspects(checks, blocks)
            self._first_room = FIRST_BYTES
        for block in (block for turn in turns for block in self._turns[turn]):
            if blocks.held[block] and block not in blocks.under_way:
                checks.setdefault(block, False)
        self._in_passing |= dict.fromkeys(block for block, first in checks.items() if not first)
        self._each_layer = -(-len(self._in_passing) // self._n_layers)
        return [self._check(block, blocks, first=True) for block, first in checks.items() if first]

    def in_passing(self, blocks: Blocks) -> list[Check]:
        """What to look at once the moves that begin with a layer are under way: those ask for the pages of their blocks
        themselves."""
        if not self._in_passing:  # as in most ticks of a small job
            return []
        now = list(islice(self._in_passing, self._each_layer))
        for block in now:
            del self._in_passing[block]
        there = (block for block in now if blocks.held[block] and block not in blocks.under_way)
        return [self._check(block, blocks, first=False) for block in there]

    def _check(self, block: int, blocks: Blocks, *, first: bool) -> Check:
        here = blocks.tier[block]
        return Check(block, FAST if here != FAST else max(self._born_in[block], FAST + 1), here, first)

    def _come_first(self, layer: int, blocks: Blocks) -> Iterable[int]:
        """Suspects that `layer` wrote, alive, not under way, and elsewhere than a new page would be, while this step
        has room for them. The rest stays suspected."""
        for block in self._written[layer]:
            away = blocks.tier[block] != self._home[block]
            if away and block in self._suspects and blocks.held[block] and block not in blocks.under_way:
                if self._first_room <= 0:
                    return
                self._first_room -= self._nbytes[block]
                yield block

    def _add_suspects(self, checks: dict[int, bool], blocks: Blocks) -> None:
        """A share of those that are away from home, the longest waiting first. Those at home count as seen. A dead
        one is born again, and written, at home."""
        room = -(-self._total // HURRIED_STEPS)
        waiting, seen = {}, {}
        for block, left in self._suspects.items():
            away = blocks.tier[block] != self._home[block]
            if not blocks.held[block]:
                continue
            written = block in checks  # by the layer that has ended: it is looked at already
            if away and (block in blocks.under_way or (room <= 0 and not written)):
                waiting[block] = left
                continue
            if away and not written:
                room -= self._nbytes[block]
                checks[block] = False
            if left > 1:
                seen[block] = left - 1
        self._suspects = {**waiting, **seen}

    # ---- what was found ---------------------------------------------------------------------------------

    def found(self, ended: Ended, bytes_in: Sequence[int]) -> Ended | None:
        """A look has ended. The move to record, if it moved pages or found more of them elsewhere than were known.

        `bytes_in`: the bytes of the block in each tier as far as was known before. Those that were known to be
        elsewhere, as a move that failed in part leaves them, had not strayed.
        """
        move, known = ended.move, sum(bytes_in) - bytes_in[ended.move.target]
        strayed = max(ended.moved_bytes - known, 0)
        stayed = max(ended.stayed_bytes - max(known - ended.moved_bytes, 0), 0)
        if not ended.moved_bytes and not stayed:
            return None
        move.nbytes = ended.moved_bytes + stayed
        if strayed or stayed:
            down, up = (strayed, 0) if move.target else (0, strayed)
            self._found.append((move.block, down, up, stayed))
        return ended

    def report(self) -> tuple[int, str] | None:
        """Pages that the kernel had placed against the plan, as found since the last call, and a sentence about them. A
        block that had strayed is suspected on."""
        if not self._found:
            return None
        found, self._found = self._found, []
        down, up, stayed = (sum(amounts) for amounts in zip(*(stray[1:] for stray in found), strict=True))
        pages = (down + up + stayed) // PAGE_BYTES
        sent = [f"{format_bytes(down)} were demoted again"] if down else []
        sent += [f"{format_bytes(up)} were promoted again"] if up else []
        sent += [f"{format_bytes(stayed)} could not be moved"] if stayed else []
        if self._suspects:
            self._suspects.update(dict.fromkeys((stray[0] for stray in found), CLEAN_STEPS))
        return pages, f"the kernel placed {pages} pages against the plan ({self._why}): {', '.join(sent)}"
