"""Policies without migrations: each page stays for good where it saves most, or where a simple rule has it.

`tiers_by_benefit` gives the fast tier to the pages that save most time in it. A short-lived tensor is one thing to the
rest of the planner, fast or slow. Here a part of it may be fast, and so may the next tensor that uses those pages.

On a machine that declares its FLOPs a layer takes the larger of its computation and its traffic, so slow pages are free
until a layer's slack is used up. A linear program finds how many pages of each kind are slow: it has one variable for
all pages that cost alike in every layer, and one for the time of each layer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import highspy
import numpy as np
from numpy.typing import NDArray

from sentinel.core.cost import base_ns, slow_extra_ns
from sentinel.core.errors import Infeasible
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.trace import ROLES
from sentinel.core.units import PAGE_BYTES
from sentinel.planner.assemble import footprint_bytes, one_tier, with_page_tiers
from sentinel.planner.linear_program import Entries, solver_of


class AllFast:
    """Everything in fast memory, whatever it takes; Infeasible where it does not fit."""

    name = "all-fast"

    def plan(self, profile: Profile, machine: Machine) -> Plan:
        """The plan that the footprint is measured by. Raises Infeasible if the budget is below it."""
        plan = one_tier(profile, machine, 0, self.name)
        if plan.footprint_bytes > machine.fast.capacity_bytes:
            raise Infeasible(
                plan.footprint_bytes,
                machine.fast.capacity_bytes,
                0,
                "policy all-fast keeps everything in the fast tier; choose another policy",
            )
        return plan


class AllSlow:
    """Everything in slower tiers, the first one first."""

    name = "all-slow"

    def plan(self, profile: Profile, machine: Machine) -> Plan:
        """A plan without migrations and without fast memory."""
        plan = one_tier(profile, machine, 1, self.name)
        return replace(plan, footprint_bytes=footprint_bytes(profile))


class _ByPage:
    """Each page stays for good in the tier that a rule gives it, of addresses as all-fast has them."""

    def __init__(self, name: str, rule: Callable[[Plan, Profile, Machine], NDArray[np.int8]]) -> None:
        self.name, self._rule = name, rule

    def plan(self, profile: Profile, machine: Machine) -> Plan:
        """A plan without migrations."""
        plan = one_tier(profile, machine, 0, self.name)
        return with_page_tiers(plan, profile, self._rule(plan, profile, machine), self.name)


_STRIPES = 1024
"""Pages are dealt in at most 1,024 runs; a tensor much smaller than a run is in one tier."""


def _first_touch_tiers(plan: Plan, profile: Profile, machine: Machine) -> NDArray[np.int8]:
    """(pages,) tier of each page of an all-fast plan if pages become fast in the order in which they are touched:
    persistent tensors first, then the pages of the packed transients in the order of their first tenant."""
    pages = plan.extent_bytes // PAGE_BYTES
    touched = np.full(pages, np.iinfo(np.int64).max)
    for slot in sorted(plan.slots, key=lambda s: -int(profile.tensors["born_event"][s.tensor])):
        persistent = bool(profile.tensors["persistent"][slot.tensor])
        born = -1 if persistent else int(profile.tensors["born_event"][slot.tensor])
        low, high = slot.offset // PAGE_BYTES, -(-(slot.offset + slot.nbytes) // PAGE_BYTES)
        touched[low:high] = np.minimum(touched[low:high], born)
    capacities = (machine.fast.capacity_bytes, *plan.capacity_bytes[1:])
    return fill_tiers(np.argsort(touched, kind="stable"), capacities)


def _interleaved_tiers(plan: Plan, _: Profile, machine: Machine) -> NDArray[np.int8]:
    """(pages,) as many pages in each tier, less where one is full."""
    return _dealt_by(plan, [1] * len(machine.tiers))


def _bandwidth_tiers(plan: Plan, _: Profile, machine: Machine) -> NDArray[np.int8]:
    """(pages,) each tier's share of the bandwidth, or of the footprint where that is less, in every run of pages."""
    return _dealt_by(plan, [tier.read_bytes_per_s for tier in machine.tiers], evenly=True)


