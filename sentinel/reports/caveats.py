"""What a reader must know before believing a number: the sentences on top of every report."""

from __future__ import annotations

from typing import Any

import numpy as np

from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.run import OUTCOMES, TRIAL, Run
from sentinel.core.trace import Quality
from sentinel.core.units import counted, format_bytes, format_ns
from sentinel.reports.setup import Setup

MAX_EVENTS = 8
"""Of a run's own sentences; the rest are counted."""

_DONE = {
    "executed": "Executed: the plan was applied to this host's memory.",
    "emulated": "Emulated: the plan was executed, but the slow tier is {slow}: ordinary memory with injected delays.",
    "simulated": "Simulated: all times of applied steps were computed for {slow}; nothing was applied.",
    "declared": "Declared: this host has no slower memory. Times were computed for {slow}; nothing was applied.",
}


def done_sentence(headline: dict[str, Any]) -> str:
    """One sentence that says exactly what was done."""
    kind, slow = headline["kind"], headline["slow"] or "an unnamed slow tier"
    if kind is None:
        return "Profiled and planned only: nothing was applied or simulated."
    return _DONE[kind].format(slow=slow)


def caveats_of(
    headline: dict[str, Any],
    profile: Profile | None,
    plan: Plan | None,
    machine: Machine | None,
    run: Run | None,
    setup: Setup,
) -> list[str]:
    """Sentences, most important first; the first says what was done where that was not plain execution."""
    found = [] if headline["kind"] == "executed" else [done_sentence(headline)]
    found += setup.notes
    if plan is not None:
        found += _of_plan(plan)
    if run is not None:
        found += _of_run(run)
    found += _of_prediction(headline)
    if profile is not None:
        found += _of_profile(profile)
    found += _of_memory(headline, setup)
    if machine is not None:
        found += _of_machine(machine)
    if profile is not None:
        found += profile.notes
        found += _of_tracker(profile.quality)
    return list(dict.fromkeys(_sentence(text) for text in found))


def _sentence(text: str) -> str:
    """`text` as a sentence: notes of profiles and plans are written without capital and stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _of_plan(plan: Plan) -> list[str]:
    found = []
    if plan.provisional:
        found.append(
            "The plan is provisional: optimizer state was born in the profiled step; the next step is profiled."
        )
    short = plan.fast_needed_bytes - plan.capacity_bytes[0]
    if short > 0 and plan.capacity_bytes[0] < plan.footprint_bytes:
        found.append(
            f"The budget of {format_bytes(plan.capacity_bytes[0])} is {format_bytes(short)} below the paper's bound of"
            f" {format_bytes(plan.fast_needed_bytes)}: some short-lived or large tensors are used from slow memory."
        )
    return found


def _of_run(run: Run) -> list[str]:
    found = []
    outcomes = np.bincount(run.migrations["outcome"], minlength=len(OUTCOMES))
    for word, became in (("failed", "failed"), ("partial", "moved a part only")):
        count = int(outcomes[OUTCOMES.index(word)])
        if count:
            found.append(f"{count} of {len(run.migrations)} migrations {became}.")
    over = run.layers["fast_bytes"].max(initial=0) - run.fast_capacity_bytes
    if over > 0:
        found.append(f"The fast tier held up to {format_bytes(int(over))} more than its budget.")
    placed = run.counters.kernel_placed_pages
    if placed:
        found.append(
            f"The kernel placed {counted(placed, 'page')} against the plan; the events below say what was done."
        )
    if cut := kept_steps(run):
        found.append(cut)
    astray = int((~run.steps["in_step"]).sum())
    if astray:
        found.append(f"{astray} of {len(run.steps)} recorded steps did not tick as planned; medians leave them out.")
    if run.kind == "executed" and len(run.steps) and astray == len(run.steps):
        found.append("No step ran as planned: figures per step are unknown.")
    told = [f"Step {step}: {sentence}" for step, sentence in run.events if not sentence.startswith(TRIAL)]
    tried = len(run.events) - len(told)
    if tried:
        found.append(
            f"Promotions came late at {counted(tried, 'place')}; test and trial decided whether to wait for them or to"
            " use those blocks in slow memory."
        )
    found += told[:MAX_EVENTS]
    more = len(told) - MAX_EVENTS + run.counters.events_dropped
    if more > 0:
        found.append(f"{more} more such events are in the JSON report.")
    return found


def kept_steps(run: Run) -> str:
    """Which steps the tables of a long run still hold; "" if all."""
    total, kept = run.counters.steps, len(run.steps)
    if kept >= total:
        return ""
    steps = run.steps["step"].tolist()
    first = next((i for i, step in enumerate(steps) if step != i), kept)
    held = f"the first {first} and the last {kept - first} of {total:,} steps"
    return f"Tables and medians cover {held}; counters cover all."


def _of_profile(profile: Profile) -> list[str]:
    found = []
    if profile.provisional:
        found.append("The profile is provisional: the profiled step was not like those that follow.")
    if profile.step_ns_plain is not None and not profile.step_ns_is_measured:
        found.append("The plain step time is an estimate: no step ran on stock PyTorch.")
    return found


def _of_tracker(quality: Quality) -> list[str]:
    found = []
    missing = {"reads", "writes"} - set(quality.sees)
    if "touches" in quality.sees:
        found.append(f"Tracker {quality.tracker} sees that memory was touched, not whether it was read or written.")
    elif missing:
        found.append(f"Tracker {quality.tracker} does not see {' or '.join(sorted(missing))}.")
    if quality.period > 1:
        found.append(f"Tracker {quality.tracker} counted one event of {quality.period}.")
    for count, word in ((quality.lost, "lost"), (quality.late, "attributed late")):
        if count:
            found.append(f"{count} events of tracker {quality.tracker} were {word}.")
    if quality.blind_to:
        found.append(f"Tracker {quality.tracker} is blind to {', '.join(quality.blind_to)}.")
    found += quality.notes
    return found


def _of_machine(machine: Machine) -> list[str]:
    declared = [tier.name for tier in machine.tiers if not tier.measured]
    names = [tier.name for tier in machine.tiers]
    declared += [f"{names[link.source]}→{names[link.target]}" for link in machine.links if not link.measured]
    if not declared:
        return []
    return [f"Machine {machine.name}: declared, not measured: {', '.join(declared)}."]


def _of_memory(headline: dict[str, Any], setup: Setup) -> list[str]:
    found = []
    unmanaged = headline["unmanaged_bytes"]
    if unmanaged:
        found.append(f"Up to {format_bytes(unmanaged)} fell back to malloc: the budget does not cover them.")
    if setup.in_place:
        nbytes = sum(nbytes for _, nbytes, _ in setup.in_place)
        found.append(
            f"{counted(len(setup.in_place), 'tensor')} ({format_bytes(nbytes)}) stayed in place; see the list."
        )
    return found


def far_off(headline: dict[str, Any]) -> bool:
    """Whether executed steps are far from the prediction, so that one of the two was not of this job's usual speed."""
    applied, predicted = headline["step_ns_applied"], headline["step_ns_predicted"]
    return bool(applied and predicted and abs(applied / predicted - 1) > 0.25)


def _of_prediction(headline: dict[str, Any]) -> list[str]:
    applied, predicted = headline["step_ns_applied"], headline["step_ns_predicted"]
    if far_off(headline):
        return [f"Predicted and executed step differ: {format_ns(predicted)} and {format_ns(applied)}."]
    return []
