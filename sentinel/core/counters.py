"""Counters: what a run counted, in all of its steps, those included whose rows are no longer kept."""

from __future__ import annotations

from collections import Counter as Tally
from dataclasses import dataclass, field, fields

_TROUBLES = (
    "failed",
    "partial",
    "held_back",
    "kernel_placed_pages",
    "swept",
    "overflows",
    "overflow_bytes",
    "slow_overflow_bytes",
    "born_slow",
    "sent_further",
)
"""Counters of what went wrong, besides `stayed`."""


@dataclass(slots=True)
class Counters:
    """Totals of a run; 0 is none. A simulated run counts the three cases only, of its last step.

    `stayed`: name of an errno -> pages that did not move because of it; on an emulated tier, transfers.
    """

    # Steps, and what the tables of layers and steps add up to.
    steps: int = 0
    steps_out_of_step: int = 0
    """Steps that did not tick as planned."""
    steps_before: int = 0
    """Steps that another plan served before this one took its place."""
    stall_ns: int = 0
    slow_ns: int = 0
    injected_ns: int = 0
    served_fast_bytes: int = 0
    touched_bytes: int = 0
    fast_peak_bytes: int = 0

    # Migrations, by what became of them (OUTCOMES).
    migrations: int = 0
    migrated_bytes: int = 0
    copied_bytes: int = 0
    """On an emulated tier: what its transfers copied out of memory; pages that nobody has touched are not."""
    uncopied_bytes: int = 0
    """What they could not read."""
    copy_cpu_ns: int = 0
    """Processor time of the movers for it."""
    migrated_bytes_by_other_plans: int = 0
    """Moved by other plans of the same session: the witness sees the pages of all."""
    done: int = 0
    late: int = 0
    failed: int = 0
    skipped: int = 0
    partial: int = 0
    already_there: int = 0
    held_back: int = 0
    """Migrations not tried because the last ones of that block failed."""
    sent_back: int = 0
    """Blocks sent to where the plan has them as a step begins."""
    stayed: dict[str, int] = field(default_factory=dict)

    # Layers before which promotions were due, by the paper's cases: all in time; late for room; late for time.
    case1: int = 0
    case2: int = 0
    case3: int = 0
    trials: int = 0
    """Decisions of test and trial on late promotions."""

    # Room, and pages that the kernel had put elsewhere.
    born_slow: int = 0
    overflows: int = 0
    """Births in fast memory for which there was no room; `overflow_bytes`: by how much, at most."""
    overflow_bytes: int = 0
    slow_overflow_bytes: int = 0
    """Taken beyond the room of slower tiers."""
    sent_further: int = 0
    """Migrations and births that went to the last tier since theirs had no room."""
    swept: int = 0
    """Looks for pages of a block that are elsewhere."""
    kernel_placed_pages: int = 0
    discarded_bytes: int = 0
    discarded_bytes_per_step: int = 0
    kept_bytes: int = 0

    events_dropped: int = 0
    """Sentences beyond those that a run keeps."""

    @property
    def cases(self) -> dict[str, int]:
        """Number of the paper's case -> count."""
        return {"1": self.case1, "2": self.case2, "3": self.case3}

    def add_outcome(self, outcome: str) -> None:
        """One more migration of that outcome, a word of OUTCOMES."""
        name = "already_there" if outcome == "already there" else outcome
        setattr(self, name, getattr(self, name) + 1)

    def counted(self) -> dict[str, int]:
        """Name -> count of all that is not 0, by name; pages that stayed as `stayed_EBUSY` and so on."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "stayed"}
        found |= {f"stayed_{name}": pages for name, pages in self.stayed.items()}
        return {name: found[name] for name in sorted(found) if found[name]}

    def of_another_plan(self) -> Counters:
        """What remains of these counts once another plan has taken over: what went wrong, steps and bytes."""
        return Counters(
            steps_before=self.steps_before + self.steps,
            migrated_bytes_by_other_plans=self.migrated_bytes_by_other_plans + self.migrated_bytes,
            **{name: getattr(self, name) for name in _TROUBLES},
            stayed=dict(self.stayed),
        )

    def plus(self, other: Counters) -> Counters:
        """The counts of both."""
        found = Counters(stayed=dict(Tally(self.stayed) + Tally(other.stayed)))
        for name in (f.name for f in fields(self) if f.name != "stayed"):
            setattr(found, name, int(getattr(self, name) + getattr(other, name)))
        return found
