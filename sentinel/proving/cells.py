"""The cells of a proof, the most telling first, and how long each takes about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sentinel.planner import POLICIES
from sentinel.proving.workloads import Workload

CONTROL, OURS = "all-fast", "sentinel"
"""CONTROL moves nothing and gets all the memory that it needs: what the others are a ratio to."""
KERNEL = ("kernel-tiering", "first-touch", "weighted-interleave", "interleave", "all-slow")
"""Placements of the kernel on two nodes, beside the two that set the room of all."""
_FIRST = ("best-static", "sentinel-2021", "all-slow", "first-touch", "weighted-interleave", "interleave", "static")
_LEFT_OUT = ("autotm",)
"""Plans take it minutes."""
QUICK = (CONTROL, OURS, "best-static")
ROUNDS = 3
"""How many runs there are of what is timed beside a control: a host is not as fast in one minute as in the next."""
_START_S = 4.0
_PINNED_BYTES_PER_S = 2 << 30
"""So fast, about, does ballast take what a node has beyond the fast bytes."""
_LIMITED = 4
"""Of the kernel's placements, those with ballast."""
_SLOWER = {"stock": 1.0, "policy": 1.6, "file": 8.0, "kernel": 4.0}
"""A step over a stock one, about."""

Kind = Literal["stock", "policy", "kernel", "file"]


@dataclass(frozen=True)
class Steps:
    """How many steps a cell trains, and how many of the last ones count."""

    steps: int
    judged: int


FULL, SMALL, WATCHED = Steps(22, 12), Steps(14, 4), Steps(5, 1)
WARM_UP = {True: 6, False: 20}
"""Steps before those that are measured, of a comparison with the kernel's placements; quick or not."""


@dataclass(frozen=True)
class Cell:
    """`placement`: the policy, or what the kind says. `round`: 1, then 2 and so on."""

    workload: Workload
    kind: Kind
    placement: str
    round: int = 1

    @property
    def name(self) -> str:
        """Of its file."""
        name = f"{self.workload.name}.{self.kind}.{self.placement}"
        return name if self.round == 1 else f"{name}.{self.round}"

    def expected_s(self, quick: bool, node_bytes: int, step_s: float | None = None) -> float:
        """About so long it takes. `node_bytes`: what the fast node has, which ballast fills; `step_s`: of a stock step
        here, if that is known."""
        step = step_s or self.workload.step_s
        if self.kind == "kernel":
            each = _START_S + (WARM_UP[quick] + 8) * step * _SLOWER[self.kind]
            return each * (len(KERNEL) + 2) + _LIMITED * node_bytes / _PINNED_BYTES_PER_S
        return _START_S + steps_of(quick).steps * step * _SLOWER[self.kind]


def steps_of(quick: bool) -> Steps:
    """Of each cell but those that compare with the kernel: bits are compared with a stock run of as many."""
    return SMALL if quick else FULL


def policies(quick: bool) -> tuple[str, ...]:
    """Those that are predicted and executed, in this order."""
    if quick:
        return QUICK
    first = (CONTROL, OURS, *_FIRST)
    return (*first, *(name for name in POLICIES if name not in (*first, *_LEFT_OUT)))


def cells_in_order(workloads: Sequence[Workload], *, quick: bool, planned: bool, nodes: bool, file: bool) -> list[Cell]:
    """`planned`: there is a tier to which plans are applied. `nodes`: it is a node. `file`: a file is tried.

    Each workload's stock run, its control and ours stand together; then placement by placement what else there is.
    Where plans are applied, later rounds run all of a workload in a row, so that its control is minutes away at most.
    """
    chosen = policies(quick) if planned else ()
    found = []
    for workload in workloads:
        found.append(Cell(workload, "stock", "stock"))
        found += [Cell(workload, "policy", name) for name in chosen[:2]]
    if nodes:
        found += [Cell(workload, "kernel", "kernel") for workload in workloads]
    found += [Cell(workload, "policy", name) for name in chosen[2:4] for workload in workloads]
    if file:
        found += [Cell(workload, "file", "file") for workload in workloads]
    found += [Cell(workload, "policy", name) for name in chosen[4:] for workload in workloads]
    for number in range(2, (1 if quick or not chosen else ROUNDS) + 1):
        for workload in workloads:
            found.append(Cell(workload, "stock", "stock", number))
            found += [Cell(workload, "policy", name, number) for name in chosen]
    return found
