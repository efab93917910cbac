"""The shapes of the paper's figures, simulated: `python benchmarks/paper_shapes.py --json`.

Speeds against fast memory, speed-ups over slow-only, the sweep of interval lengths, the ablation ladder, and a step
that fits. Where ours differ from the paper's, one input is changed to theirs, the slow-down of slow-only, to see
whether that is why. `--markdown FILE` writes the page in docs; the paper is Ren et al., HPCA 2021.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import traces
from benchmarks.ladder import ladder
from benchmarks.paper_shapes_page import page
from sentinel import machines
from sentinel.core.cost import base_ns, layer_time_ns, slow_extra_ns
from sentinel.core.machine import Machine
from sentinel.core.profile import Profile
from sentinel.core.units import parse_budget
from sentinel.planner import bound, footprint_bytes, plan
from sentinel.planner.paper import Sentinel2021

FAST = ("10%", "20%", "40%", "60%")
SLOW_COMPUTE, LADDER_ON = "slow-optane-mlink", "optane-m5"
BATCHES = (32, 64, 128, 256, 512, 2048)
PAPER: dict[str, dict[str, Any]] = {
    "resnet32": {"fraction": (0.69, 0.89, 0.97, 1.0), "over_slow": 3.2},
    "bert-large": {"fraction": (0.65, 0.81, 0.98, 1.0), "over_slow": 6.2},
    "lstm": {"fraction": (0.88, 0.91, 1.0, 1.0), "over_slow": 2.5},
    "dcgan": {"fraction": (0.88, 0.99, 1.0, 1.0), "over_slow": 3.5},
    "mobilenet": {"fraction": (0.77, 0.92, 1.0, 1.0), "over_slow": 1.8},
}
"""Read off the paper's figures: of fast-only speed at `FAST`, and its speed-up over slow-only at 20 %."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all, print a progress line each, and end with one JSON object if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=lambda text: tuple(text.split(",")), default=tuple(PAPER))
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    parser.add_argument("--markdown", type=Path, help="write the page here, and the JSON beside it")
    given = parser.parse_args(arguments)
    found: dict[str, Any] = {"when": time.strftime("%Y-%m-%d", time.gmtime()), "kind": "simulated", "paper": PAPER}
    found["families"] = {name: dict(_family(name)) for name in given.traces}
    found["dcgan_batches"] = dcgan_batches(machines.load(SLOW_COMPUTE))
    if given.markdown:
        given.markdown.write_text(page(found, FAST))
        given.markdown.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    if given.json:
        print(json.dumps(found))


def _family(name: str) -> Iterator[tuple[str, Any]]:
    """(key, result) of one trace."""
    profile = traces.load(name)
    theirs = PAPER[name]["fraction"][1] / PAPER[name]["over_slow"]
    described = machines.load(SLOW_COMPUTE)
    times = _until_slow_only_is(theirs, profile, described)
    yield "paper_slow_only", theirs
    yield "inputs", _inputs(profile, described)
    yield "slow_only", {m: slow_only(profile, machines.load(m)) for m in (SLOW_COMPUTE, "optane-mlink")}
    yield "fraction", _fractions(profile, described)
    yield "slow_tier_times_slower", times
    yield "fraction_when_slower", _fractions(profile, slower(described, times))
    yield "room", room(profile, theirs, described)
    print(f"{name}: fractions done", file=sys.stderr, flush=True)
    machine = machines.load(LADDER_ON).with_fast_capacity(parse_budget("20%", footprint_bytes(profile)))
    yield "mil", _sweep(profile, machine)
    yield "ladder", {rung: _fast_ns(profile, machine) / ns for rung, ns in ladder(profile, machine).items()}
    enough = machine.with_fast_capacity(footprint_bytes(profile))
    yield "fits", _fast_ns(profile, machine) / (plan(profile, enough, "sentinel-2021").predicted_step_ns or 1)
    print(f"{name}: ladder and sweep done", file=sys.stderr, flush=True)


def slow_only(profile: Profile, machine: Machine) -> float:
    """Of fast-only speed, with everything in slow memory."""
    compute, traffic = base_ns(profile, machine)
    extra = np.bincount(profile.accesses["layer"], slow_extra_ns(profile, machine, 1), profile.n_layers)
    return float(_fast_ns(profile, machine) / layer_time_ns(compute, traffic, extra, machine).sum())


