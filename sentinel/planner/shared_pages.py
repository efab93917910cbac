"""A step without co-allocation: small long-lived tensors share pages as they happen to be born."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.profile import RANGE_DTYPE, Profile
from sentinel.core.units import PAGE_BYTES
from sentinel.planner.units import LARGE_BYTES


def shared_pages(profile: Profile) -> Profile:
    """`profile` with a tensor for each page that small long-lived transients share, in the place of these.

    An allocator that knows nothing of layers gives neighbours of birth the same page; it is alive as long as any of
    them and hot whenever one is. Bytes and accesses are those of its tenants. Page ranges are left out.
    """
    t, length = profile.tensors, profile.n_layers
    small = np.flatnonzero(t["managed"] & ~t["persistent"] & ~profile.short_lived() & (t["nbytes"] < LARGE_BYTES))
    small = small[np.lexsort((small, t["born_event"][small]))]
    if not len(small):
        return replace(profile, ranges=np.zeros(0, RANGE_DTYPE))
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
        ranges=np.zeros(0, RANGE_DTYPE),
    )


def _summed(accesses: NDArray[Any], into: NDArray[np.int64], length: int) -> NDArray[Any]:
    """One row a (tensor, layer): sums, -1 where a number is unknown."""
    key, first, place = np.unique(
        into[accesses["tensor"]] * length + accesses["layer"], return_index=True, return_inverse=True
    )
    out = accesses[first].copy()
    out["tensor"], out["layer"] = key // length, key % length
    for column in ("reads", "writes", "read_bytes", "written_bytes", "touched_bytes", "pages_touched", "pages_written"):
        known = np.maximum(accesses[column], 0)
        out[column] = np.bincount(place, known, len(key)).astype(np.int64)
    out["pages_touched"] = out["pages_written"] = -1
    return out
