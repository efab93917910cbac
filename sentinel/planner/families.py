"""Units of one fate are one family for the planner: same life, home and layers of use, same gain a byte in each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sentinel.planner.units import mix
from sentinel.planner.workload import Workload

_GRAIN = 0.01
"""Gains a byte that differ by less (as a share) count as the same."""


def families(work: Workload) -> tuple[Workload, NDArray[np.int64]]:
    """(the workload with families in the place of units, (units,) family of each unit)."""
    units = work.units
    if not len(units):
        return work, np.zeros(0, np.int64)
    density = work.use_ns / units.nbytes[work.use_unit]
    grade = np.rint(np.log(np.maximum(density, 1e-300)) / _GRAIN).astype(np.int64)
    marks = mix(mix(work.use_layer.astype(np.uint64) + np.uint64(1)) ^ grade.astype(np.uint64))
    fate = np.zeros(len(units), np.uint64)
    np.add.at(fate, work.use_unit, marks)
    keys = np.stack([~units.persistent, units.start, units.stop, fate.view(np.int64), work.home])
    _, first, of = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    of = of.reshape(-1)
    order = np.argsort(first)  # families in the order of their first units
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    of, first = number[of], first[order]
    uses = np.flatnonzero(np.isin(work.use_unit, first))
    heads = of[work.use_unit[uses]]
    uses = uses[np.argsort(heads, kind="stable")]
    heads = np.sort(heads)
    # the j-th use of a unit is the j-th use of its family
    ordinal = np.arange(len(work.use_unit)) - work.first_use[work.use_unit]
    first_use = np.searchsorted(heads, np.arange(len(first) + 1))
    total = np.bincount(first_use[of[work.use_unit]] + ordinal, work.use_ns, len(uses)).astype(np.float64)
    merged = replace(
        units,
        nbytes=np.bincount(of, units.nbytes, len(first)).astype(np.int64),
        start=units.start[first],
        stop=units.stop[first],
        persistent=units.persistent[first],
    )
    return (
        replace(
            work,
            units=merged,
            use_unit=heads,
            use_layer=work.use_layer[uses],
            use_ns=total,
            first_use=first_use,
            home=work.home[first],
        ),
        of,
    )
