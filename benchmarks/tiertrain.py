"""Our plans beside TierTrain's policy on the networks and at the batch size of its published code, all simulated.

`python -m benchmarks.tiertrain > docs/tiertrain.json && python -m benchmarks.tiertrain_page` (minutes; torch).
TierTrain (Swaminathan et al., ISMM 2025) measured on a CXL expander and on Optane; `PUBLISHED` has its ranges. The
networks are traced under fake tensors, the machines are described ones of `sentinel/machines`, and `tiertrain` is our
reading of the policy (`sentinel/planner/moving_rivals.py`).

What is held in fast memory is compared with stock training: the bytes alive in each layer at most, weighted by the time
of the layers with everything in fast memory; most of them is the peak. What moves take from compute is in the step: the
machines have a price of moves, by which plans are made too.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import _bench, traces
from sentinel import machines
from sentinel.core.cost import base_ns
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES
from sentinel.planner import bound, exchange_bound, footprint_bytes, plan
from sentinel.simulator import simulate_lawful

PUBLISHED = {"mean": (0.59, 0.83), "peak": (0.25, 0.74), "slower": (0.01, 0.16)}
"""Fast memory saved in the mean and at the peak, and time added: ranges over networks and memories."""

GOAL = {"mean": 0.85, "peak": 0.80, "slower": 0.05}
MACHINES = ("cxl-m5-priced", "cxl-m2-priced")

_HALVINGS = 4
_SHARES = (0.05, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one JSON object: a row a network and machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(traces.TIERTRAIN))
    parser.add_argument("--machines", default=",".join(MACHINES))
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each bound")
    given = parser.parse_args(arguments)
    rows = []
    for network in given.networks.split(","):
        profile = traces.load(network)
        for name in given.machines.split(","):
            rows.append({"network": network, "machine": name, **row(profile, machines.load(name), given.time_limit)})
    settings = {"published": PUBLISHED, "goal": GOAL, "kind": "simulated"}
    _bench.emit((__doc__ or "").splitlines()[0], {"settings": settings}, rows)


def row(profile: Profile, machine: Machine, time_limit_s: float) -> dict[str, Any]:
    """Stock training, TierTrain's policy, ours in the memory that it holds in the mean, and ours at the goal."""
    stock = _Stock(profile, machine)
    theirs = stock.told(plan(profile, machine.with_fast_capacity(footprint_bytes(profile)), "tiertrain"))
    found = {
        "tensors": len(profile.names),
        "layers": profile.n_layers,
        "stock": {"peak_bytes": stock.peak_bytes, "mean_bytes": stock.mean_bytes, "step_ns": stock.step_ns},
        "tiertrain": theirs,
        "ours_in_its_mean": stock.ours(theirs["mean_bytes"]),
        "ours_within_goal_time": stock.least_within(GOAL["slower"]),
    }
    at_goal = stock.at_goal()
    fast = machine.with_fast_capacity(at_goal["budget_bytes"])
    least, exchange = (each(profile, fast, time_limit_s=time_limit_s) for each in (bound, exchange_bound))
    at_goal["bound_slower"] = round(least.step_ns / stock.step_ns - 1, 4)
    at_goal["exchange_bound_slower"] = None if exchange.loose else round(exchange.step_ns / stock.step_ns - 1, 4)
    return {**found, "ours_at_goal_memory": at_goal}


class _Stock:
    """A step with everything in fast memory, and what others hold and take beside it."""

    def __init__(self, profile: Profile, machine: Machine) -> None:
        self.profile, self.machine = profile, machine
        compute, traffic = base_ns(profile, machine)
        layer_ns = np.maximum(compute, traffic) if machine.flops_per_s is not None else compute + traffic
        alive = alive_bytes(profile)
        self.step_ns = float(layer_ns.sum())
        self.peak_bytes, self.mean_bytes = int(alive.max()), int(np.average(alive, weights=layer_ns))

    def told(self, made: Plan) -> dict[str, Any]:
        """What a plan holds and takes; shares are of stock training's."""
        run = simulate_lawful(made, self.profile, self.machine)
        step_ns, mean = float(run.step_ns or 0), run.fast_mean_bytes or 0
        return {
            "budget_bytes": made.capacity_bytes[0],
            "step_ns": step_ns,
            "peak_bytes": made.fast_peak_bytes,
            "mean_bytes": mean,
            "moved_bytes": made.migrated_bytes_per_step,
            "mean_saved": round(1 - mean / self.mean_bytes, 4),
            "peak_saved": round(1 - made.fast_peak_bytes / self.peak_bytes, 4),
            "slower": round(step_ns / self.step_ns - 1, 4),
        }

    def ours(self, nbytes: float) -> dict[str, Any]:
        """Our plan within so many bytes."""
        budget = max(int(nbytes) // PAGE_BYTES * PAGE_BYTES, PAGE_BYTES)
        return self.told(plan(self.profile, self.machine.with_fast_capacity(budget)))

    def least_within(self, slower: float) -> dict[str, Any] | None:
        """Ours with the least fast memory tried that costs no more time; None if none does."""
        for share in _SHARES:
            found = self.ours(share * self.peak_bytes)
            if found["slower"] <= slower:
                return found
        return None

    def at_goal(self) -> dict[str, Any]:
        """Ours with the most fast memory that is little enough for the goal, at the peak and in the mean."""
        high = (1 - GOAL["peak"]) * self.peak_bytes
        found = self.ours(high)
        if found["mean_saved"] >= GOAL["mean"]:
            return found
        low = min((1 - GOAL["mean"]) * self.mean_bytes, high)  # the mean is never above what may be held
        found = self.ours(low)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            tried = self.ours(middle)
            if tried["mean_saved"] >= GOAL["mean"]:
                low, found = middle, tried
            else:
                high = middle
        return found


def alive_bytes(profile: Profile) -> np.ndarray:
    """(L,) most bytes of tensors that are alive at one time in each layer; those that last in whole pages."""
    t, n = profile.tensors, profile.n_events
    lasting = int((-(-t["nbytes"][t["persistent"]] // PAGE_BYTES) * PAGE_BYTES).sum())
    moving = t[~t["persistent"]]
    turn = np.zeros(2 * n + 1, np.int64)
    np.add.at(turn, moving["born_event"], moving["nbytes"])
    np.add.at(turn, moving["died_event"], -moving["nbytes"])
    alive = turn.cumsum()[: 2 * n].reshape(2, n).sum(axis=0)
    out = np.zeros(profile.n_layers, np.int64)
    np.maximum.at(out, moving["start"], alive[moving["born_event"]])
    return lasting + _carried(out, profile)


def _carried(peaks: np.ndarray, profile: Profile) -> np.ndarray:
    """(L,) the same where a layer without a birth has what is alive as it begins."""
    t = profile.tensors[~profile.tensors["persistent"]]
    length = profile.n_layers
    change = np.zeros(2 * length + 1, np.int64)
    np.add.at(change, t["start"] + 1, t["nbytes"])  # those that were born before
    np.add.at(change, t["stop"], -t["nbytes"])
    through = change.cumsum()[: 2 * length].reshape(2, length).sum(axis=0)
    return np.maximum(peaks, through)


if __name__ == "__main__":
    main()
