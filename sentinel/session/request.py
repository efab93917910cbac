"""What a session was asked for: arguments, overrides from the command line, and the machine they mean."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path

from sentinel import files, tiers
from sentinel.core.errors import UsageError
from sentinel.core.machine import Machine, TierSpec
from sentinel.core.plan import Plan

FRACTIONAL = "%"


@dataclass(frozen=True)
class Request:
    """The arguments of `start_profile` that say where tensors may live, as given."""

    fast: str | int | None = None
    slow: str = "auto"
    tracker: str = "auto"
    policy: str = "sentinel"
    machine: str | os.PathLike[str] | Machine | None = None
    plan: str | os.PathLike[str] | Plan | None = None


@dataclass(frozen=True)
class Overrides:
    """What `sentinel run` says instead of the script; None leaves the script's word."""

    fast: str | int | None = None
    slow: str | None = None
    tracker: str | None = None
    policy: str | None = None
    machine: str | None = None
    plan: str | None = None


_overrides = Overrides()


def set_overrides(overrides: Overrides) -> None:
    """From now on `overrides` win over what `start_profile` is asked for."""
    global _overrides
    _overrides = overrides


def overridden(request: Request) -> Request:
    """`request` with the overrides applied."""
    said = {f.name: getattr(_overrides, f.name) for f in fields(_overrides)}
    return replace(request, **{name: value for name, value in said.items() if value is not None})


def load_plan(request: Request) -> Plan | None:
    """The plan asked for, read from its file if a path was given."""
    if request.plan is None or isinstance(request.plan, Plan):
        return request.plan
    return files.load_plan(request.plan)


def machine_of(request: Request) -> Machine:
    """The machine to plan for and to apply on; its fast capacity is the tier's own, not yet the budget.

    `slow` says where bytes go, `machine` says what that costs. A machine given with a slow tier that
    can be applied keeps its numbers and takes the kind and node of that tier.
    """
    applied = tiers.machine_for(request.slow)
    if request.machine is None:
        return applied
    described = request.machine if isinstance(request.machine, Machine) else _named(request.machine)
    if applied.tiers[1].kind == "described":
        return described
    if len(described.tiers) != len(applied.tiers):
        raise UsageError(
            f"machine {described.name} has {len(described.tiers)} tiers,"
            f" slow={request.slow!r} gives {len(applied.tiers)}",
            "give a machine with as many tiers",
        )
    merged = tuple(_where(costs, place) for costs, place in zip(described.tiers, applied.tiers, strict=True))
    # What is carried out here takes this host's layer times, not those of the described compute.
    return replace(described, tiers=merged, flops_per_s=None)


def _where(costs: TierSpec, place: TierSpec) -> TierSpec:
    capacity = place.capacity_bytes if place.kind == "node" else max(costs.capacity_bytes, place.capacity_bytes)
    return replace(
        costs, name=place.name, kind=place.kind, node=place.node, addressable=place.addressable, capacity_bytes=capacity
    )


def _named(machine: str | os.PathLike[str]) -> Machine:
    text = os.fspath(machine)
    if Path(text).suffix or os.sep in text:
        return files.load_machine(text)
    from sentinel import machines

    return machines.load(text)
