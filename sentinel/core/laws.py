"""The laws of a Plan. `check` raises PlanError, naming layer, block and rule, at the first one broken.

1 capacity, 2 residence, 3 chain, 4 lifetime, 5 closed, 6 isolation, 9 coverage, 10 sharing, 11 birth. Law 7
(determinism) and 8 (bounds) compare plans and runs; they are property tests. So are two laws of executions on a file,
which have no plan: freshness (no operator finds other bytes than were written last) and the hard budget:
tests/property/test_frame_laws.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sentinel.core import addresses
from sentinel.core.errors import PlanError
from sentinel.core.extents import extent_shares
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES

RESIDENCE = "residence"
"""The rule of law 2, as it begins."""


def check(plan: Plan, profile: Profile | None = None, machine: Machine | None = None) -> None:
    """Raise PlanError if `plan` breaks a law.

    A plan by itself does not tell how long a transient lives. So coverage and sharing are known in full only with the
    `profile` that the plan was made for, and residence with a `machine` as well.
    """
    _well_formed(plan)
    addresses.check_slots(plan)
    _chain_and_lifetime(plan)
    _capacity(plan)
    addresses.check_isolation(plan)
    addresses.check_birth(plan)
    if profile is not None:
        addresses.check_profile(plan, profile)
    addresses.check_coverage(plan, profile)
    addresses.check_sharing(plan, profile)
    if profile is not None and machine is not None:
        _residence(plan, profile, machine)


def _well_formed(plan: Plan) -> None:
    length, tiers = plan.n_layers, len(plan.tier_names)
    if length == 0 or tiers == 0 or len(plan.capacity_bytes) != tiers:
        raise PlanError("a plan needs layers, tiers and one capacity for each tier")
    addresses.check_segments(plan)
    b, m = plan.block_columns, plan.move_columns
    _holds(
        np.arange(len(b)),
        {
            "a block is whole pages": (b.nbytes <= 0)
            | (b.nbytes % PAGE_BYTES + b.offset % PAGE_BYTES > 0)
            | (b.offset < 0),
            "a block lies outside the arena": b.offset + b.nbytes > plan.extent_bytes,
            "a block lives for at least one layer and at most one step": _no_stretch(b.start, b.stop, length),
            "a block is born in a tier that is not there": _outside(b.tier, tiers),
            "a persistent or fixed block lives through the whole step": b.lasting
            & ((b.start != 0) | (b.stop != length)),
        },
    )
    missing = _outside(m.block, len(b))
    if missing.any():
        raise PlanError(f"a migration names block {m.block[missing.argmax()]}, which is not there")
    _holds(
        m.block,
        {
            "a migration leads from one tier to another": _outside(m.source, tiers)
            | _outside(m.target, tiers)
            | (m.source == m.target),
            "a migration takes at least one layer and at most one step": _no_stretch(m.start, m.due, length),
            "a migration moves its whole block": m.nbytes != b.nbytes[m.block],
            "a fixed block never migrates": b.fixed[m.block],
        },
    )


def _holds(
    block: NDArray[np.int64], broken: dict[str, NDArray[np.bool_]], layer: NDArray[np.int64] | None = None
) -> None:
    """Raise PlanError for the first row of which a rule is broken. `block`, `layer`: (rows,) what it names."""
    rules = np.array(list(broken.values()))
    rows = rules.any(axis=0)
    if rows.any():
        row = int(rows.argmax())
        rule = list(broken)[int(rules[:, row].argmax())]
        raise PlanError(rule, block=int(block[row]), layer=None if layer is None else int(layer[row]))


def _outside(index: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
    return (index < 0) | (index >= count)


def _no_stretch(start: NDArray[np.int64], stop: NDArray[np.int64], length: int) -> NDArray[np.bool_]:
    """Whether [start, stop) does not begin in the ring, is empty or longer than the ring."""
    return _outside(start, length) | (stop <= start) | (stop > start + length)


def _chain_and_lifetime(plan: Plan) -> None:
    b, m, flights, length = plan.block_columns, plan.move_columns, plan.flights, plan.n_layers
    block, begin, end, head = flights.block, flights.begin, flights.end, flights.head
    source, target = m.source[flights.move], m.target[flights.move]
    persistent, tier = b.persistent[block], b.tier[block]
    # before its first flight a transient is where it was born, a persistent block where the last flight took it
    last = np.flatnonzero(flights.tail)[np.cumsum(head) - 1]
    here = np.where(head, np.where(persistent, target[last], tier), np.roll(target, 1))
    free_from = np.where(head, np.where(persistent, end[last] - length, b.start[block]), np.roll(end, 1))
    at_zero = np.where(end[last] <= length, target[last], source[last])
    closing = head & persistent
    early = begin < free_from
    _holds(
        block,
        {
            "closed: the last migration ends after the first one starts": closing & early,
            "closed: the block does not end the step where it began it": closing & (tier != at_zero),
            "chain: a migration starts before the one before it has ended": early,
            "chain: a migration starts where the block is not": source != here,
            # before birth is counted as after death: layers are a ring
            "lifetime: no migration before birth or after death": ~persistent & (end > b.stop[block]),
        },
        m.start[flights.move],
    )


def _capacity(plan: Plan) -> None:
    over = plan.held_bytes > np.array(plan.capacity_bytes, np.int64)[:, None]
    if over.any():
        tier, layer = (int(x) for x in np.argwhere(over)[0])
        held = int(plan.held_bytes[tier, layer])
        raise PlanError(
            f"capacity: tier {plan.tier_names[tier]} holds {held} bytes of {plan.capacity_bytes[tier]}", layer=layer
        )


def _residence(plan: Plan, profile: Profile, machine: Machine) -> None:
    """A block used in a layer is then in an addressable tier."""
    barred = {i for i, tier in enumerate(machine.tiers) if not tier.addressable}
    if not barred:
        return
    used: dict[int, set[int]] = {}
    for extent, layer in zip(profile.accesses["extent"].tolist(), profile.accesses["layer"].tolist(), strict=True):
        used.setdefault(extent, set()).add(layer)
    block, extents, _ = extent_shares(plan, profile)
    first = np.searchsorted(block, np.arange(len(plan.blocks) + 1))
    for index, tier, _, stop, start, _ in plan.spans.tolist():  # what leaves is served from where it goes
        if tier in barred:
            layers = {layer % plan.n_layers for layer in range(start, stop)}
            for extent in extents[first[index] : first[index + 1]].tolist():
                hit = layers & used.get(extent, set())
                if hit:
                    raise PlanError(
                        f"{RESIDENCE}: used while in {plan.tier_names[tier]}, which is not addressable",
                        block=index,
                        layer=min(hit),
                    )