def slower(machine: Machine, times: float) -> Machine:
    """`machine` with a slow tier of so many times less bandwidth; its links are no faster than that."""
    tier = machine.tiers[1]
    read, write = (int(rate / times) for rate in (tier.read_bytes_per_s, tier.write_bytes_per_s))
    up, down = machine.link(1, 0), machine.link(0, 1)
    links = (
        replace(up, bandwidth_bytes_per_s=min(up.bandwidth_bytes_per_s, read)),
        replace(down, bandwidth_bytes_per_s=min(down.bandwidth_bytes_per_s, write)),
    )
    slow = replace(tier, read_bytes_per_s=read, write_bytes_per_s=write)
    return replace(machine, tiers=(machine.fast, slow), links=links)


def _until_slow_only_is(wanted: float, profile: Profile, machine: Machine) -> float:
    """How many times slower the slow tier must be; by bisection."""
    low, high = 1.0, 1e4
    for _ in range(50):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if slow_only(profile, slower(machine, middle)) > wanted else (low, middle)
    return high


def _inputs(profile: Profile, machine: Machine) -> dict[str, float]:
    """Seconds of a step: FLOPs alone, traffic alone with all in fast and with all in slow memory."""
    compute, traffic = base_ns(profile, machine)
    extra = slow_extra_ns(profile, machine, 1).sum()
    seconds = (compute.sum() / 1e9, traffic.sum() / 1e9, (traffic.sum() + extra) / 1e9)
    return dict(zip(("compute_s", "fast_traffic_s", "slow_traffic_s"), map(float, seconds), strict=True))


def room(profile: Profile, theirs: float, described: Machine) -> dict[str, Any]:
    """Why a network does well or not with 20 % of its footprint, where slow-only is as slow as `theirs`.

    `wide`: the share of its traffic in layers that touch more bytes than that; `widest`: the most that a layer touches,
    of the footprint; `persistent`: of the footprint. `bound` and policies: of fast-only speed.
    """
    t, a, footprint = profile.tensors, profile.accesses, footprint_bytes(profile)
    machine = slower(described, _until_slow_only_is(theirs, profile, described))
    machine = machine.with_fast_capacity(parse_budget("20%", footprint))
    pairs = np.unique(a["layer"].astype(np.int64) * len(t) + a["extent"])
    touched = np.bincount(pairs // len(t), t["nbytes"][pairs % len(t)], profile.n_layers)
    traffic = np.bincount(a["layer"], a["read_bytes"] + a["written_bytes"], profile.n_layers)
    whole, least = _fast_ns(profile, machine), bound(profile, machine, time_limit_s=30.0)
    made = {
        name: whole / (plan(profile, machine, name).predicted_step_ns or 1) for name in ("sentinel-2021", "sentinel")
    }
    return {
        "footprint_bytes": footprint,
        "persistent": float(t["nbytes"][t["persistent"]].sum() / footprint),
        "wide": float(traffic[touched > machine.fast.capacity_bytes].sum() / traffic.sum()),
        "widest": float(touched.max() / footprint),
        "bytes_per_kflop": float(traffic.sum() / profile.flops.clip(0).sum() * 1e3),
        "bound": whole / least.step_ns,
        "loose": least.loose,
        **made,
    }


def dcgan_batches(described: Machine) -> dict[int, dict[str, Any]]:
    """`room` of DCGAN by batch."""
    from benchmarks.traces.models import MODELS, dcgan_loss
    from benchmarks.traces.record import record

    theirs = PAPER["dcgan"]["fraction"][1] / PAPER["dcgan"]["over_slow"]
    jobs = {batch: replace(MODELS["dcgan"], loss=dcgan_loss(batch)) for batch in BATCHES}
    return {batch: room(record(job), theirs, described) for batch, job in jobs.items()}


def _fractions(profile: Profile, machine: Machine) -> dict[str, dict[str, float]]:
    """policy -> share -> of fast-only speed."""
    whole, footprint = _fast_ns(profile, machine), footprint_bytes(profile)
    found: dict[str, dict[str, float]] = {}
    for policy in ("sentinel-2021", "sentinel"):
        for fast in FAST:
            made = plan(profile, machine.with_fast_capacity(parse_budget(fast, footprint)), policy)
            found.setdefault(policy, {})[fast] = whole / (made.predicted_step_ns or 1)
    return found


def _sweep(profile: Profile, machine: Machine) -> dict[int, float]:
    """Interval length -> of fast-only speed."""
    whole = _fast_ns(profile, machine)
    times = {mil: Sentinel2021(mil).plan(profile, machine).predicted_step_ns or 1 for mil in _lengths(profile)}
    return {mil: whole / ns for mil, ns in times.items()}


def _lengths(profile: Profile) -> list[int]:
    return sorted({*range(1, 17), *range(18, 33, 2), profile.n_layers // 2, profile.n_layers})


def _fast_ns(profile: Profile, machine: Machine) -> float:
    compute, traffic = base_ns(profile, machine)
    return float(np.maximum(compute, traffic).sum())


if __name__ == "__main__":
    main()
