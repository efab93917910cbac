"""What accesses and transfers cost. One model, used by the planner, the simulator and the emulated tier (which
knows accesses by block only, and so charges a latency for each operand, not for each tensor in a layer).

A layer of a *recorded* profile took `layer_ns` with everything in the fast tier. What is served from a
slower tier adds the difference of the two tiers' transfer times (no overlap assumed: a conservative model
that suits code that waits for its data). On a machine that declares `flops_per_s`, the layer's time is
computed instead: the larger of its FLOPs over that speed and its memory traffic over the tiers'
bandwidths (roofline; tiers are read one after the other).

What moves takes time from compute where a link says so (`Link.lost_ns_per_kib`, `lost_ns_per_move`): each layer is
longer by what is lost to the bytes that move while it computes, and by what its ticks do for the moves that it submits.
What moves while a layer waits costs no more than the wait.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.machine import Link, Machine, TierSpec
from sentinel.core.profile import Profile


def transfer_ns(link: Link, nbytes: int) -> int:
    """Time to move `nbytes` over an idle `link`."""
    return link.latency_ns + -(-nbytes * 1_000_000_000 // link.bandwidth_bytes_per_s)


def lost_ns(link: Link, nbytes: int) -> float:
    """ns that compute loses while `nbytes` move over `link` beside it; what a move costs by itself is not in it."""
    return nbytes / 1024 * link.lost_ns_per_kib


def lost_ns_per_byte(machine: Machine) -> NDArray[np.float64]:
    """(2, tiers) ns that compute loses for each byte promoted from and demoted to each slower tier, as a linear program
    may count it whether compute runs or waits: moves that together would take more than all of it are scaled down to
    that."""
    out = np.zeros((2, len(machine.tiers)))
    most = np.zeros(2)  # share of compute that the moves of each direction take at most
    for tier in machine.slower:
        for way, ends in enumerate(((tier, machine.hub), (machine.hub, tier))):
            link = machine.link(*ends)
            out[way, tier] = lost_ns(link, 1)
            most[way] = max(most[way], out[way, tier] * link.bandwidth_bytes_per_s / 1e9)
    together = float(most.sum() if machine.full_duplex else most.max())
    return out / max(together, 1.0)


def traffic_ns(tier: TierSpec, read_bytes: NDArray[Any], written_bytes: NDArray[Any]) -> NDArray[np.float64]:
    """Time to read and write so many bytes from `tier`, one latency a nonempty access included."""
    some = (read_bytes > 0).astype(np.float64) + (written_bytes > 0)
    return (
        some * tier.latency_ns
        + read_bytes * (1e9 / tier.read_bytes_per_s)
        + written_bytes * (1e9 / tier.write_bytes_per_s)
    )


def slow_extra_ns(profile: Profile, machine: Machine, tier: int) -> NDArray[np.float64]:
    """(m,) per row of `profile.accesses`: extra time if it is served by tier `tier` and not the fast one."""
    a = profile.accesses
    slow = traffic_ns(machine.tiers[tier], a["read_bytes"], a["written_bytes"])
    return np.maximum(slow - traffic_ns(machine.fast, a["read_bytes"], a["written_bytes"]), 0.0)


def base_ns(profile: Profile, machine: Machine) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(compute, fast traffic) per layer, each (L,) in ns.

    Recorded: compute is the layer's time and the traffic part is 0 (it is inside). Roofline: both from counts.
    """
    length = profile.n_layers
    if machine.flops_per_s is None:
        return profile.layer_ns.astype(np.float64), np.zeros(length)
    a = profile.accesses
    traffic = np.zeros(length)
    np.add.at(traffic, a["layer"], traffic_ns(machine.fast, a["read_bytes"], a["written_bytes"]))
    return np.maximum(profile.flops, 0) * (1e9 / machine.flops_per_s), traffic


def layer_time_ns(
    compute_ns: NDArray[np.float64], traffic: NDArray[np.float64], extra: NDArray[np.float64], machine: Machine
) -> NDArray[np.float64]:
    """(L,) time of each layer with `extra` ns of slow accesses, before any stall."""
    if machine.flops_per_s is None:
        return compute_ns + extra
    return np.maximum(compute_ns, traffic + extra)
