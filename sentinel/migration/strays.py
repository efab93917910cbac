"""Strays: pages that the kernel put elsewhere than the engine had moved them, found and sent back.

After a fork the child shares all private pages. Whoever writes one first gets a new page, on the node of the
memory policy there, wherever the old one had been moved to: a write to a demoted block fills fast memory that no
account knows of. So, after a fork, a block is looked at when a layer that writes it has ended; what strayed
leaves fast memory before anything else is promoted. Every AUDIT_STEPS steps all blocks are looked at, whatever the
reason may be: reclaim, a changed cpuset, a node taken offline. Migrations that fail may be a sign of the latter, so
all are looked at too after the first that failed, and whenever twice as many have.

That is the kernel's doing, and an outcome in the report; it does not break the budget of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.plan import Plan
from sentinel.core.units import PAGE_BYTES, format_bytes
from sentinel.migration.flights import Flights
from sentinel.migration.ledger import Ledger
from sentinel.migration.residence import Residence

AUDIT_STEPS = 64
"""All blocks are looked at once in so many steps."""
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
        where: Residence,
        flights: Flights,
        ledger: Ledger,
        forks: Callable[[], int],
    ) -> None:
        self._where, self._flights, self._ledger, self._forks = where, flights, ledger, forks
        self._forked = forks()
        self._movable = [index for index, block in enumerate(plan.blocks) if not block.fixed]
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
        """Layer `ended` is over: look at what it wrote; at the end of a step (`layer` is 0), at all suspects."""
        forks = self._forks()
        if forks != self._forked:
            self._forked = forks
            self._suspects = dict.fromkeys(self._movable, CLEAN_STEPS)
            self._why = _FORK
        if layer == 0:
            self._end_step(step)
        elif self._suspects:
            self._sweep([block for block in self._written[ended] if block in self._suspects], step, layer)

    def _end_step(self, step: int) -> None:
        self._tell()
        if not self._suspects:
            self._why = _OTHER
        audit = step % AUDIT_STEPS == 0 or self._fails()
        if not self._suspects and not audit:
            return
        busy = {block for block in self._suspects if self._flights.of(block)}  # not looked at now
        self._sweep(self._movable if audit else list(self._suspects), step, 0, audit=audit)
        # Those at home count as seen. A dead one is born again, and written, at home.
        left = {block: n - (block not in busy) for block, n in self._suspects.items()}
        self._suspects = {block: n for block, n in left.items() if n and self._where.held[block]}

    def _fails(self) -> bool:
        """Whether at least twice as many migrations have failed as when this was last true."""
        failures = self._ledger.totals["failed"] + self._ledger.totals["partial"]
        if failures < self._next_failures:
            return False
        self._next_failures = 2 * failures
        return True

    def _sweep(self, blocks: list[int], step: int, layer: int, *, audit: bool = False) -> None:
        """Look at those that are held, not under way, and (but for an `audit`) elsewhere than a new page would be."""
        where = self._where
        for block in blocks:
            away = audit or where.tier[block] != self._home[block]
            if away and where.held[block] and not self._flights.of(block):
                self._flights.sweep(block, step, layer)

    def _tell(self) -> None:
        """One sentence for what was found since the last one; a block that had strayed is suspected on."""
        found = self._flights.take_strays()
        if not found:
            return
        down, up, stayed = (sum(amounts) for amounts in zip(*(stray[1:] for stray in found), strict=True))
        pages = (down + up + stayed) // PAGE_BYTES
        self._ledger.totals["kernel_placed_pages"] += pages
        sent = [f"{format_bytes(down)} were demoted again"] if down else []
        sent += [f"{format_bytes(up)} were promoted again"] if up else []
        sent += [f"{format_bytes(stayed)} could not be moved"] if stayed else []
        self._ledger.event(f"the kernel placed {pages} pages against the plan ({self._why}): {', '.join(sent)}")
        if self._suspects:
            self._suspects.update(dict.fromkeys((stray[0] for stray in found), CLEAN_STEPS))

    def tell_last(self) -> None:
        """The run ends: nothing that was found goes untold."""
        self._tell()
