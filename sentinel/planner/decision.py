"""A Decision: what a policy chooses, before addresses. `assemble` turns it into a Plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.units import PAGE_BYTES
from sentinel.planner.pool import Pool
from sentinel.planner.units import Units

PART_DTYPE = np.dtype(
    [
        ("unit", "<i4"),
        ("page", "<i8"),  # first page of the part within its unit
        ("pages", "<i8"),
        ("tier", "<i4"),  # of birth; of a persistent unit: as layer 0 begins
        ("pooled", "?"),  # never migrates and shares addresses by events, not by layers (transients only)
    ]
)
MOVE_DTYPE = np.dtype(
    [
        ("part", "<i4"),
        ("source", "<i4"),
        ("target", "<i4"),
        ("start", "<i4"),  # in [0, L)
        ("due", "<i4"),  # unrolled, in (start, start + L]
        ("reason", "<u1"),  # index into core.run.REASONS
        ("rank", "<f8"),  # within a layer and direction, lower first
    ]
)


@dataclass(frozen=True, eq=False)
class Decision:
    """`parts`: page ranges that cover every unit, by unit and page. `short_tier`: one entry per `units.short`.

    `fast_pool`: the packed pool of the fast tier, which then holds room only in the layers in which it is used;
    without it, what is pooled is packed by `assemble` into one block that is resident all step. `rest_tier`: of what
    lies above that pool's cap. `housed`: the slower tiers are chosen; else 1 stands for all of them (see `homes`).
    """

    parts: NDArray[Any]
    moves: NDArray[Any]
    short_tier: NDArray[np.int64]
    fast_pool: Pool | None = None
    details: dict[str, Any] = field(default_factory=dict)
    rest_tier: int = 1
    housed: bool = False


def whole_parts(units: Units, tier: NDArray[np.int64] | int, *, pooled: bool = True) -> NDArray[Any]:
    """One part a unit, born in `tier`; transients are pooled if they may share addresses by events."""
    parts = np.zeros(len(units), PART_DTYPE)
    parts["unit"] = np.arange(len(units))
    parts["pages"] = units.nbytes // PAGE_BYTES
    parts["tier"] = tier
    parts["pooled"] = ~units.persistent & pooled
    return parts


def no_moves() -> NDArray[Any]:
    """An empty table of moves."""
    return np.zeros(0, MOVE_DTYPE)
