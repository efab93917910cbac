"""The rows of an engine's layers and steps: timed, delayed as emulated tiers ask for, and written down as they end."""

from __future__ import annotations

from collections.abc import Callable

from sentinel.migration.block_table import BlockTable
from sentinel.migration.clock import Clock
from sentinel.migration.delay import Delay
from sentinel.migration.flights import Flights
from sentinel.migration.ledger import Ledger
from sentinel.migration.mover import NativeMover
from sentinel.tiers.tier import FAST


class Rows:
    """`step` is the number of the step under way, `layer_began_ns` when the layer under way began.

    `unmanaged_bytes()`: most bytes that fell back to malloc in the step that ends.
    """

    def __init__(
        self,
        mover: NativeMover,
        table: BlockTable,
        flights: Flights,
        ledger: Ledger,
        unmanaged_bytes: Callable[[], int] | None,
        clock: Clock,
    ) -> None:
        self._mover, self._table, self._flights, self._ledger = mover, table, flights, ledger
        self._unmanaged = unmanaged_bytes
        self._now_ns = clock.now_ns
        self._delay = Delay(clock)
        self.step = 0
        self.layer_began_ns = 0
        self._layer = self._stall_ns = self._slow_ns = 0  # of the layer under way
        self._served = (0, 0)
        self.begin_step(0)

    @property
    def injected_ns(self) -> int:
        """Delays injected so far."""
        return self._delay.injected_ns

    def begin_step(self, now: int) -> None:
        """A step began at `now`."""
        self._step_began_ns, self._step_stall_ns, self._step_peak_bytes = now, 0, 0

    def open_layer(self, layer: int, now: int, stall: int) -> None:
        """`layer` began at `now`, and waited for `stall` ns already."""
        table = self._table
        self._layer, self.layer_began_ns, self._stall_ns, self._slow_ns = layer, now, stall, table.slow_ns.item(layer)
        self._served = (table.served_fast_bytes.item(layer), table.touched_bytes.item(layer))

    def close_layer(self) -> int:
        """The layer under way has ended: inject its delay, write its row. Returns the time now."""
        start, slow = self.layer_began_ns, self._slow_ns
        now = self._delay.inject(slow, self._now_ns())
        held = self._mover.held(restart=True)
        times = (start - self._flights.began_ns, now - start, self._stall_ns, slow)
        high = held.fast_high_bytes, held.slow_high_bytes
        slower = range(FAST + 1, len(self._table.bytes_in))
        each = [(self.step, self._layer, tier, held.high_bytes_in[tier]) for tier in slower] if len(slower) > 1 else ()
        self._ledger.layer((self.step, self._layer, *times, *high, *self._served), each)
        self._step_stall_ns += self._stall_ns
        self._step_peak_bytes = max(self._step_peak_bytes, held.fast_high_bytes)
        return now

    def skip_layers(self) -> int:
        """Out of step, no layer has a row: only the step's peak goes on. Returns the time now."""
        self._step_peak_bytes = max(self._step_peak_bytes, self._mover.held(restart=True).fast_high_bytes)
        return self._now_ns()

    def end_step(self, now: int, *, in_step: bool) -> None:
        """The step under way ended at `now`, and the next began."""
        unmanaged = self._unmanaged() if self._unmanaged is not None else 0
        began = self._step_began_ns
        row = (self.step, began - self._flights.began_ns, now - began, self._step_stall_ns)
        self._ledger.end_step((*row, self._step_peak_bytes, unmanaged, in_step))
        totals = self._ledger.totals
        totals.fast_peak_bytes = max(totals.fast_peak_bytes, self._step_peak_bytes)
        self.step += 1
        self.begin_step(now)
