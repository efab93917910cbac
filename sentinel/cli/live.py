"""How a run goes: a line every few seconds, which no progress bar minds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sentinel.core.units import counted, format_bytes, format_ns
from sentinel.runtime import Observer
from sentinel.system.progress import say

if TYPE_CHECKING:
    from sentinel.core.machine import Machine
    from sentinel.core.run import Run

EVERY_S = 5.0
"""Seconds between two lines."""


class Live(Observer):
    """Says every EVERY_S how the steps go that a plan is applied in."""

    def __init__(self) -> None:
        self._due = 0.0

    def step_ended(self) -> None:
        """See Observer."""
        from sentinel import session

        last = session.current()
        if time.monotonic() < self._due or last is None or not last.applying or last.away:
            return
        run, machine = last.context.applying.run(), last.flow.machine
        if run is not None and machine is not None and len(run.steps):
            say(live_line(run, machine))
        self._due = time.monotonic() + EVERY_S


def live_line(run: Run, machine: Machine) -> str:
    """The steps that are in the run's tables (68 at most): median and spread; of the latest one what each tier held,
    what each link moved, and waits; of all steps how often promotions came in time."""
    times, last = sorted(run.steps["duration_ns"].tolist()), run.steps[-1]
    low, middle, high = (times[len(times) * tenths // 10] for tenths in (1, 5, 9))
    spread = f"({format_ns(low)} to {format_ns(high)})"
    fast = f"{format_bytes(int(last['fast_peak_bytes']))} of {format_bytes(run.fast_capacity_bytes)} fast"
    told = [
        f"live    {counted(run.counters.steps, 'applied step')}: {format_ns(middle)} {spread}",
        fast + _slower(run, int(last["step"])),
        _moved(run, machine),
        f"waits {format_ns(int(last['stall_ns']))}",
    ]
    if any(run.counters.cases.values()):
        in_time, for_room, for_time = run.counters.cases.values()
        told.append(f"promotions in time {in_time:,} ×, late for room {for_room:,} ×, late for time {for_time:,} ×")
    return "; ".join(told)


def _slower(run: Run, step: int) -> str:
    """The most that each slower tier held in that step."""
    here, found = run.layers["step"] == step, ""
    for tier, name in enumerate(run.tier_names[1:], 1):
        held = run.held_bytes(tier)
        if held is not None:
            found += f", {format_bytes(int(held[here].max(initial=0)))} in {name}"
    return found


def _moved(run: Run, machine: Machine) -> str:
    """What moved in the latest step, and how much of each link's time that takes."""
    from sentinel.reports.headline import moves_of_steps

    last, rows, found = run.steps[-1], moves_of_steps(run), []
    rows = rows[rows["step"] == last["step"]]
    for link in machine.links:
        mine = (rows["source"] == link.source) & (rows["target"] == link.target)
        if moved := int(rows["moved_bytes"][mine].sum()):
            use = moved / link.bandwidth_bytes_per_s / max(int(last["duration_ns"]) / 1e9, 1e-9)
            names = f"{machine.tiers[link.source].name} to {machine.tiers[link.target].name}"
            found.append(f"{format_bytes(moved)} {names} ({use:.0%} of the link)")
    return f"moved {', '.join(found) or 'nothing'}"
