"""What a reader must know before believing a number: the sentences on top of every report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.rules import holding
from sentinel.core.run import OUTCOMES, Run, TrialDecision
from sentinel.core.trace import Quality
from sentinel.core.units import counted, format_bytes, format_ns
from sentinel.reports.grades import SMALL_SHARE, Grades, sentence
from sentinel.reports.headline import number
from sentinel.reports.price_of_moves import unpriced
from sentinel.reports.setup import Setup

BUSY_SHARE = 0.1
"""Where others have more than this share of a host's processors, its times tell no speeds."""
MAX_EVENTS = 8
"""Of a run's own sentences; the rest are counted."""

_DONE = {
    "executed": "Executed: the plan was applied to this host's memory.",
    "emulated": (
        "Emulated: the plan was executed, but the slow tier is {slow}: ordinary memory; copies are real, delays of slow"
        " accesses are injected."
    ),
    "simulated": "Simulated: all times of applied steps were computed for {slow}; nothing was applied.",
    "passive": "Passive: executed under a budget without a plan; what exceeds it is in {slow}.",
    "declared": "Declared: this host has no slower memory. Times were computed for {slow}; nothing was applied.",
}
_NO_WHOLE_STEP = (
    "Simulated: all times of applied steps were computed for {slow}, since no step ran by an applied plan from its"
    " first layer to its last."
)


def done_sentence(headline: dict[str, Any], *, begun: bool) -> str:
    """One sentence that says exactly what was done. `begun`: a plan was applied."""
    kind, slow = headline["kind"], headline["slow"] or "an unnamed slow tier"
    if kind is None:
        return "Profiled and planned only: nothing was applied or simulated."
    return (_NO_WHOLE_STEP if begun and kind == "simulated" else _DONE[kind]).format(slow=slow)


def caveats_of(
    headline: dict[str, Any],
    profile: Profile | None,
    plan: Plan | None,
    machine: Machine | None,
    run: Run | None,
    setup: Setup,
    *,
    begun: bool,
) -> Grades:
    """Sentences by grade, most important first: that the host was busy; then what was done where that was not plain
    execution. `begun`: a plan was applied."""
    found = Grades(busy(headline), [], [])
    found.serious.extend([] if headline["kind"] == "executed" else [done_sentence(headline, begun=begun)])
    found.add(setup.notes)
    found.notes.extend(_of_waits(headline))
    if plan is not None:
        _of_plan(plan, found)
    if run is not None:
        for grade, told in zip(found, of_run(run), strict=True):
            grade.extend(sentence(each) for each in told)
    found.serious.extend(_of_prediction(headline))
    if profile is not None:
        _of_profile(profile, headline["step_ns_plain"], found)
    _of_memory(headline, setup, found)
    if machine is not None:
        found.method.extend(_of_machine(machine, compared=headline["step_ns_plain"] is not None))
    if profile is not None:
        found.method.extend(sentence(note) for note in profile.notes)
        found.method.extend(sentence(text) for text in _of_tracker(profile.quality))
    return found


PHASES = {"profiled": "profiled step", "applied": "applied steps"}


def busy(headline: Mapping[str, Any]) -> list[str]:
    """One sentence if the host was so busy that times of this session say little, and ratios of them nothing."""
    others: list[str] = []
    waits: list[str] = []
    for phase, name in PHASES.items():
        share = number(headline.get(f"busy_{phase}_share"))
        if share is not None and share > BUSY_SHARE:
            by_others = number(headline.get(f"others_{phase}_share")) is not None
            (others if by_others else waits).append(f"{share:.0%} of the {name}")
    told = holding(
        (others, f"for {' and '.join(others)} others had the processors"),
        (
            waits,
            (
                f"for {' and '.join(waits)} the training thread waited for a processor, or a hypervisor had given it to"
                " others (what others had is not known there)"
            ),
        ),
    )
    if not told:
        return []
    then = "The times of this run say little, so no ratio of times is shown; run it again on an idle host"
    threads = ", with no more threads than processors, or than a limit of the container grants" if waits else ""
    return [f"The host was busy: {'; '.join(told)}. {then}{threads}."]


