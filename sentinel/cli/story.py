"""Story: what happens to a run, in a handful of lines on stderr."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sentinel.core.units import counted, format_bytes, format_ns
from sentinel.runtime import Observer
from sentinel.system.progress import say

if TYPE_CHECKING:
    from sentinel.core.machine import Machine
    from sentinel.core.plan import Plan
    from sentinel.reports import Report

CAVEATS = 2
"""Of the serious ones of the report, so many are told."""


class Story(Observer):
    """Tells which step is watched, what was planned, and from when on that is applied. `steps`: how often an
    optimizer has stepped. `dry`: nothing will be applied."""

    def __init__(self, *, dry: bool = False) -> None:
        self.steps = 0
        self._dry = dry
        self._planned = self._applied = False

    def session_started(self, models: Sequence[object], optimizers: Sequence[object]) -> None:
        """See Observer."""
        del models, optimizers
        from sentinel import session

        last = session.current()
        saved = last is not None and last.request.plan is not None
        say(f"the step after {self._so_far()} is {'compared with the saved plan' if saved else 'profiled'}")

    def plan_made(self, plan: Plan) -> None:
        """See Observer."""
        if plan.provisional:
            say("the profiled step is not enough for a plan (the report says why): the next whole step is profiled too")
        self._planned = not plan.provisional

    def plan_applied(self, plan: Plan, machine: Machine, ranges: object) -> None:
        """See Observer."""
        del machine, ranges
        if not self._applied:
            self._applied = True
            say(planned(plan, dry=self._dry))
            if not self._dry:
                say(f"the plan is applied from now on, after {self._so_far()}")

    def session_ended(self) -> None:
        """See Observer: before a plan was applied, there is nothing to apply it to."""
        from sentinel import session
        from sentinel.session.state import Over

        last = session.current()
        if self._planned and not self._applied and last is not None and last.plan is not None:
            self._applied = True
            say(planned(last.plan, dry=self._dry))
            if not self._dry and last.state is not Over.DECLARED:
                say("nothing is applied: the session ended before the plan could be")
            elif not self._dry:
                say("nothing is applied: this host has no slower memory; `--slow emulated:PRESET` runs with its delays")

    def _so_far(self) -> str:
        return counted(self.steps, "optimizer step")


def planned(plan: Plan, *, dry: bool = False) -> str:
    """The budget, what is served from it and the predicted speed, as far as they are known. `dry`: how much is enough
    is told next."""
    from sentinel import session
    from sentinel.reports.grades import SMALL_SHARE
    from sentinel.reports.headline import headline_of
    from sentinel.reports.setup import Setup
    from sentinel.session.planning import Dataflow

    budget, footprint = plan.capacity_bytes[0], plan.footprint_bytes
    if budget >= footprint:
        said = f"planned: all {format_bytes(footprint)} fit in fast memory, so nothing moves"
        return said if dry else f"{said}; give less, such as `--fast 20%`"
    told = [f"planned: {format_bytes(budget)} of fast memory, {budget / footprint:.0%} of the footprint"]
    last = session.current()
    flow = last.flow if last is not None and last.plan is plan else Dataflow()
    h = headline_of(flow.profile, plan, flow.machine, None, flow.simulated, Setup())
    outside, served = h["outside_bytes"] or 0, h["fast_served_fraction"]
    step, plain = h["step_ns_predicted"], h["step_ns_plain"]
    if outside >= SMALL_SHARE * footprint:
        told.append(f"{format_bytes(outside)} more are outside of the plan")
    if served is not None:
        told.append(f"{served:.1%} of the bytes touched come from it")
    if step:
        times = f", {step / plain:.2f} times a stock step" if plain else ""
        told.append(f"predicted {format_ns(step)} a step{times}")
    return "; ".join(told)


def tell_end(report: Report, *, curve: bool = False) -> None:
    """What was done, the answer in short, and the first caveats; that the host was busy beside them. `curve`: how
    much is enough is told next, so no other run is named for it."""
    from sentinel.reports.caveats import busy
    from sentinel.reports.summary import ENOUGH

    heading = report.heading
    if heading.badge != "executed":
        say(heading.done)
    for what, sentence in heading.summary:
        say(f"{what:<8}{sentence.removesuffix(f'; {ENOUGH}') if curve else sentence}")
    for caveat in worst(report)[: CAVEATS + len(busy(report.headline))]:
        say(f"{'but':<8}{caveat}", wrong=True)


def worst(report: Report) -> list[str]:
    """The report's serious caveats, in the order of its page, without what was done, which is told before."""
    return [caveat for caveat in dict.fromkeys(report.grades.serious) if caveat != report.heading.done]
