"""What is used of each block in each layer: a profile's accesses, by the blocks of a plan. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.parts import split
from sentinel.core.plan import USE_DTYPE, Plan
from sentinel.core.profile import Profile


def block_uses(plan: Plan, profile: Profile) -> NDArray[Any]:
    """The rows of `profile.accesses` summed by (block, layer), dtype USE_DTYPE.

    A tensor that spans several blocks (page ranges, a pool cut by layers) spreads its accesses over those
    alive in the layer: by the pages touched in each where the profile has ranges of it, else by bytes.
    """
    parts = split(profile)
    plan, profile = parts.unfold(plan), parts.profile
    home = {slot.tensor: slot for slot in plan.slots}
    owner: list[tuple[int, int, float]] = []  # (tensor, block, share)
    for index, block in enumerate(plan.blocks):
        for tensor in block.tensors:
            slot = home[tensor]
            inside = min(block.offset + block.nbytes, slot.offset + slot.nbytes) - max(block.offset, slot.offset)
            if inside > 0:
                owner.append((tensor, index, inside / slot.nbytes))
    if not owner or not len(profile.accesses):
        return np.zeros(0, USE_DTYPE)
    pairs = np.array(sorted(owner), np.float64)
    tensors = pairs[:, 0].astype(np.int64)
    first = np.searchsorted(tensors, profile.accesses["tensor"], "left")
    count = np.searchsorted(tensors, profile.accesses["tensor"], "right") - first
    row = np.repeat(np.arange(len(profile.accesses)), count)
    which = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    block_of, share = pairs[which, 1].astype(np.int64), pairs[which, 2]
    a = profile.accesses[row]
    start = np.array([block.start for block in plan.blocks])[block_of]
    stop = np.array([block.stop for block in plan.blocks])[block_of]
    alive = ((a["layer"] >= start) & (a["layer"] < stop)) | (a["layer"] + profile.n_layers < stop)
    a, block_of, share = a[alive], block_of[alive], share[alive]
    group, place = np.unique(block_of * profile.n_layers + a["layer"], return_inverse=True)
    out = np.zeros(len(group), USE_DTYPE)
    out["block"], out["layer"] = group // profile.n_layers, group % profile.n_layers
    for name in ("reads", "writes"):
        np.add.at(out[name], place, np.maximum(a[name], 0))
    for name in ("read_bytes", "written_bytes", "touched_bytes"):
        np.add.at(out[name], place, np.rint(a[name] * share).astype(np.int64))
    return out
