"""Plans where slow memory cannot be used in place: beside a window of layers that knows nothing, and two bounds.

`python -m benchmarks.fetched > docs/fetched.json && python -m benchmarks.fetched_page` (minutes; torch). Everything is
simulated, on described machines: a GPU before its host, and DRAM before an NVMe disk. In `between`, CXL memory, which
is used in place, lies between DRAM and the disk.

`window`: what each of the next layers uses is fetched so many layers ahead and leaves right after its use; the best
such number for each step. `just_in_time`: fetched one layer ahead, but what is needed again soonest stays, as far as
there is room: about what plans were until 30 November 2026. `bound_ns` is of plans of this kind: moves between whole
layers, room held on both sides of a move. `window_bound_ns` is of any execution.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import _bench, traces
from sentinel.core.errors import Infeasible
from sentinel.core.machine import Link, Machine, TierSpec
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES
from sentinel.planner import bound, footprint_bytes, plan, profile_window_bound_ns
from sentinel.planner.assemble import assemble
from sentinel.planner.decision import choose, decide, episodes_of
from sentinel.planner.fetching import ahead, just_in_time
from sentinel.planner.pool import reserve
from sentinel.planner.workload import Workload, make_workload
from sentinel.simulator import simulate_lawful

LEAST = 0.95
"""Goal: at least so much of the bound's speed."""

MODELS = ("gpt2-xl", "llama", "bert-large", "t5", "moe", "resnet32")
SHARES = (0.2, 0.4, 0.6)
BETWEEN = ((0.2, 0.2), (0.2, 0.4))
"""Shares of the footprint in DRAM and in CXL memory."""

_GB = 10**9
_DRAM = TierSpec("DRAM", "described", 512 << 30, 88, 113 * _GB, 93 * _GB)
_DISK = TierSpec("NVMe", "described", 1 << 42, 80_000, 7 * _GB, 5 * _GB, addressable=False)
_CXL = TierSpec("CXL", "described", 1 << 40, 250, round(17.8 * _GB), round(13.6 * _GB))
_TO_DISK = (7 * _GB, 5 * _GB)
_CPU_FLOPS, _GPU_FLOPS = 1.5e12, 100e12


def gpu() -> Machine:
    """A GPU of 100 TFLOP/s, and the host behind a link of 55 GB/s each way."""
    memory = TierSpec("HBM", "described", 80 << 30, 500, 3350 * _GB, 3350 * _GB)
    host = TierSpec("host", "described", 1 << 40, 1000, 200 * _GB, 200 * _GB, addressable=False)
    links = (Link(1, 0, 55 * _GB), Link(0, 1, 55 * _GB))
    return Machine("gpu", (memory, host), links, flops_per_s=_GPU_FLOPS)


def disk() -> Machine:
    """A server of 1.5 TFLOP/s with a disk that reads 7 and writes 5 GB/s, one at a time."""
    read, write = _TO_DISK
    links = (Link(1, 0, read), Link(0, 1, write))
    return Machine("disk", (_DRAM, _DISK), links, flops_per_s=_CPU_FLOPS, full_duplex=False)


def three_tiers(cxl_bytes: int) -> Machine:
    """The same server with so much CXL memory, to which pages move at 5 GB/s, and a disk that reads while it writes: a
    machine has one word for all of its links."""
    read, write = _TO_DISK
    links = (Link(1, 0, 5 * _GB), Link(0, 1, 5 * _GB), Link(2, 0, read), Link(0, 2, write))
    return Machine("three", (_DRAM, replace(_CXL, capacity_bytes=cxl_bytes), _DISK), links, flops_per_s=_CPU_FLOPS)


