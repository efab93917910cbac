"""What a calibration found. Every figure is the median of several rounds, with the lowest and the highest of them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

EMULATED = "emulated machine: these are not memory's speeds"
"""Said wherever such figures are shown."""


@dataclass(frozen=True)
class Figure:
    """The median of `rounds` rounds, and the lowest and highest."""

    median: float
    lowest: float
    highest: float
    rounds: int

    @property
    def spread(self) -> float:
        """Highest less lowest, as a share of the median."""
        return (self.highest - self.lowest) / self.median if self.median else 0.0


def figure_of(values: Sequence[float]) -> Figure:
    """The figure of these rounds, at least one."""
    return Figure(statistics.median(values), min(values), max(values), len(values))


def best(by_threads: Mapping[int, Figure]) -> Figure:
    """The figure of the number of threads that got most."""
    return max(by_threads.values(), key=lambda figure: figure.median)


@dataclass(frozen=True)
class NodeFigures:
    """Memory of one node, used by CPUs of the fast one.

    `read`, `write` (ordinary stores), `mixed` (one byte read and written in place counts twice): threads -> bytes/s.
    `latency_ns`: a dependent load with nothing else going on; `loaded_ns`: while `readers` other threads stream,
    None where there is no CPU for them. `huge`: whether its pages were huge.
    """

    node: int
    read: Mapping[int, Figure]
    write: Mapping[int, Figure]
    mixed: Mapping[int, Figure]
    latency_ns: Figure
    loaded_ns: Figure | None
    readers: int
    huge: bool


@dataclass(frozen=True)
class MoveFigures:
    """Migration from one node to another, in pages of `page_bytes`: movers -> bytes/s."""

    source: int
    target: int
    page_bytes: int
    rates: Mapping[int, Figure]


@dataclass(frozen=True)
class MovingFigures:
    """What moves in one direction beside a job that computes on all processors. `to_fast`: promotions. `node`: the
    slower one, None where transfers are copies, as on an emulated tier.

    `rate`: bytes/s; `lost_ns_per_kib`: ns of compute lost a KiB moved, `lost_ns_per_move`: a migration.
    """

    node: int | None
    to_fast: bool
    rate: Figure
    lost_ns_per_kib: Figure
    lost_ns_per_move: Figure


@dataclass(frozen=True)
class Calibration:
    """All figures, and under which conditions they were found. `nodes`: the fast one first.

    `both_ways`: source node -> bytes/s of 4 KiB pages while one mover each way is busy. `nbytes`: of memory that
    each measurement went over. `emulated`: the processor is software, and times mean nothing.
    """

    nodes: tuple[NodeFigures, ...]
    moves: tuple[MoveFigures, ...]
    both_ways: Mapping[tuple[int, int], Figure]
    cpus: tuple[int, ...]
    nbytes: int
    rounds: int
    processor: str
    virtual: bool
    emulated: bool
    began: str
    notes: tuple[str, ...]
    moving: tuple[MovingFigures, ...] = ()
