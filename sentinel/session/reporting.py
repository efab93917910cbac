"""Reporting: what the report of a session is made of, while it goes on and when it is over."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from sentinel import files, tiers
from sentinel.core.rules import holding
from sentinel.core.run import Run
from sentinel.migration.memory import MemoryCounters
from sentinel.profiler import annotate
from sentinel.reports import Report, Setup, build_report
from sentinel.reports.fast_memory_points import KnownPoints
from sentinel.reports.setup import MORE_PLANS_S
from sentinel.session.context import SessionContext
from sentinel.session.owner_thread import OwnerThread
from sentinel.session.request import Request
from sentinel.session.shapes import rows_of


class Reporting:
    """What the memory and the annotations had counted when the session ended, and the report of all."""

    def __init__(self, request: Request, context: SessionContext, owner: OwnerThread) -> None:
        self._request, self._context, self._owner = request, context, owner
        self._known_points = KnownPoints()
        self._at_end: tuple[MemoryCounters, Sequence[str], Sequence[tuple[str, int, str]]] | None = None

    def count(self) -> None:
        """The session ends: what is told from now on was counted until here."""
        self._context.host.end("applied")
        outside = self._context.job.outside(self._context.memory)
        self._at_end = self._context.memory.counters(), annotate.notes(), outside

    def notes(self) -> tuple[str, ...]:
        """What a report must say of how it went, a sentence each."""
        context = self._context
        capped = context.flow.budget.capped if context.flow.budget is not None else ""
        return (
            *context.notes,
            *context.applying.notes(),
            *context.planning.notes(),
            *holding(
                (capped, f"{capped}: that is the budget"),
                (context.flow.loose, f"the bound is loose: {context.flow.loose}"),
            ),
            *context.witnessing.notes(),
            *self._owner.notes(),
            *context.recording.notes,
            *(annotate.notes() if self._at_end is None else self._at_end[1]),
        )

    def executed(self) -> Run | None:
        """What applied steps did so far. None: no plan was applied."""
        run = self._context.applying.run()
        return run and self._context.witnessing.with_witness_counts(run)

    def report(self, *, bounded: bool, over: bool) -> Report:
        """See Session.report. `over`: the session is, so the report may take time for more plans."""
        context = self._context
        flow = context.flow
        if bounded:
            context.flow = flow = context.planning.bounded(flow)
        executed = self.executed()
        return build_report(
            profile=flow.profile,
            plan=flow.plan,
            machine=flow.machine,
            executed=executed and files.with_origin(executed, plan=flow.plan or ""),
            simulated=flow.simulated and files.with_origin(flow.simulated, plan=flow.plan or ""),
            setup=replace(
                self._setup(), more_plans_s=MORE_PLANS_S if bounded and over else 0.0, known_points=self._known_points
            ),
        )

    def _setup(self) -> Setup:
        context, request, flow = self._context, self._request, self._context.flow
        counters = context.memory.counters() if self._at_end is None else self._at_end[0]
        outside = context.job.outside(context.memory) if self._at_end is None else self._at_end[2]
        return Setup(
            tracker=flow.profile.quality.tracker if flow.profile is not None else request.tracker,
            slow=flow.machine.slow if request.slow == "auto" and flow.machine is not None else request.slow,
            fast=None if request.fast is None else str(request.fast),
            kind="declared" if flow.machine is not None and tiers.on_paper(context.machine) else None,
            setup_ns=context.setup_ns,
            plan_ns=context.planning.spent_ns,
            in_place=tuple(outside),
            unmanaged={why: nbytes for why, (_, nbytes) in counters.fallback.items()},
            notes=self.notes(),
            script=next(iter(sys.argv), "") or None,  # a script may have taken all of them
            buckets=rows_of(context.applying.buckets, context.applying.strangers),
            profiled_load=context.host.load("profiled"),
            applied_load=context.host.load("applied"),
        )
