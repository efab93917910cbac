"""What is used of each block in each layer: a profile's accesses, by the blocks of a plan. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.extents import extent_shares
from sentinel.core.plan import USE_DTYPE, Plan
from sentinel.core.profile import Profile
from sentinel.core.ragged import positions


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
    row = np.repeat(np.arange(len(profile.accesses)), count)
    which = positions(count) + np.repeat(first, count)
    block, share = block[which], share[which]
    a = profile.accesses[row]
    start = np.array([block.start for block in plan.blocks])[block]
    stop = np.array([block.stop for block in plan.blocks])[block]
    alive = ((a["layer"] >= start) & (a["layer"] < stop)) | (a["layer"] + profile.n_layers < stop)
    a, block, share = a[alive], block[alive], share[alive]
    group, place = np.unique(block * profile.n_layers + a["layer"], return_inverse=True)
    out = np.zeros(len(group), USE_DTYPE)
    out["block"], out["layer"] = group // profile.n_layers, group % profile.n_layers
    for name in ("reads", "writes"):
        np.add.at(out[name], place, np.maximum(a[name], 0))
    for name in ("read_bytes", "written_bytes", "touched_bytes"):
        np.add.at(out[name], place, np.rint(a[name] * share).astype(np.int64))
    return out
