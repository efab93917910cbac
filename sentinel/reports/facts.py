"""Facts: the nouns of one session that its report is drawn from, and the figures and caveats that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.run import Run
from sentinel.core.trace import LayerId
from sentinel.files import digest
from sentinel.reports.alike import Alike, alike
from sentinel.reports.caveats import caveats_of
from sentinel.reports.grades import Grades
from sentinel.reports.headline import headline_of, shown
from sentinel.reports.setup import Setup
from sentinel.reports.tensor_costs import Moves, SlowAccesses, moves_of, slow_accesses

if TYPE_CHECKING:
    from sentinel.reports.fast_memory_points import FastMemoryPoints


@dataclass(frozen=True, eq=False)
class Facts:
    """`profile`, `plan`, `machine`, `executed`, `simulated`: None where missing. `setup`: what no noun holds."""

    profile: Profile | None
    plan: Plan | None
    machine: Machine | None
    executed: Run | None
    simulated: Run | None
    setup: Setup = field(default_factory=Setup)

    @property
    def run(self) -> Run | None:
        """The run that the report is about: the executed one if it has a step, else the simulated one."""
        return shown(self.executed, self.simulated)

    @property
    def layers(self) -> tuple[LayerId, ...]:
        """The layers of a step; empty if neither profile nor plan is there."""
        return self.profile.layers if self.profile else self.plan.layers if self.plan else ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors; empty without a profile."""
        return self.profile.names if self.profile else ()

    @cached_property
    def alike(self) -> Alike:
        """The tensors whose names differ in numbers only."""
        return alike(self.names)

    @cached_property
    def slow_accesses(self) -> SlowAccesses | None:
        """What each tensor loses in slower memory; None without profile and plan."""
        if self.profile is None or self.plan is None:
            return None
        return slow_accesses(self.profile, self.plan, self.machine)

    @cached_property
    def moves(self) -> Moves | None:
        """What moves of each tensor; None without profile and plan."""
        if self.profile is None or self.plan is None:
            return None
        return moves_of(self.run, self.plan, len(self.names))

    @cached_property
    def fast_memory_points(self) -> FastMemoryPoints | None:
        """What more fast memory would bring: planned when first asked for, if the setup gives time for it."""
        profile, plan, machine = self.profile, self.plan, self.machine
        step_ns = self.headline["step_ns_predicted"]
        limit_s, expected_s = self.setup.more_plans_s, (self.setup.plan_ns or 0) / 1e9
        if profile is None or plan is None or machine is None or not step_ns or not limit_s:
            return None
        from sentinel.reports.fast_memory_points import fast_memory_points  # and with it the planner

        known = self.setup.known_points
        planned = fast_memory_points if known is None else known.points
        return planned(profile, plan, machine, step_ns, limit_s, expected_s)

    @cached_property
    def headline(self) -> dict[str, Any]:
        """The figures to compare, by the names of docs/measurement.md. Unknown is None."""
        return headline_of(self.profile, self.plan, self.machine, self.executed, self.simulated, self.setup)

    @cached_property
    def grades(self) -> Grades:
        """What to know before reading the numbers, by how much it matters."""
        begun = self.executed is not None
        found = caveats_of(self.headline, self.profile, self.plan, self.machine, self.run, self.setup, begun=begun)
        strangers = [(what, source) for what, source, same in self.provenance if same is False]
        found.serious.extend(
            f"The {what} was made from another {source} than is shown here." for what, source in strangers
        )
        return found

    @property
    def caveats(self) -> list[str]:
        """The same in one list: every form of the report has all of them."""
        return self.grades.all()

    @cached_property
    def provenance(self) -> list[tuple[str, str, bool | None]]:
        """(what, made from what, proved?): True if the origin names this very input, None if it names none."""
        made: list[tuple[str, Plan | Run | None, str, Profile | Machine | Plan | None]] = [
            ("plan", self.plan, "profile", self.profile),
            ("plan", self.plan, "machine", self.machine),
            ("executed run", self.executed, "plan", self.plan),
            ("simulated run", self.simulated, "plan", self.plan),
        ]
        found = []
        for what, noun, source, parent in made:
            if noun is not None and parent is not None:
                named = noun.origin.get(source)
                known = {digest(parent), parent.origin.get(source) if isinstance(parent, Profile) else None}
                found.append((what, source, named in known if named else None))
        return found
