"""The measurements, one after the other: nothing else of ours runs meanwhile."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Sequence

from sentinel.calibrate.measurement_plan import CACHES, MeasurementPlan
from sentinel.calibrate.moving import moving_figures, work_on_all_processors
from sentinel.calibrate.native_measure import (
    Chase,
    Moving,
    Round,
    Stream,
    latency_ns,
    move_rates,
    parts_of,
    stream_rate,
)
from sentinel.calibrate.regions import Region
from sentinel.calibrate.results import (
    EMULATED,
    Calibration,
    Figure,
    MoveFigures,
    MovingFigures,
    NodeFigures,
    figure_of,
)
from sentinel.core.errors import CapabilityError
from sentinel.core.rules import holding
from sentinel.core.units import HUGE_PAGE_BYTES, PAGE_BYTES, format_bytes
from sentinel.system import processor

Tell = Callable[[int, int, str], None]
"""(part, of how many, what it measures), as each part begins."""
STREAMS: tuple[Stream, ...] = ("read", "write", "mixed")
IDLE = 0.9
"""A thread that had its CPU for less of a round than this shared it."""
MOST_STAYED = 0.1
"""More of a region than this that does not move is no figure but an error."""


def calibrate(plan: MeasurementPlan, tell: Tell) -> Calibration:
    """Measure what `plan` says. Leaves nothing behind, however it ends.

    Raises CapabilityError where memory finds no room on a node, or pages do not move.
    """
    began = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    run = _Run(plan, tell)
    nodes = tuple(run.node(number) for number in (plan.fast, *plan.others))
    moves = [move for other in plan.others for move in run.moves(other)]
    both = [run.both_ways(other) for other in plan.others]
    moving = [figures for other in plan.others or (None,) for figures in run.moving(other)]
    return Calibration(
        nodes=nodes,
        moves=tuple(moves),
        both_ways={pair: figure for found in both for pair, figure in found.items()},
        cpus=plan.cpus,
        nbytes=plan.nbytes,
        rounds=plan.rounds,
        processor=processor.model(),
        virtual=processor.is_virtual(),
        emulated=processor.is_emulated(),
        began=began,
        notes=tuple(_notes(plan, nodes, run)),
        moving=tuple(moving),
    )


class _Run:
    def __init__(self, plan: MeasurementPlan, tell: Tell) -> None:
        self.plan, self._tell = plan, tell
        self.notes: list[str] = []
        self.busy = 1.0
        self._part, others = 0, len(plan.others)
        self._parts = (1 + others) * (len(STREAMS) + 1) + 3 * others + max(others, 1)

    def _begin(self, what: str) -> None:
        self._part += 1
        self._tell(self._part, self._parts, what)

    def _rounds(self, measure: Callable[[], Round]) -> Figure:
        rounds = [measure() for _ in range(self.plan.rounds)]
        self.busy = min(self.busy, *(one.busy for one in rounds))
        return figure_of([one.figure for one in rounds])

    def _region(self, node: int, *, huge: bool) -> Region:
        return Region(self.plan.nbytes, node if self.plan.on_nodes else None, huge=huge)

    def node(self, number: int) -> NodeFigures:
        """All figures of one node, threads on the fast one's CPUs."""
        plan = self.plan
        self._begin(f"node {number}: {STREAMS[0]} bandwidth")
        with self._region(number, huge=True) as region:
            streams = {}
            for kind in STREAMS:
                if kind != STREAMS[0]:
                    self._begin(f"node {number}: {kind} bandwidth")
                streams[kind] = {n: self._stream(region, kind, plan.cpus[:n]) for n in plan.threads}
            self._begin(f"node {number}: latency")
            with self._region(number, huge=True) as chased:
                chase = Chase(chased)
                first, readers = plan.cpus[0], plan.cpus[1 : plan.threads[-1]]
                idle = self._rounds(lambda: latency_ns(chase, first, plan.duration_ns))
                loaded = None
                if readers:
                    loaded = self._rounds(lambda: latency_ns(chase, first, plan.duration_ns, region, readers))
                huge = min(region.huge_bytes(), chased.huge_bytes()) >= 0.9 * plan.nbytes
        return NodeFigures(
            number, streams["read"], streams["write"], streams["mixed"], idle, loaded, len(readers), huge
        )

    def _stream(self, region: Region, kind: Stream, cpus: Sequence[int]) -> Figure:
        return self._rounds(lambda: stream_rate(region, kind, cpus, self.plan.duration_ns))

    def moves(self, other: int) -> list[MoveFigures]:
        """Migration between the fast node and `other`, there and back, per page size and number of movers."""
        found = []
        for page_bytes in (PAGE_BYTES, HUGE_PAGE_BYTES):
            self._begin(f"nodes {self.plan.fast} and {other}: moving pages of {format_bytes(page_bytes)}")
            with self._region(self.plan.fast, huge=page_bytes == HUGE_PAGE_BYTES) as region:
                if page_bytes == HUGE_PAGE_BYTES and region.huge_bytes() < 0.9 * region.nbytes:
                    self.notes.append("pages of 2 MiB were not available (see transparent_hugepage/enabled)")
                    continue
                there, back = {}, {}
                for count in self.plan.threads:
                    there[count], back[count] = self._there_and_back(region, count, page_bytes, other)
                if page_bytes == HUGE_PAGE_BYTES and region.huge_bytes() < 0.9 * region.nbytes:
                    self.notes.append("the kernel split huge pages as they moved")
            found.append(MoveFigures(self.plan.fast, other, page_bytes, there))
            found.append(MoveFigures(other, self.plan.fast, page_bytes, back))
        return found

    def _there_and_back(self, region: Region, count: int, page_bytes: int, other: int) -> tuple[Figure, Figure]:
        there: list[float] = []
        back: list[float] = []
        for _ in range(self.plan.rounds):
            for rates, node in ((there, other), (back, self.plan.fast)):
                rates.append(self._moved([parts_of(region, count, page_bytes, node)])[0])
        return figure_of(there), figure_of(back)

    def both_ways(self, other: int) -> dict[tuple[int, int], Figure]:
        """(from, to) -> bytes/s of one mover each way, both at once, in pages of 4 KiB."""
        fast = self.plan.fast
        self._begin(f"nodes {fast} and {other}: moving both ways at once")
        down: list[float] = []
        up: list[float] = []
        with self._region(fast, huge=False) as one, self._region(other, huge=False) as two:
            for turn in range(self.plan.rounds):
                falling, rising = (one, two) if turn % 2 == 0 else (two, one)
                parts = [parts_of(falling, 1, PAGE_BYTES, other), parts_of(rising, 1, PAGE_BYTES, fast)]
                for rates, rate in zip((down, up), self._moved(parts), strict=True):
                    rates.append(rate)
        return {(fast, other): figure_of(down), (other, fast): figure_of(up)}

    def moving(self, other: int | None) -> tuple[MovingFigures, MovingFigures]:
        """What moving to and from `other` takes from compute; None: copies within memory, as on an emulated tier."""
        fast, where = self.plan.fast, "copying" if other is None else f"moving to and from node {other}"
        self._begin(f"{where} beside compute")
        with self._region(fast, huge=False) as region:
            return moving_figures(region, self.plan.rounds, work_on_all_processors(), fast, other)

    def _moved(self, parts: list[list[Moving]]) -> list[float]:
        found = []
        for group, (rate, moved, error) in zip(parts, move_rates(parts, self.plan.cpus), strict=True):
            wanted = sum(part.nbytes for part in group)
            if moved < (1 - MOST_STAYED) * wanted:
                raise CapabilityError(
                    f"moving {format_bytes(wanted)} to node {group[0].node}",
                    f"{format_bytes(moved)} arrived: {os.strerror(error) if error else 'no reason given'}",
                    "free memory of that node, or take a smaller --size",
                )
            found.append(rate)
        return found


def _notes(plan: MeasurementPlan, nodes: Sequence[NodeFigures], run: _Run) -> list[str]:
    notes, cache = list(dict.fromkeys(run.notes)), processor.last_cache_bytes()
    if processor.is_emulated():
        return [EMULATED, *notes]  # what else could be wrong does not matter then
    small = ", ".join(str(node.node) for node in nodes if not node.huge)
    return notes + holding(
        (
            processor.is_virtual(),
            "virtual machine: others may use the same memory, and the hypervisor's pages count too",
        ),
        (
            run.busy < IDLE,
            (
                f"other programs were on these CPUs, up to {1 - run.busy:.0%} of a round: figures count the time on the"
                " CPU only, but caches and memory were shared; measure again on an idle host"
            ),
        ),
        (small, f"no huge pages on node {small}: its latency includes walks of page tables"),
        (
            plan.nbytes < CACHES * cache,
            (
                f"{format_bytes(plan.nbytes)} is less than {CACHES} times the cache of {format_bytes(cache)}:"
                " part of what was read came from the cache"
            ),
        ),
    )
