"""What is used of each block in each layer: a profile's accesses, by the blocks of a plan. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.extents import extent_shares
from sentinel.core.plan import USE_DTYPE, Plan
from sentinel.core.profile import Profile
from sentinel.core.ragged import ranges


def with_uses(plan: Plan, profile: Profile | None) -> Plan:
    """`plan` as it is if it carries its uses or there is no profile, else with those of `profile`."""
    return plan if len(plan.uses) or profile is None else replace(plan, uses=block_uses(plan, profile))


def block_uses(plan: Plan, profile: Profile) -> NDArray[Any]:
    """The rows of `profile.accesses` summed by (block, layer), dtype USE_DTYPE.

    An extent that spans several blocks (a pool cut by layers, a plan of other ranges) spreads its accesses by bytes
    over those alive in the layer.
    """
    block, extent, share = extent_shares(plan, profile)
    if not len(block) or not len(profile.accesses):
        return np.zeros(0, USE_DTYPE)
    order = np.argsort(extent, kind="stable")
    block, extent, share = block[order], extent[order], share[order]
    first = np.searchsorted(extent, profile.accesses["extent"], "left")
    count = np.searchsorted(extent, profile.accesses["extent"], "right") - first
    a, length = profile.accesses, profile.n_layers
    row, which = np.repeat(np.arange(len(a)), count), ranges(first, count)
    block, share, layer = block[which], share[which], a["layer"][row]
    start, stop = plan.block_columns.start[block], plan.block_columns.stop[block]
    alive = np.flatnonzero(((layer >= start) & (layer < stop)) | (layer + length < stop))
    order = alive[np.argsort((block * length + layer)[alive], kind="stable")]
    row, block, share, layer = row[order], block[order], share[order], layer[order]
    head = np.flatnonzero(np.diff(block * length + layer, prepend=-1))
    out = np.zeros(len(head), USE_DTYPE)
    if not len(head):
        return out
    out["block"], out["layer"] = block[head], layer[head]
    for name in ("reads", "writes"):
        out[name] = np.add.reduceat(np.maximum(a[name], 0)[row], head)
    for name in ("read_bytes", "written_bytes", "touched_bytes"):
        out[name] = np.add.reduceat(np.rint(a[name][row] * share).astype(np.int64), head)
    return out