def _of_waits(headline: dict[str, Any]) -> list[str]:
    """That the training thread waited for a processor, where others did not have it."""
    told = []
    for phase, name in PHASES.items():
        waited, others = (number(headline.get(f"{what}_{phase}_share")) for what in ("waited", "others"))
        if waited is not None and others is not None and waited > BUSY_SHARE >= others:
            told.append(f"{waited:.0%} of the time in the {name}, while others had {others:.0%} of the processors")
    if not told:
        return []
    why = (
        "Threads of the job itself had it, such as Sentinel's movers, or a limit of the container was used up: that is"
    )
    return [f"The training thread waited for a processor: {'; '.join(told)}. {why} part of what a step takes here."]


def _of_plan(plan: Plan, found: Grades) -> None:
    budget, needed = plan.capacity_bytes[0], plan.fast_needed_bytes
    if budget < min(needed, plan.footprint_bytes):
        found.serious.append(
            f"The budget of {format_bytes(budget)} is {format_bytes(needed - budget)} less than the"
            f" {format_bytes(needed)} that one layer needs at once: some short-lived or large tensors are used from"
            " slow memory."
        )
    if plan.provisional:
        found.notes.append(
            "The plan is provisional: optimizer state was born in the profiled step; the next step is profiled."
        )


def of_run(run: Run) -> Grades:
    """What a run itself tells. Its counters have the steps of a long run whose rows are gone, too."""
    outcomes, counters = np.bincount(run.migrations["outcome"], minlength=len(OUTCOMES)), run.counters
    failed = max(int(outcomes[OUTCOMES.index("failed")]), counters.failed)
    partial = max(int(outcomes[OUTCOMES.index("partial")]), counters.partial)
    moves = max(len(run.migrations), counters.migrations)
    # What failed under an earlier plan is counted, but not how much that plan moved.
    of = "" if counters.steps_before else f" of {moves:,}"
    over = max(int(run.layers["fast_bytes"].max(initial=0)), counters.fast_peak_bytes) - run.fast_capacity_bytes
    astray, steps = int((~run.steps["in_step"]).sum()), len(run.steps)
    tried = sum(not trial.again for _, trial in run.trials)
    found = Grades([], [], [])
    placed, slow_over = counters.kernel_placed_pages, counters.slow_overflow_bytes
    found.serious.extend(
        holding(
            (failed, f"{failed:,}{of} migrations failed."),
            (partial, f"{partial:,}{of} migrations moved only a part of their bytes."),
            (over > 0, f"The fast tier held up to {format_bytes(over)} more than its budget."),
            (
                slow_over,
                f"{format_bytes(slow_over)} in all were put into slower tiers beyond their capacity.",
            ),
            (
                placed,
                f"The kernel placed {counted(placed, 'page')} against the plan; the events below say what was done.",
            ),
            (
                run.kind == "executed" and 0 < astray == steps,
                "No step ran as planned: figures per step are unknown.",
            ),
        )
    )
    told = [f"Step {step}: {text}" for step, text in events_of(run, first_trials=False)]
    more, cut = len(told) - MAX_EVENTS + run.counters.events_dropped, kept_steps(run)
    found.notes.extend(
        holding(
            (astray, f"{astray} of {steps} recorded steps did not tick as planned; medians leave them out."),
            *((True, event) for event in told[:MAX_EVENTS]),
            (more > 0, f"{more} more such events are in the JSON report."),
        )
    )
    uncopied = run.counters.uncopied_bytes
    found.method.extend(
        holding(
            (cut, cut),
            (
                run.counters.copied_bytes,
                (
                    f"Movers copied {format_bytes(run.counters.copied_bytes)}, which took"
                    f" {format_ns(run.counters.copy_cpu_ns)} of processor time."
                ),
            ),
            (
                uncopied,
                f"{format_bytes(uncopied)} that moved were not copied: this host did not let them be read.",
            ),
            (
                tried,
                (
                    f"Promotions came late at {counted(tried, 'place')}; test and trial decided whether to wait for"
                    " them or to use those blocks in slow memory."
                ),
            ),
        )
    )
    return found


def events_of(run: Run, *, first_trials: bool) -> list[tuple[int, str]]:
    """(step, sentence) of a run's events and of what test and trial decided, by step. `first_trials`: where it had not
    decided before, too."""
    trials = [(step, _tried(trial)) for step, trial in run.trials if first_trials or trial.again]
    return sorted([*run.events, *trials], key=lambda event: event[0])


