"""The published policy rung by rung, for the paper's ablation: what each idea adds. Not for use.

Every rung gets the interval length that the simulator finds best for it, so that a rung shows its idea and not a
better or worse guess of a length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.extents import merge_extents
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import EXTENT_DTYPE, Profile
from sentinel.core.units import PAGE_BYTES
from sentinel.planner.assemble import assemble, footprint_bytes, one_tier
from sentinel.planner.decision import Decision, decide
from sentinel.planner.paper import Sentinel2021, grant, interval_cuts, lazy_episodes, lengths_to_try, make_episodes
from sentinel.planner.pool import reserve
from sentinel.planner.portfolio import Sentinel
from sentinel.planner.workload import LARGE_BYTES, Workload, make_workload
from sentinel.simulator import simulate_lawful

RUNGS = ("direct", "intervals", "reservation", "co-allocation", "lazy eviction", "test and trial", "ours")
"""Direct migration: what a layer needs comes while the one before it runs. Then with intervals; with the reserve for
short-lived tensors; with co-allocation (until then small tensors share pages as they are born); with eviction only
where room is needed; with test and trial, which is our reading of the published policy; ours."""


def ladder(profile: Profile, machine: Machine) -> dict[str, int]:
    """Simulated step in ns of each rung, in the order of `RUNGS`."""
    footprint = footprint_bytes(profile)
    if footprint <= machine.fast.capacity_bytes:
        all_fast = simulate_lawful(one_tier(profile, machine, 0, "all-fast"), profile, machine).step_ns or 0
        return dict.fromkeys(RUNGS, all_fast)
    apart, mixed = (make_workload(p, machine, footprint) for p in (profile, shared_pages(profile)))
    lengths = lengths_to_try(profile.n_layers)
    ours = Sentinel().plan(profile, machine).predicted_step_ns or 0
    times = (
        _best(mixed, [1], _unreserved),
        _best(mixed, lengths, _unreserved),
        _best(mixed, lengths, _reserved),
        _best(apart, lengths, _reserved),
        _best(apart, lengths, _lazy),
        min(Sentinel2021(mil).plan(profile, machine).predicted_step_ns or 0 for mil in lengths),
        ours,
    )
    return dict(zip(RUNGS, times, strict=True))


def _best(work: Workload, lengths: list[int], decided: Callable[[Workload, int], Decision]) -> int:
    return min(
        simulate_lawful(_drawn(work, decided(work, mil)), work.profile, work.machine).step_ns or 0 for mil in lengths
    )


def _drawn(work: Workload, decision: Decision) -> Plan:
    """The plan of a decision; `capacity_bytes` of its machine."""
    return assemble(
        replace(decision, details={}),
        work.units,
        work.profile,
        work.machine,
        policy="ladder",
        footprint_bytes=work.footprint_bytes,
    )


def _unreserved(work: Workload, mil: int) -> Decision:
    """Long-lived tensors first; short-lived ones get what room is left to them in every layer."""
    episodes = make_episodes(work, interval_cuts(work.n_layers, mil))
    free = np.full(work.n_layers, work.budget_bytes)
    granted = grant(work, episodes, free)
    return decide(work, episodes, granted, reserve(work, int(free.min())))


def _reserved(work: Workload, mil: int) -> Decision:
    episodes, short = make_episodes(work, interval_cuts(work.n_layers, mil)), reserve(work, work.budget_bytes)
    return decide(work, episodes, grant(work, episodes, work.budget_bytes - short.held_bytes), short)


def _lazy(work: Workload, mil: int) -> Decision:
    short = reserve(work, work.budget_bytes)
    episodes = lazy_episodes(work, interval_cuts(work.n_layers, mil), short)
    return decide(work, episodes, np.ones(len(episodes), bool), short)


def shared_pages(profile: Profile) -> Profile:
    """`profile` with a tensor for each page that small long-lived transients share, in the place of these.

    An allocator that knows nothing of layers gives neighbours of birth the same page; it is alive as long as any of
    them and hot whenever one is. Bytes and accesses are those of its tenants. Page ranges are left out.
    """
    profile = merge_extents(profile)
    t, length = profile.tensors, profile.n_layers
    small = np.flatnonzero(t["managed"] & ~t["persistent"] & ~profile.short_lived() & (t["nbytes"] < LARGE_BYTES))
    small = small[np.lexsort((small, t["born_event"][small]))]
    if not len(small):
        return profile
    running = np.cumsum(t["nbytes"][small])
    page = (running - t["nbytes"][small]) // PAGE_BYTES  # a tensor is where it begins
    # what wraps round the step's end shares with its like: a union of lives must fit into one step
    stop = t["stop"][small].astype(np.int64)
    tenant_of = np.unique(np.stack([stop > length, page]), axis=1, return_inverse=True)[1].reshape(-1)
    head = small[np.unique(tenant_of, return_index=True)[1]]
    into = np.arange(len(t))
    into[small] = head[tenant_of]
    return _merged(profile, into)


def _merged(profile: Profile, into: NDArray[np.int64]) -> Profile:
    """The profile in which tensor i is part of tensor `into[i]`."""
    t, length = profile.tensors, profile.n_layers
    merged = t.copy()
    for column, least in (("start", True), ("stop", False), ("born_event", True), ("died_event", False)):
        (np.minimum if least else np.maximum).at(merged[column], into, t[column])
    merged["nbytes"] = np.bincount(into, t["nbytes"], len(t)).astype(np.int64)
    merged["stop"] = np.minimum(merged["stop"], merged["start"] + length)
    merged["died_event"] = np.minimum(merged["died_event"], merged["born_event"] + profile.n_events)
    kept = np.flatnonzero(into == np.arange(len(t)))
    number = np.full(len(t), -1, np.int64)
    number[kept] = np.arange(len(kept))
    return replace(
        profile,
        names=tuple(profile.names[i] for i in kept.tolist()),
        tensors=merged[kept],
        accesses=_summed(profile.accesses, number[into], length),
        extents=np.zeros(0, EXTENT_DTYPE),
    )


def _summed(accesses: NDArray[Any], into: NDArray[np.int64], length: int) -> NDArray[Any]:
    """One row a (tensor, layer): sums, -1 where a number is unknown."""
    key, first, place = np.unique(
        into[accesses["extent"]] * length + accesses["layer"], return_index=True, return_inverse=True
    )
    out = accesses[first].copy()
    out["extent"], out["layer"] = key // length, key % length
    for column in ("reads", "writes", "read_bytes", "written_bytes", "touched_bytes", "pages_touched", "pages_written"):
        known = np.maximum(accesses[column], 0)
        out[column] = np.bincount(place, known, len(key)).astype(np.int64)
    out["pages_touched"] = out["pages_written"] = -1
    return out
