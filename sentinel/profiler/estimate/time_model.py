"""How long the layers of an estimated step would take: a model, by floating-point operations and bytes."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import torch

from sentinel.core.cost import traffic_ns
from sentinel.core.machine import TierSpec
from sentinel.core.profile import Profile

_SIDE, _TRIES = 1024, 5


def timed(profile: Profile, fast: TierSpec, flops_per_s: float) -> Profile:
    """`profile` with the time of each layer with everything in `fast`: the larger of computing and of moving bytes."""
    a = profile.accesses
    traffic = np.bincount(a["layer"], traffic_ns(fast, a["read_bytes"], a["written_bytes"]), minlength=profile.n_layers)
    layer_ns = np.maximum(np.maximum(profile.flops, 0) * (1e9 / flops_per_s), traffic).astype(np.int64)
    return replace(profile, layer_ns=layer_ns, step_ns_plain=int(layer_ns.sum()), step_ns_is_measured=False)


def measured_flops_per_s() -> float:
    """What this process computes a second, by products of float32 matrices: the best of a few, in 0.1 s."""
    a, b = torch.ones(_SIDE, _SIDE), torch.ones(_SIDE, _SIDE)
    best = float("inf")
    for _ in range(_TRIES):
        began = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - began)
    return 2.0 * _SIDE**3 / best
