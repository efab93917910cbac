"""Facts: the nouns of one session that its report is drawn from, and the figures and caveats that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.run import Run
from sentinel.core.trace import LayerId
from sentinel.files import digest
from sentinel.reports.caveats import caveats_of
from sentinel.reports.headline import headline_of, shown
from sentinel.reports.setup import Setup


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
    def headline(self) -> dict[str, Any]:
        """The figures to compare, by the names of docs/measurement.md. Unknown is None."""
        return headline_of(self.profile, self.plan, self.machine, self.executed, self.simulated, self.setup)

    @cached_property
    def caveats(self) -> list[str]:
        """Sentences that stand on top of every form of the report."""
        found = caveats_of(self.headline, self.profile, self.plan, self.machine, self.run, self.setup)
        strangers = [(what, source) for what, source, same in self.provenance if same is False]
        return found + [f"The {what} was made from another {source} than is shown here." for what, source in strangers]

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