def _tried(trial: TrialDecision) -> str:
    way = "longer" if trial.slower_ns >= 0 else "shorter"
    return (
        f"test and trial{', tried again' if trial.again else ''}: migrations due before layer {trial.layer} come late:"
        f" waiting takes {format_ns(trial.wait_ns)}; without it the {format_ns(trial.window_ns)} to the next interval"
        f" are {format_ns(abs(trial.slower_ns))} {way}; intervals of one kind differ by {format_ns(trial.noise_ns)} by"
        f" themselves; from now on it {'waits for them' if trial.waits else 'leaves the rest in slow memory'}"
        f" ({trial.name})"
    )


def kept_steps(run: Run) -> str:
    """Which steps the tables of a long run still hold; "" if all."""
    total, kept = run.counters.steps, len(run.steps)
    if kept >= total:
        return ""
    steps = run.steps["step"].tolist()
    first = next((i for i, step in enumerate(steps) if step != i), kept)
    held = f"the first {first} and the last {kept - first} of {total:,} steps"
    return f"Tables and medians cover {held}; counters cover all."


def _of_profile(profile: Profile, plain: int | None, found: Grades) -> None:
    if profile.provisional:
        found.notes.append("The profile is provisional: the profiled step was not like those that follow.")
    if plain and not profile.step_ns_is_measured:
        found.method.append("The plain step time is an estimate: no step ran on stock PyTorch.")


def _of_tracker(quality: Quality) -> list[str]:
    of, sees = f"Tracker {quality.tracker}", quality.sees
    missing = sorted({"reads", "writes"} - set(sees)) if "touches" not in sees else []
    return holding(
        ("touches" in sees, f"{of} sees that memory was touched, not whether it was read or written."),
        (missing, f"{of} does not see {' or '.join(missing)}."),
        (quality.period > 1, f"{of} counted one event of {quality.period}."),
        (quality.lost, f"{quality.lost} events of tracker {quality.tracker} were lost."),
        (quality.late, f"{quality.late} events of tracker {quality.tracker} were attributed late."),
        (quality.blind_to, f"{of} is blind to {', '.join(quality.blind_to)}."),
        *((True, note) for note in quality.notes),
    )


def _of_machine(machine: Machine, *, compared: bool) -> list[str]:
    """`compared`: its step stands beside a stock step."""
    declared = [tier.name for tier in machine.tiers if not tier.measured]
    names = [tier.name for tier in machine.tiers]
    declared += [f"{names[link.source]}→{names[link.target]}" for link in machine.links if not link.measured]
    told, flops = unpriced(machine), machine.flops_per_s
    computes = f"Machine {machine.name} computes {(flops or 0) / 1e12:g} TFLOP/s: no step of it is compared with stock."
    return holding(
        (declared, f"Machine {machine.name}: declared, not measured: {', '.join(declared)}."),
        (flops is not None and not compared, computes),
        (told, told),
    )


def _of_memory(headline: dict[str, Any], setup: Setup, found: Grades) -> None:
    """Bytes outside of the plan: of method where they are next to nothing."""
    least = SMALL_SHARE * (headline["peak_bytes"] or 0)
    unmanaged, stayed = headline["unmanaged_bytes"] or 0, len(setup.in_place)
    nbytes = sum(nbytes for _, nbytes, _ in setup.in_place)
    for amount, told in (
        (unmanaged, f"Up to {format_bytes(unmanaged)} fell back to malloc: the budget does not cover them."),
        (nbytes, f"{counted(stayed, 'tensor')} ({format_bytes(nbytes)}) stayed in place; see the list."),
    ):
        if amount:
            (found.serious if amount >= least else found.method).append(told)


def far_off(headline: dict[str, Any]) -> bool:
    """Whether executed steps are far from the prediction, so that one of the two was not of this job's usual speed."""
    applied, predicted = headline["step_ns_applied"], headline["step_ns_predicted"]
    return bool(applied and predicted and abs(applied / predicted - 1) > 0.25)


def _of_prediction(headline: dict[str, Any]) -> list[str]:
    applied, predicted = headline["step_ns_applied"], headline["step_ns_predicted"]
    if far_off(headline) and not busy(headline):
        return [f"Predicted and executed step differ: {format_ns(predicted)} and {format_ns(applied)}."]
    return []
