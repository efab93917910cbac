"""The best tiers for pages that stay for good.

`tiers_by_benefit` gives the fast tier to the pages that save most time in it. A short-lived tensor is one thing to the
rest of the planner, fast or slow. Here a part of it may be fast, and so may the next tensor that uses those pages.

On a machine that declares its FLOPs a layer takes the larger of its computation and its traffic, so slow pages are free
until a layer's slack is used up. A linear program finds how many pages of each kind are slow: it has one variable for
all pages that cost alike in every layer, and one for the time of each layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import highspy
import numpy as np
from numpy.typing import NDArray

from sentinel.core.cost import base_ns, slow_extra_ns
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES
from sentinel.planner.fixed_placement import one_tier, with_page_tiers

_RUNS = 1024
"""Pages are placed in at most 1,024 runs: a plan has at most a block for each."""

_CELLS = 4_000_000
"""Most runs times layers: a step of very many layers has fewer runs, so that what each costs in each layer fits."""

_ALIKE = 1e-9
"""Runs whose worth differs by less, as a share of the greatest, count as alike."""


def best_fixed_plan(profile: Profile, machine: Machine, policy: str) -> Plan:
    """The plan of `tiers_by_benefit`: nothing moves, and each page is where it saves most."""
    all_fast = one_tier(profile, machine, 0, policy)
    return with_page_tiers(all_fast, profile, tiers_by_benefit(all_fast, profile, machine), policy)


def tiers_by_benefit(plan: Plan, profile: Profile, machine: Machine) -> NDArray[np.int64]:
    """(pages,) tier of each page of an all-fast plan if the pages that save most time are fast."""
    pages = plan.extent_bytes // PAGE_BYTES
    if not pages:
        return np.zeros(0, np.int64)
    run = -(-pages // max(min(_RUNS, _CELLS // profile.n_layers), 1))
    heads = np.arange(0, pages, run)
    counts = np.diff(heads, append=pages)
    slow_ns = _slow_ns(plan, profile, machine, run)
    worth = slow_ns.sum(axis=1) / counts
    grade = np.rint(worth / max(float(worth.max()), 1e-300) / _ALIKE)
    left = np.zeros(len(counts), np.int64)
    if machine.flops_per_s is not None:
        fast = machine.fast.capacity_bytes // PAGE_BYTES
        left = _slow_pages(slow_ns, counts, *base_ns(profile, machine), max(pages - fast, 0))
    # of each run the last `left` pages come behind all others: a tensor's last page may hold a few bytes only
    order, kept = np.argsort(-grade, kind="stable"), counts - left
    begin, length = np.append(heads[order], (heads + kept)[order]), np.append(kept[order], left[order])
    return _filled(begin, length, (machine.fast.capacity_bytes, *plan.capacity_bytes[1:]))


def _filled(begin: NDArray[np.int64], length: NDArray[np.int64], capacity_bytes: Sequence[int]) -> NDArray[np.int64]:
    """(pages,) tier of each page if stretches of pages fill the tiers in this order; the last takes what is left."""
    stops = np.cumsum(length)
    ends = np.cumsum([capacity // PAGE_BYTES for capacity in capacity_bytes[:-1]], dtype=np.int64)
    cuts = np.union1d(stops, ends[ends < stops[-1]])  # where a stretch ends or a tier is full
    starts = np.append(0, cuts[:-1])
    of = np.searchsorted(stops, starts, side="right")
    first = begin[of] + starts - (stops - length)[of]
    by_page = np.argsort(first, kind="stable")
    tier = np.searchsorted(ends, starts, side="right")
    return np.repeat(tier[by_page], (cuts - starts)[by_page])


def _slow_ns(plan: Plan, profile: Profile, machine: Machine, run: int) -> NDArray[np.float64]:
    """(runs, layers) extra traffic of each layer if a run of `run` pages is in the slowest tier; a tensor's is spread
    over its pages."""
    extra = slow_extra_ns(profile, machine, len(machine.tiers) - 1)
    low, high = np.zeros((2, len(profile.names)), np.int64)
    for slot in plan.slots:
        low[slot.tensor], high[slot.tensor] = slot.offset // PAGE_BYTES, -(-(slot.offset + slot.nbytes) // PAGE_BYTES)
    rows = np.flatnonzero(high[profile.accesses["extent"]])  # of tensors with a slot
    of, layer = profile.accesses["extent"][rows], profile.accesses["layer"][rows]
    first, last = low[of], high[of] - 1
    each = extra[rows] / (last + 1 - first)
    # A tensor covers all pages of the runs from its first to its last, but for some at both ends.
    change = np.zeros((-(-plan.extent_bytes // (run * PAGE_BYTES)) + 1, profile.n_layers))
    head, tail = first // run * profile.n_layers + layer, last // run * profile.n_layers + layer
    np.add.at(change.reshape(-1), head, each * run)
    np.add.at(change.reshape(-1), tail + profile.n_layers, -each * run)
    found = change.cumsum(axis=0)[:-1]
    np.add.at(found.reshape(-1), head, -each * (first % run))
    np.add.at(found.reshape(-1), tail, -each * (run - 1 - last % run))
    np.maximum(found, 0.0, out=found)
    return found


def _slow_pages(
    slow_ns: NDArray[np.float64],
    pages: NDArray[np.int64],
    compute_ns: NDArray[np.float64],
    traffic_ns: NDArray[np.float64],
    n_slow: int,
) -> NDArray[np.int64]:
    """(runs,) pages of each run that are slow, at most `n_slow` in all: parts of a page are rounded down.

    `slow_ns`: (runs, layers) extra traffic of a layer if a run is slow. `pages`: (runs,) of each. `compute_ns`,
    `traffic_ns`: (layers,) with everything fast.
    """
    shapes = np.rint(slow_ns / pages[:, None] / max(float(slow_ns.max()), 1e-300) / _ALIKE)
    _, first, kind = np.unique(shapes, axis=0, return_index=True, return_inverse=True)
    kind = kind.reshape(-1)
    of_kind = np.bincount(kind, pages).astype(np.float64)
    each = slow_ns[first] / pages[first, None]
    slow = np.floor(_solved(each, of_kind, compute_ns, traffic_ns, n_slow) + 1e-6).astype(np.int64)
    order = np.lexsort((-np.arange(len(kind)), kind))  # the last ones of a kind are slow
    before = np.cumsum(pages[order]) - pages[order]
    before -= before[np.searchsorted(kind[order], kind[order])]  # of the same kind
    found = np.zeros(len(pages), np.int64)
    found[order] = np.clip(slow[kind[order]] - before, 0, pages[order])
    return found


def _solved(
    each_ns: NDArray[np.float64],
    of_kind: NDArray[np.float64],
    compute_ns: NDArray[np.float64],
    traffic_ns: NDArray[np.float64],
    n_slow: int,
) -> NDArray[np.float64]:
    """(kinds,) slow pages of each that make the sum of layer times least: columns are pages, then layers."""
    kinds, layers = each_ns.shape
    layer, page_kind = np.nonzero(each_ns.T)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = kinds + layers, layers + 1
    lp.col_cost_ = np.concatenate([np.zeros(kinds), np.ones(layers)])
    lp.col_lower_ = np.concatenate([np.zeros(kinds), compute_ns / 1e3])
    lp.col_upper_ = np.concatenate([of_kind, np.full(layers, np.inf)])
    lp.row_lower_ = np.append(traffic_ns / 1e3, float(n_slow))
    lp.row_upper_ = np.full(layers + 1, np.inf)
    row = np.concatenate([layer, np.arange(layers), np.full(kinds, layers)])
    column = np.concatenate([page_kind, kinds + np.arange(layers), np.arange(kinds)])
    value = np.concatenate([-each_ns.T[layer, page_kind] / 1e3, np.ones(layers + kinds)])
    order = np.argsort(row, kind="stable")
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.searchsorted(row[order], np.arange(layers + 2)).astype(np.int32)
    lp.a_matrix_.index_, lp.a_matrix_.value_ = column[order].astype(np.int32), value[order]
    solver = highspy.Highs()
    for option, setting in (("output_flag", False), ("threads", 1), ("solver", "simplex")):
        solver.setOptionValue(option, setting)
    solver.passModel(lp)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return np.zeros(kinds)  # then pages are chosen by what each saves by itself
    return np.array(solver.getSolution().col_value[:kinds])
