"""Where bytes can live: one file per kind of tier, the described ones by name, and the machine a word stands for."""

from __future__ import annotations

from sentinel.core.errors import CapabilityError
from sentinel.core.machine import Machine, TierKind, TierSpec
from sentinel.core.plan import Plan
from sentinel.core.rules import require
from sentinel.tiers.choice import machine_for
from sentinel.tiers.emulated import EmulatedTier
from sentinel.tiers.node import NodeTier
from sentinel.tiers.presets import PRESETS, Preset
from sentinel.tiers.rate import limited, parse_rate
from sentinel.tiers.tier import MOST_TIERS, HeldBlock, Job, Tier

__all__ = [
    "PRESETS",
    "EmulatedTier",
    "HeldBlock",
    "Job",
    "NodeTier",
    "Preset",
    "Tier",
    "limited",
    "machine_for",
    "moves_pages",
    "on_paper",
    "open_tiers",
    "parse_rate",
    "require_fit",
]


KINDS: dict[TierKind, type[NodeTier] | type[EmulatedTier]] = {"node": NodeTier, "emulated": EmulatedTier}
"""What carries plans out on a slower tier, by its kind. On a tier of another kind plans are simulated only."""


def on_paper(machine: Machine) -> list[TierSpec]:
    """The slower tiers to which no plan can be applied."""
    return [machine.tiers[index] for index in machine.slower if machine.tiers[index].kind not in KINDS]


def moves_pages(machine: Machine) -> bool:
    """Whether pages really lie in all slower tiers, and so move; see `Tier.holds_pages`."""
    kinds = (KINDS.get(machine.tiers[index].kind) for index in machine.slower)
    return all(kind is not None and kind.holds_pages for kind in kinds)


def open_tiers(machine: Machine, bytes_per_s: int = 0) -> list[Tier | None]:
    """The tiers of `machine`; None for the fast one, which needs nothing.

    `bytes_per_s`: no faster than this does a mover move pages between nodes, each way; 0: no limit.
    Raises CapabilityError for a tier to which nothing can be applied.
    """
    for spec in on_paper(machine):
        raise CapabilityError(
            f"applying a plan to tier {spec.name}",
            f"it is {spec.kind} only: nothing can be moved there",
            'use slow="emulated:PRESET" to run with injected delays, or slow="numa:N" on a host with a second node',
        )
    return [
        None if index == machine.hub else KINDS[spec.kind](machine, index, bytes_per_s)
        for index, spec in enumerate(machine.tiers)
    ]


def require_fit(plan: Plan, machine: Machine) -> None:
    """Raises UsageError if `plan` cannot be applied to the tiers of `machine`."""
    tiers = len(machine.tiers)
    between = next((move.block for move in plan.migrations if machine.hub not in (move.source, move.target)), None)
    require(
        (
            len(plan.tier_names) != tiers,
            f"the plan has {len(plan.tier_names)} tiers, machine {machine.name} has {tiers}",
            "plan for this machine",
        ),
        (
            tiers > MOST_TIERS,
            f"machine {machine.name} has {tiers} tiers, and plans are applied to {MOST_TIERS} at most",
            "leave out those that are used least",
        ),
        (
            between is not None,
            f"block {between} moves between two slow tiers",
            "plan moves to or from the fast tier only",
        ),
    )
