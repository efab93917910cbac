"""The goals of training under a cap, and whether results of benchmarks/cap.py meet them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from benchmarks._cap_figures import FILE, OURS, OVERLAP, PASSIVE, STOCK, TUNED, added_over

READ, WRITE = 1.7e9, 3.2e9
"""Bytes a second that a disk sustains for which the first goals are."""
STEP_OVER_STOCK = {
    0.61: {FILE: 1.15, OVERLAP: 1.05},
    0.41: {FILE: 1.35, OVERLAP: 1.10},
    0.30: {FILE: 1.50, OVERLAP: 1.20},
}
OVER_BOUND, OF_SWAP, PASSIVE_OF_SWAP, AT = 1.12, 1 / 20, 1 / 4, 0.41
MODELS_OVER_BOUND, PEAK = 1.25, 0.35
LARGE, LARGE_BYTES = ("resnet50", "vgg16"), 4e9
"""Models whose peak is a goal, and what stock is to take of them at least."""
NAMES = {FILE: "file", OVERLAP: "updates in backward", PASSIVE: "passive"}

Told = Mapping[str, Any]


class Goal(NamedTuple):
    """`met`: None where it was not judged, and `found` says why."""

    goal: str
    found: str
    met: bool | None


def goals(told: Told) -> list[Goal]:
    """Of all caps of one run. `told`: what cap.py says, with `model`, `stock` and `results`."""
    return [*_of_the_run(told), *(goal for found in told["results"] for goal in _of_a_cap(told, found))]


def missed(judged: list[Goal]) -> list[str]:
    """In words."""
    return [f"{each.goal}: {each.found}" for each in judged if each.met is False]


def _of_the_run(told: Told) -> Iterator[Goal]:
    if told["model"] in LARGE:
        peak = told["stock"]["peak_bytes"]
        yield Goal(f"stock takes at least {LARGE_BYTES / 1e9:.0f} GB", f"{peak / 1e9:.2f} GB", peak >= LARGE_BYTES)


def _of_a_cap(told: Told, found: Told) -> Iterator[Goal]:
    cap = f"{found['share']:.0%}"
    for name, why in found["lost"].items():
        yield Goal(f"{cap}: {NAMES.get(name, name)} trains", why, False if name in OURS else None)
    if not found["step_s"]:
        return
    yield Goal(f"{cap}: the same losses", "yes" if found["same_losses"] else "no", found["same_losses"])
    for name in OURS:
        if name in found["memory"]:
            times = found["memory"][name]["limit_met"]
            goal = f"{cap}, {NAMES[name]}: the process reaches the limit of its cgroup 0 times"
            yield Goal(goal, f"{times:,}", times == 0)
    if told["model"] is None:
        yield from _of_steps(found, cap)
    else:
        yield from _of_a_model(told, found, cap)


def _of_steps(found: Told, cap: str) -> Iterator[Goal]:
    disk, steps = found["disk"], found["step_s"]
    fast = disk["read_bytes_per_s"] >= READ and disk["write_bytes_per_s"] >= WRITE
    for name, most in STEP_OVER_STOCK.get(found["share"], {}).items():
        goal = f"{cap}, {NAMES[name]}: a step takes at most {most:.2f} of stock's, on a disk of 1.7 and 3.2 GB/s"
        if name not in found["over"].get(STOCK, {}):
            yield Goal(goal, "not measured", None)
        else:
            ratio = found["over"][STOCK][name]["median"]
            rates = f"{disk['read_bytes_per_s'] / 1e9:.1f} and {disk['write_bytes_per_s'] / 1e9:.1f} GB/s"
            met = True if ratio <= most else False if fast else None
            yield Goal(goal, f"{ratio:.2f}{'' if fast else f', on a disk of {rates}'}", met)
    for name in (FILE, OVERLAP):
        yield _over_bound(found, name, OVER_BOUND, cap)
    for name in (FILE, OVERLAP):
        goal = f"{cap}, {NAMES[name]}: no page fault waits for the disk in steps that count"
        faults = found["a_step"].get(name, {}).get("major_faults")
        yield Goal(goal, "not measured" if faults is None else str(faults), None if faults is None else faults == 0)
    if found["share"] == AT:
        for name, most, words in ((FILE, OF_SWAP, "1/20"), (PASSIVE, PASSIVE_OF_SWAP, "1/4")):
            share = added_over(steps, name)
            goal = f"{cap}, {NAMES[name]}: the cap adds at most {words} of what the kernel's swap adds"
            why = found.get("no_swap", "not measured")
            yield Goal(goal, why if share is None else f"{share:.3f}", None if share is None else share <= most)


def _of_a_model(told: Told, found: Told, cap: str) -> Iterator[Goal]:
    yield _over_bound(found, FILE, MODELS_OVER_BOUND, cap)
    if told["model"] in LARGE:
        goal = f"{cap}: the process takes at most {PEAK:.0%} of stock's peak"
        share = found["memory"][FILE]["peak_bytes"] / told["stock"]["peak_bytes"] if FILE in found["memory"] else None
        yield Goal(goal, "not measured" if share is None else f"{share:.1%}", None if share is None else share <= PEAK)


def _over_bound(found: Told, name: str, most: float, cap: str) -> Goal:
    """By the lower bound of both, whose operators compute as fast as with a malloc that keeps its memory. What is below
    it is not judged: operators of that row computed faster (decision 184)."""
    goal = f"{cap}, {NAMES[name]}: a step takes at most {most:.2f} times the bound"
    of = found["bound"].get(name, {})
    base = TUNED if TUNED in of else STOCK
    if base not in of:
        return Goal(goal, "not measured", None)
    ratio = of[base]["step_over_bound"]
    if ratio < 1:
        return Goal(goal, f"{ratio:.2f}: its operators computed faster than those of {base}", None)
    return Goal(goal, f"{ratio:.2f} with compute as of {base}", ratio <= most)
