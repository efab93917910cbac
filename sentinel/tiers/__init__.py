"""Where bytes can live: one file per kind of tier, the described ones by name, and the machine a word stands for."""

from __future__ import annotations

from sentinel.core.errors import CapabilityError
from sentinel.core.machine import Machine
from sentinel.tiers.choice import machine_for
from sentinel.tiers.emulated import EmulatedTier
from sentinel.tiers.node import NodeTier
from sentinel.tiers.presets import PRESETS, Preset, preset
from sentinel.tiers.rate import limited, rate_limit
from sentinel.tiers.tier import HeldBlock, Job, Mover, Tier, Transfer

__all__ = [
    "PRESETS",
    "EmulatedTier",
    "HeldBlock",
    "Job",
    "Mover",
    "NodeTier",
    "Preset",
    "Tier",
    "Transfer",
    "limited",
    "machine_for",
    "open_tiers",
    "preset",
]


def open_tiers(machine: Machine, mover: Mover) -> list[Tier | None]:
    """The tiers of `machine`, to be used through `mover`; None for the fast one, which needs nothing.

    Raises CapabilityError for a tier to which nothing can be applied.
    """
    opened: list[Tier | None] = [None]
    for index, spec in enumerate(machine.tiers[1:], start=1):
        if spec.kind == "node":
            opened.append(NodeTier(machine, index, mover, bytes_per_s=rate_limit()))
        elif spec.kind == "emulated":
            opened.append(EmulatedTier(machine, index, mover))
        else:
            raise CapabilityError(
                f"applying a plan to tier {spec.name}",
                f"it is {spec.kind} only: nothing can be moved there",
                'use slow="emulated:PRESET" to run with injected delays, or slow="numa:N" on a host with a second node',
            )
    return opened
