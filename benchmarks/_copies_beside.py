"""What copies take from a job's own steps, for benchmarks/_blind_prediction.py: groups of its steps in which the blocks
of its plan are copied, as an emulated tier copies them, take turns with groups in which nothing is."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType

import sentinel
from sentinel.calibrate.moving import PIECE_BYTES
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.migration.mover import NativeMover
from sentinel.migration.mover_order import Order, order_of
from sentinel.tiers.tier import EMULATED, FAST, Job

SETTLING, GROUP, PAIRS = 12, 4, 8
"""Steps before anything is timed; steps of a group, whose first one is left out; groups with copies."""
STEPS = SETTLING + (2 * PAIRS + 1) * GROUP
BUSY, BYTES_PER_NS = 0.25, 2.5
"""In a step with copies as much is copied as takes this share of it at 2.5 GB/s."""
_SLOW, _UNLIMITED = 1, 1 << 62


class CopiesBeside(sentinel.Observer):
    """Copies in every second group of steps, in pieces of 1 MiB that begin with the layers, evenly over the step, one
    after the other, all away and then all back. The blocks are only read; they are those of the plan in force."""

    def __init__(self) -> None:
        self._mover = NativeMover(_UNLIMITED)
        self._orders: dict[tuple[int, int], list[Order]] = {}
        self._layers = self._steps = self._pieces = self._submitted = self._began_ns = 0
        self._took_ns: list[int] = []
        self._rate: list[float] = []

    def plan_applied(self, plan: Plan, machine: Machine, ranges: Callable[[int], list[tuple[int, int]]]) -> None:
        """See Observer."""
        del machine
        self._layers = len(plan.layers)
        places = [
            place
            for block in range(len(plan.blocks))
            for address, nbytes in ranges(block)
            for place in range(address, address + nbytes - PIECE_BYTES + 1, PIECE_BYTES)
        ]
        self._mover.force(len(places) * PIECE_BYTES)
        self._orders = {way: [_order(way, place) for place in places] for way in ((FAST, _SLOW), (_SLOW, FAST))}
        self._submitted = 0

    def layer_began(self, layer: int) -> None:
        """See Observer."""
        first, last = (at * self._pieces // self._layers for at in (layer, layer + 1))
        if self._copying and self._orders[FAST, _SLOW] and last > first:
            self._mover.submit_all([self._next() for _ in range(first, last)])

    def step_ended(self) -> None:
        """See Observer."""
        now = time.perf_counter_ns()
        if SETTLING <= self._steps < STEPS:
            self._took_ns.append(now - self._began_ns)
        self._steps += 1
        if len(self._took_ns) == GROUP:
            step_ns = statistics.fmean(self._took_ns[1:])
            self._pieces = max(int(BUSY * step_ns * BYTES_PER_NS / PIECE_BYTES), 1)
        self._rate += [moved.moved_bytes / max(moved.stop_ns - moved.start_ns, 1) for moved in self._mover.results()]
        self._began_ns = time.perf_counter_ns()

    def seen_on(self, machine: Machine, asked: Machine) -> Machine:
        """`machine`, its links as copies were beside these steps, though no faster than `asked`. SystemExit where steps
        are missing, or no block has 1 MiB."""
        if len(self._took_ns) < STEPS - SETTLING or not self._rate:
            raise SystemExit("too few steps ran as planned to tell what copies take from them")
        rate = int(statistics.median(self._rate) * 1e9)
        links = (
            replace(
                link,
                bandwidth_bytes_per_s=min(asked.link(link.source, link.target).bandwidth_bytes_per_s, rate),
                lost_ns_per_kib=round(self.lost_ns_per_kib, 1),
            )
            for link in machine.links
        )
        return replace(machine, links=tuple(links))

    @property
    def lost_ns_per_kib(self) -> float:
        """ns that a step takes longer for each KiB copied beside it: each group against the two around it."""
        groups = [self._took_ns[first + 1 : first + GROUP] for first in range(0, len(self._took_ns), GROUP)]
        means = [statistics.fmean(group) for group in groups]
        longer = [means[i] - (means[i - 1] + means[i + 1]) / 2 for i in range(1, len(means) - 1, 2)]
        return max(statistics.median(longer), 0.0) * 1024 / (self._pieces * PIECE_BYTES)

    def __enter__(self) -> CopiesBeside:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._mover.close()

    @property
    def _copying(self) -> bool:
        return SETTLING <= self._steps < STEPS and (self._steps - SETTLING) // GROUP % 2 == 1

    def _next(self) -> Order:
        """All pieces leave, then all of them come back."""
        back, at = divmod(self._submitted, len(self._orders[FAST, _SLOW]))
        self._submitted += 1
        return self._orders[(_SLOW, FAST) if back % 2 else (FAST, _SLOW)][at]


def _order(way: tuple[int, int], address: int) -> Order:
    """The piece there, from one tier to the other."""
    source, target = way
    held = tuple(PIECE_BYTES if tier == source else 0 for tier in (FAST, _SLOW))
    return order_of(Job(source, target, PIECE_BYTES, held, kind=EMULATED, spans=((address, PIECE_BYTES),)))
