"""What benchmarks/cap.py has seen, in figures: ratios of steps, what a step moved, and the bound beside it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np

from benchmarks import _bench
from sentinel.core.disk_rates import DiskRates
from sentinel.core.granule_uses import GranuleUses
from sentinel.core.units import HUGE_PAGE_BYTES
from sentinel.planner.window_bound import WindowBound, window_bound

STOCK, TUNED, FILE, OVERLAP, PASSIVE, SWAP = ROWS = ("stock", "tuned", "file", "overlap", "passive", "swap")
OURS = (FILE, OVERLAP, PASSIVE)
_PASSED_BY = {PASSIVE: FILE}
"""Nothing is recorded there: the step is that of another row."""

Told = Mapping[str, Any]


def bounds(uses: GranuleUses, frames: int, disk: Told, step_ns: float) -> WindowBound:
    """A time below which no way of executing the recorded step can stay within so many frames, on this disk, if its
    operators compute as fast as makes them last `step_ns` all together.

    `disk`: see Traffic.rates. Its directions share it: a second of it is enough for the bytes that it reads in one
    second, or writes, or parts of both, `together` times as much of both as if it did one at a time. Each direction by
    itself is no faster than alone. Each of that is a bound, and the highest is taken."""
    slower = step_ns / max(int(uses.compute_ns.sum()), 1)
    scaled = replace(uses, compute_ns=(uses.compute_ns * slower).astype(np.int64))
    read, write, together = (disk[name] for name in ("read_bytes_per_s", "write_bytes_per_s", "together"))
    rates = [DiskRates(read * together, write * together)]
    if together > 1:
        rates += [DiskRates(read, inf), DiskRates(inf, write)]
    return max((window_bound(scaled, frames, each) for each in rates), key=lambda bound: bound.step_ns)


def summed_up(told: Mapping[str, Told], records: Mapping[str, GranuleUses], disk: Told, turn: int) -> dict[str, Any]:
    """Of each row its median step, ratios round by round over stock and over stock with a malloc that keeps memory,
    what a step moved, and the bound for compute as in both of these.

    `told`: of each row "ns" of its counted steps, "losses" of all, "storage" at the end and "born" as counting began,
    "major_faults" of counted steps, "pool_bytes" of frames then. `records`: of rows that were recorded. `turn`: steps
    in a round."""
    rounds = [dict(zip(told, times, strict=True)) for times in zip(*(told[name]["ns"] for name in told), strict=True)]
    step_ns = {name: statistics.median(each["ns"]) for name, each in told.items()}
    found: dict[str, Any] = {
        "same_losses": len({tuple(each["losses"]) for each in told.values()}) == 1,
        "step_s": {name: ns / 1e9 for name, ns in step_ns.items()},
        "over": {
            rival: {name: _bench.paired(rounds, name, rival) for name in told if name != rival}
            for rival in (STOCK, TUNED)
            if rival in told
        },
        "a_step": {name: _moved(each, turn) for name, each in told.items() if each.get("storage")},
        "bound": {},
    }
    for name in OURS:
        uses = records.get(_PASSED_BY.get(name, name))
        if name in told and uses is not None:
            frames = max(told[name]["pool_bytes"]) // HUGE_PAGE_BYTES
            found["bound"][name] = {
                rival: {"frames": frames} | _told(bounds(uses, frames, disk, step_ns[rival]), step_ns[name])
                for rival in (STOCK, TUNED)
                if rival in told
            }
    return found


def added_over(steps: Mapping[str, float], name: str, rival: str = SWAP, base: str = STOCK) -> float | None:
    """The time that `name` adds to a step of `base`, over what `rival` adds; None where one was not measured, or where
    the rival adds none."""
    if not {name, rival, base} <= steps.keys() or steps[rival] <= steps[base]:
        return None
    return (steps[name] - steps[base]) / (steps[rival] - steps[base])


def _told(bound: WindowBound, step_ns: float) -> dict[str, float]:
    return {
        "bound_s": bound.step_ns / 1e9,
        "read_bytes": bound.read_bytes,
        "written_bytes": bound.written_bytes,
        "step_over_bound": step_ns / bound.step_ns,
    }


def _moved(each: Told, turn: int) -> dict[str, float]:
    """In a step, in the mean of all that were counted, those left out of times too."""
    steps = len(each["ns"]) * turn
    more = {key: (each["storage"][key] - each["born"][key]) / steps for key in _COUNTS}
    left = more["written_bytes"] + more["dropped_granules"] * HUGE_PAGE_BYTES
    came_back = more["read_bytes"] + more["unread_bytes"]
    return {
        "read_bytes": more["read_bytes"],
        "written_bytes": more["written_bytes"],
        "read_in_vain_bytes": more["vain_bytes"],
        "written_in_vain_bytes": min(max(left - came_back, 0.0), more["written_bytes"]),
        "waited_s": more["waited_ns"] / 1e9,
        "major_faults": sum(each["major_faults"]),
    }


_COUNTS = ("read_bytes", "written_bytes", "vain_bytes", "unread_bytes", "dropped_granules", "waited_ns")


def record_of(arrays: Mapping[str, Any]) -> GranuleUses:
    """What `record` of _stepper.py has written."""
    return GranuleUses(**{name: arrays[name] for name in ("compute_ns", "first_use", "granule", "kind")})


def lost_rows(results: Sequence[Told]) -> list[str]:
    """What did not train to the end, in sentences."""
    return [f"{found['share']:.0%}, {name}: {why}" for found in results for name, why in found["lost"].items()]
