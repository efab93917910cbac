"""Strays: pages that the kernel put elsewhere than the engine had moved them, found and sent back.

After a fork the child shares all private pages. Whoever writes one first gets a new page, on the node of the
memory policy there, wherever the old one had been moved to: a write to a demoted block fills fast memory that no
account knows of. So, after a fork, a block is looked at when a layer that writes it has ended; what strayed
leaves fast memory before anything else is promoted. Each block is looked at once in AUDIT_STEPS steps, whatever the
reason may be: reclaim, a changed cpuset, a node taken offline. Migrations that fail may be a sign of the latter, so
after the first that failed, and whenever twice as many have, each is looked at within HURRIED_STEPS.

To look at a block takes as long as to ask for each of its pages: 0.1 to 0.3 s a GiB. So a step looks at a share of the
bytes, in turn, and but for what a fork's children made us write no promotion waits for it.

That is the kernel's doing, and an outcome in the report; it does not break the budget of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.plan import Plan
from sentinel.core.units import PAGE_BYTES, format_bytes
from sentinel.migration.block_table import BlockTable
from sentinel.migration.flights import Flights
from sentinel.migration.ledger import Ledger

AUDIT_STEPS = 64
"""All blocks are looked at once in so many steps, by bytes about as much in each."""
HURRIED_STEPS = 8
"""The same after failures; and how many steps it takes, at most, to look once at all that a fork made suspect."""
CLEAN_STEPS = 2
"""After a fork a block is suspected until it was looked at at the end of so many steps and nothing had strayed."""

_FORK = "copy-on-write after a fork"
_OTHER = "reclaim, balancing, a changed cpuset, a node taken offline or something else of its own"


class Strays:
    """`forks()`: how often this process has forked. Blocks on real nodes only."""

    def __init__(
        self,
        plan: Plan,
        uses: NDArray[Any],
        table: BlockTable,
        flights: Flights,
        ledger: Ledger,
        forks: Callable[[], int],
    ) -> None:
        self._table, self._flights, self._ledger, self._forks = table, flights, ledger, forks
        self._forked = forks()
        self._movable = [index for index, block in enumerate(plan.blocks) if not block.fixed]
        self._nbytes = [block.nbytes for block in plan.blocks]
        self._total = sum(self._nbytes[index] for index in self._movable)
        self._turns = self._dealt()
        self._hurried = HURRIED_STEPS  # of these steps, so many are over
        # By the memory policy: persistent blocks are in an arena of the fast tier, whatever the plan starts them in.
        self._home = [0 if block.persistent else block.tier for block in plan.blocks]
        self._written: list[tuple[int, ...]] = [()] * plan.n_layers
        rows = uses[(uses["writes"] > 0) | (uses["written_bytes"] > 0)]
        for layer in np.unique(rows["layer"]).tolist():
            self._written[layer] = tuple(rows["block"][rows["layer"] == layer].tolist())
        self._suspects: dict[int, int] = {}  # block -> checks at the end of a step that it still has to pass
        self._why = _OTHER
        self._next_failures = 1  # so many, and all are looked at

    def look(self, ended: int, step: int, layer: int) -> None:
        """Layer `ended` is over: look at what it wrote; at the end of a step (`layer` is 0), at some more."""
        forks = self._forks()
        if forks != self._forked:
            self._forked = forks
            self._suspects = dict.fromkeys(self._movable, CLEAN_STEPS)
            self._why = _FORK
        if layer == 0:
            self._end_step(ended, step)
        elif self._suspects:
            self._sweep([block for block in self._written[ended] if block in self._suspects], step, layer)

    def _dealt(self) -> list[list[int]]:
        """The blocks of each of AUDIT_STEPS steps: each block in one, by where it begins when all lie in a row."""
        turns: list[list[int]] = [[] for _ in range(AUDIT_STEPS)]
        before = 0
        for block in self._movable:
            turns[before * AUDIT_STEPS // self._total].append(block)
            before += self._nbytes[block]
        return turns

    def _end_step(self, ended: int, step: int) -> None:
        self._tell()
        if not self._suspects:
            self._why = _OTHER
        if self._fails():
            self._hurried = 0
        turns = [step % AUDIT_STEPS]
        if self._hurried < HURRIED_STEPS:
            each = AUDIT_STEPS // HURRIED_STEPS
            turns = [self._hurried * each + turn for turn in range(each)]
            self._hurried += 1
        if self._suspects:
            self._sweep([block for block in self._written[ended] if block in self._suspects], step, 0)
            self._look_at_suspects(step)
        self._sweep([block for turn in turns for block in self._turns[turn]], step, 0, audit=True)

    def _look_at_suspects(self, step: int) -> None:
        """At a share of those that are away from home, the longest waiting first. Those at home count as seen. A dead
        one is born again, and written, at home."""
        room = -(-self._total // HURRIED_STEPS)
        waiting, seen = {}, {}
        for block, checks in self._suspects.items():
            away = self._table.tier[block] != self._home[block]
            if not self._table.held[block]:
                continue
            if away and (room <= 0 or self._flights.of(block)):
                waiting[block] = checks
                continue
            if away:
                room -= self._nbytes[block]
                self._flights.sweep(block, step, 0, first=False)
            if checks > 1:
                seen[block] = checks - 1
        self._suspects = {**waiting, **seen}

    def _fails(self) -> bool:
        """Whether at least twice as many migrations have failed as when this was last true."""
        failures = self._ledger.totals.failed + self._ledger.totals.partial
        if failures < self._next_failures:
            return False
        self._next_failures = 2 * failures
        return True

    def _sweep(self, blocks: list[int], step: int, layer: int, *, audit: bool = False) -> None:
        """Look at those that are held, not under way, and (but for an `audit`) elsewhere than a new page would be."""
        table = self._table
        for block in blocks:
            away = audit or table.tier[block] != self._home[block]
            if away and table.held[block] and not self._flights.of(block):
                self._flights.sweep(block, step, layer, first=not audit)

    def _tell(self) -> None:
        """One sentence for what was found since the last one; a block that had strayed is suspected on."""
        found = self._flights.take_strays()
        if not found:
            return
        down, up, stayed = (sum(amounts) for amounts in zip(*(stray[1:] for stray in found), strict=True))
        pages = (down + up + stayed) // PAGE_BYTES
        self._ledger.totals.kernel_placed_pages += pages
        sent = [f"{format_bytes(down)} were demoted again"] if down else []
        sent += [f"{format_bytes(up)} were promoted again"] if up else []
        sent += [f"{format_bytes(stayed)} could not be moved"] if stayed else []
        self._ledger.event(f"the kernel placed {pages} pages against the plan ({self._why}): {', '.join(sent)}")
        if self._suspects:
            self._suspects.update(dict.fromkeys((stray[0] for stray in found), CLEAN_STEPS))

    def tell_last(self) -> None:
        """The run ends: nothing that was found goes untold."""
        self._tell()