MACHINES = {"gpu": gpu, "disk": disk}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one JSON object: a row a model, machine and amount."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    given = parser.parse_args(arguments)
    rows, between = [], []
    for model in given.models.split(","):
        profile = traces.load(model)
        for name, machine in MACHINES.items():
            rows += [{"model": model, "machine": name, **row(profile, machine(), share)} for share in SHARES]
        between += [{"model": model, **row_between(profile, *shares)} for shares in BETWEEN]
    settings = {"least": LEAST, "kind": "simulated"}
    _bench.emit((__doc__ or "").splitlines()[0], {"settings": settings}, {"rows": rows, "between": between})


def row(profile: Profile, machine: Machine, share: float) -> dict[str, Any]:
    """ns of a step with `share` of the footprint in fast memory; `needed_bytes` instead where it does not fit."""
    footprint = footprint_bytes(profile)
    fast = machine.with_fast_capacity(_pages(share * footprint))
    told: dict[str, Any] = {"share": share, "footprint_bytes": footprint}
    told["all_fast_ns"] = plan(profile, machine.with_fast_capacity(footprint)).predicted_step_ns
    told["window_bound_ns"] = profile_window_bound_ns(profile, fast)
    try:
        made = plan(profile, fast)
    except Infeasible as error:
        return told | {"needed_bytes": error.needed_bytes}
    told["sentinel_ns"] = made.predicted_step_ns
    work = make_workload(profile, fast, footprint)
    simple = assemble(just_in_time(work), work.units, profile, fast, policy="test", footprint_bytes=footprint)
    told |= {"just_in_time_ns": simulate_lawful(simple, profile, fast).step_ns}
    told |= dict(zip(("window_ns", "window_layers"), _best_window(work, footprint), strict=True))
    return told | {"bound_ns": bound(profile, fast).step_ns}


def _best_window(work: Workload, footprint: int) -> tuple[int | None, int | None]:
    """(ns, layers) of the best window; None where not even one of a single layer fits."""
    best: tuple[int | None, int | None] = (None, None)
    for layers in range(1, work.n_layers):
        made = _window(work, layers, footprint)
        if made is None:
            break  # a wider one needs more room
        step_ns = simulate_lawful(made, work.profile, work.machine).step_ns or 0
        if best[0] is None or step_ns < best[0]:
            best = step_ns, layers
    return best


def _window(work: Workload, layers: int, footprint: int) -> Plan | None:
    """The plan that fetches so many layers ahead; None where it does not fit."""
    short = reserve(work, work.budget_bytes)
    everywhere = np.ones(len(work.use_unit), bool)
    episodes = episodes_of(work, ahead(work, everywhere, layers))
    if not choose(work, episodes, work.budget_bytes - short.held_bytes, np.arange(len(episodes))).all():
        return None
    decision = decide(work, episodes, np.ones(len(episodes), bool), short)
    return assemble(decision, work.units, work.profile, work.machine, policy="test", footprint_bytes=footprint)


def row_between(profile: Profile, dram: float, cxl: float) -> dict[str, Any]:
    """ns of a step with these shares of the footprint in DRAM and CXL memory, the rest on the disk, in one plan; and
    without the CXL memory. None where it does not fit."""
    footprint = footprint_bytes(profile)
    machine = three_tiers(_pages(cxl * footprint)).with_fast_capacity(_pages(dram * footprint))
    without = Machine(
        "two", (machine.tiers[0], _DISK), (Link(1, 0, _TO_DISK[0]), Link(0, 1, _TO_DISK[1])), flops_per_s=_CPU_FLOPS
    )
    return {
        "dram": dram,
        "cxl": cxl,
        "all_fast_ns": plan(profile, machine.with_fast_capacity(footprint)).predicted_step_ns,
        "three_ns": _step_ns(profile, machine),
        "without_ns": _step_ns(profile, without),
        "window_bound_ns": profile_window_bound_ns(profile, machine),
    }


def _step_ns(profile: Profile, machine: Machine) -> int | None:
    try:
        return plan(profile, machine).predicted_step_ns
    except Infeasible:
        return None


def _pages(nbytes: float) -> int:
    return int(nbytes) // PAGE_BYTES * PAGE_BYTES


if __name__ == "__main__":
    main()