def _tiers_by_role(plan: Plan, profile: Profile, machine: Machine) -> NDArray[np.int8]:
    """(pages,) optimizer state in fast memory, the rest striped over what is left of it: no use is looked at."""
    pages = plan.extent_bytes // PAGE_BYTES
    optimizer = np.zeros(pages, bool)
    role = ROLES.index("optimizer")
    for slot in plan.slots:
        if profile.tensors["role"][slot.tensor] == role:
            optimizer[slot.offset // PAGE_BYTES : -(-(slot.offset + slot.nbytes) // PAGE_BYTES)] = True
    budget = machine.fast.capacity_bytes // PAGE_BYTES
    tier = np.ones(pages, np.int8)
    tier[np.flatnonzero(optimizer)[:budget]] = 0
    rest = np.flatnonzero(~optimizer)
    left = max(budget - int(optimizer.sum()), 0)
    tier[rest] = dealt(len(rest) * PAGE_BYTES, left / max(len(rest), 1), left * PAGE_BYTES)
    slow = np.flatnonzero(tier)
    tier[slow] = 1 + fill_tiers(np.arange(len(slow)), plan.capacity_bytes[1:])
    return tier


def _dealt_by(plan: Plan, weights: Sequence[int], *, evenly: bool = False) -> NDArray[np.int8]:
    """(pages,) tier of each page: dealt to the first tier or to the slower ones by weight, and among these likewise.

    `evenly`: a tier that has less room than its share is dealt what it has room for over all addresses.
    """
    tier = np.zeros(plan.extent_bytes // PAGE_BYTES, np.int8)
    rest = np.arange(len(tier))
    for number, (weight, capacity) in enumerate(zip(weights[:-1], plan.capacity_bytes[:-1], strict=True)):
        nbytes, share = len(rest) * PAGE_BYTES, weight / sum(weights[number:])
        share = min(share, capacity / max(nbytes, 1)) if evenly else share
        rest = rest[dealt(nbytes, share, capacity) > 0]
        tier[rest] = number + 1
    return tier


def dealt(extent: int, share: float, budget: int) -> NDArray[np.int8]:
    """(pages,) tier of each page when a share of them is fast, evenly spread in runs, within `budget` bytes."""
    pages = extent // PAGE_BYTES
    run = max(-(-pages // _STRIPES), 1)
    number = np.arange(-(-pages // run))
    same = np.floor((number + 1) * share + 1e-9) == np.floor(number * share + 1e-9)
    tier = np.repeat(same.astype(np.int8), run)[:pages]
    fast = np.flatnonzero(tier == 0)
    tier[fast[budget // PAGE_BYTES :]] = 1
    return tier


def fill_tiers(order: np.ndarray, capacity_bytes: Sequence[int]) -> np.ndarray:
    """(pages,) tier of each page if they fill the tiers in this order; the last tier takes what is left."""
    tier = np.zeros(len(order), np.int8)
    for end in itertools.accumulate(capacity // PAGE_BYTES for capacity in capacity_bytes[:-1]):
        tier[order[end:]] += 1
    return tier


_RUNS = 1024
"""Pages are placed in at most 1,024 runs: a plan has at most a block for each."""

_CELLS = 4_000_000
"""Most runs times layers: a step of very many layers has fewer runs, so that what each costs in each layer fits."""

_ALIKE = 1e-9
"""Runs whose worth differs by less, as a share of the greatest, count as alike."""


def best_fixed_plan(profile: Profile, machine: Machine, policy: str) -> Plan:
    """The plan of `tiers_by_benefit`: nothing moves, and each page is where it saves most."""
    return _ByPage(policy, tiers_by_benefit).plan(profile, machine)


def tiers_by_benefit(plan: Plan, profile: Profile, machine: Machine) -> NDArray[np.int8]:
    """(pages,) tier of each page of an all-fast plan if the pages that save most time are fast."""
    pages = plan.extent_bytes // PAGE_BYTES
    if not pages:
        return np.zeros(0, np.int8)
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


def _filled(begin: NDArray[np.int64], length: NDArray[np.int64], capacity_bytes: Sequence[int]) -> NDArray[np.int8]:
    """(pages,) tier of each page if stretches of pages fill the tiers in this order; the last takes what is left."""
    stops = np.cumsum(length)
    ends = np.cumsum([capacity // PAGE_BYTES for capacity in capacity_bytes[:-1]], dtype=np.int64)
    cuts = np.union1d(stops, ends[ends < stops[-1]])  # where a stretch ends or a tier is full
    starts = np.append(0, cuts[:-1])
    of = np.searchsorted(stops, starts, side="right")
    first = begin[of] + starts - (stops - length)[of]
    by_page = np.argsort(first, kind="stable")
    tier = np.searchsorted(ends, starts, side="right").astype(np.int8)
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
    cost = np.concatenate([np.zeros(kinds), np.ones(layers)])
    columns = np.concatenate([np.zeros(kinds), compute_ns / 1e3]), np.concatenate([of_kind, np.full(layers, np.inf)])
    rows = np.append(traffic_ns / 1e3, float(n_slow)), np.full(layers + 1, np.inf)
    entries: Entries = [
        (layer, page_kind, -each_ns.T[layer, page_kind] / 1e3),
        (np.arange(layers), kinds + np.arange(layers), np.ones(layers)),
        (np.full(kinds, layers), np.arange(kinds), np.ones(kinds)),
    ]
    solver = solver_of(cost, columns, rows, entries, solver="simplex")
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return np.zeros(kinds)  # then pages are chosen by what each saves by itself
    return np.array(solver.getSolution().col_value[:kinds])


FirstTouch = partial(_ByPage, "first-touch", _first_touch_tiers)
"""What a kernel does without help: a page is fast if there was room when it was first touched, and stays."""

Interleave = partial(_ByPage, "interleave", _interleaved_tiers)
"""One page here, one there, until a tier is full; what is left is in the last one (MPOL_INTERLEAVE)."""

WeightedInterleave = partial(_ByPage, "weighted-interleave", _bandwidth_tiers)
"""Pages by bandwidth (MPOL_WEIGHTED_INTERLEAVE), as far as fast memory goes, evenly over all addresses."""

BestStatic = partial(_ByPage, "best-static", tiers_by_benefit)
"""The best placement found that moves nothing, all uses known beforehand: the strongest rival without migrations."""

Static = partial(_ByPage, "static", _tiers_by_role)
"""Optimizer state in fast memory, the rest striped over what is left of it."""
