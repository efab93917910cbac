"""The machine that a request means: where bytes go on this host, and what that costs."""

from __future__ import annotations

from dataclasses import replace

from sentinel import tiers
from sentinel.core.errors import CapabilityError, NativeError, UsageError
from sentinel.core.machine import Machine, TierSpec
from sentinel.session.request import Request, machine_named
from sentinel.system import affinity, probes
from sentinel.system.topology import Topology, topology


def machine_of(request: Request) -> Machine:
    """The machine to plan for and to apply on, its links within the rate limit."""
    return _allowed(tiers.limited(_machine_of(request), request.bytes_per_s))


def available_bytes(request: Request, machine: Machine) -> int:
    """What a job may have of the machine's fast tier beside what it holds there: what the node has free.

    All of it where the user gave a machine that is planned for on paper only: this host's memory says nothing of it.
    """
    on_paper = request.machine is not None and tiers.on_paper(machine)
    if on_paper or machine.fast.kind != "node":
        return machine.fast.capacity_bytes
    host = topology()
    node = host.node(host.fast)
    return machine.fast.capacity_bytes if node is None else node.free_bytes


def _allowed(machine: Machine) -> Machine:
    """`machine`, its fast tier without a node where memory policies are refused, as containers do.

    Raises CapabilityError if a slow tier needs them, or the system call that moves pages, and it is refused.
    """
    if machine.fast.node is None:
        return machine
    on_nodes = any(tier.kind == "node" for tier in machine.tiers[1:])
    try:
        probes.mbind()
        if on_nodes:
            probes.move_pages()
    except (NativeError, CapabilityError, probes.Missing) as error:
        if on_nodes:
            raise CapabilityError(
                f"placing memory on the nodes of {machine.name}",
                str(error),
                "allow mbind, get_mempolicy and move_pages (docker: --security-opt seccomp=unconfined, or a profile"
                ' with these), or use slow="emulated:cxl-asic-x8"',
            ) from error
        return replace(machine, tiers=(replace(machine.fast, node=None), *machine.tiers[1:]))
    return machine


def _machine_of(request: Request) -> Machine:
    """Without the rate limit.

    `slow` says where bytes go, `machine` says what that costs. A machine given with a slow tier that can be applied
    keeps its numbers and takes the kind and node of that tier; without a word on `slow`, a machine that was calibrated
    here, or that is emulated, says it itself.
    """
    if request.machine is None:
        return tiers.machine_for(request.slow)
    described = request.machine if isinstance(request.machine, Machine) else machine_named(request.machine)
    applied = tiers.machine_for(_slow_of(described) if request.slow == "auto" else request.slow)
    kinds = {tier.kind for tier in described.tiers if tier is not described.fast}
    if {"node", "emulated"} <= kinds:
        raise UsageError(
            f"machine {described.name} has slower tiers on nodes and emulated ones", "give one with tiers of one kind"
        )
    if request.slow == "auto" and "emulated" in kinds:
        return replace(described, tiers=(_where(described.fast, applied.fast), *described.tiers[1:]), flops_per_s=None)
    if tiers.on_paper(applied):
        return _on_paper(described) if "node" in kinds else described
    if described.fast.node not in (None, applied.fast.node):
        raise UsageError(
            f"machine {described.name} was calibrated from node {described.fast.node},"
            f" this process runs on node {applied.fast.node}",
            f"calibrate it from here, or run with `sentinel run --cpus node:{described.fast.node}`",
        )
    described = _of_the_same_nodes(described, applied)
    if len(described.tiers) != len(applied.tiers):
        raise UsageError(
            f"machine {described.name} has {len(described.tiers)} tiers,"
            f" slow={request.slow!r} gives {len(applied.tiers)}",
            "give a machine with as many tiers",
        )
    merged = tuple(_where(costs, place) for costs, place in zip(described.tiers, applied.tiers, strict=True))
    # What is carried out here takes this host's layer times, not those of the described compute.
    return replace(described, tiers=merged, flops_per_s=None, decided_by=applied.decided_by)


_DECIDED = {
    "user": "you named it",
    "hmat": "the firmware's HMAT says that it is slower",
    "measurement": "calibration measured it as slower",
    "memory_tiering": "the kernel's memory tiers say that it is slower",
    "no_cpus": "it has no CPUs",
    "distance": "the firmware's distances say that it is farther",
}


def notes_on(machine: Machine, host: Topology, rate_limit: str | None = None) -> list[str]:
    """What a report must say of the tiers that were taken on this host, and of the limit on migrations."""
    notes = [affinity.spanning(host)]
    if rate_limit is not None:
        notes.append(f"Migrations go no faster than {rate_limit} each way, as was asked.")
    emulated = any(machine.tiers[index].kind == "emulated" for index in machine.slower)
    if emulated and machine.fast.kind == "node" and machine.fast.node is None:
        notes.append(
            "Memory policies are refused here (mbind): the kernel puts managed memory where it likes, and automatic"
            " NUMA balancing may move it."
        )
    why = _DECIDED.get(machine.decided_by, machine.decided_by)
    for slow in (machine.tiers[index] for index in machine.slower if machine.tiers[index].kind == "node"):
        speeds = "" if slow.measured else "; `sentinel calibrate` measures them"
        notes.append(
            f"Node {slow.node} is the slow tier because {why} (decided by {machine.decided_by})."
            f" Its speeds: {slow.source or 'declared'}{speeds}."
        )
    return [note for note in notes if note]


def _slow_of(described: Machine) -> str:
    """Where the machine says that bytes go, if this host has such a place."""
    slower = (described.tiers[index] for index in described.slower)
    here = [topology().node(tier.node) for tier in slower if tier.kind == "node" and tier.node is not None]
    return next((f"numa:{node.number}" for node in here if node is not None and node.total_bytes), "auto")


def _on_paper(described: Machine) -> Machine:
    """A machine of nodes that this host does not have: plans and simulations only."""
    return replace(described, tiers=tuple(replace(tier, kind="described", node=None) for tier in described.tiers))


def _of_the_same_nodes(described: Machine, applied: Machine) -> Machine:
    """Of a calibrated machine with more nodes, the tiers of the nodes that are used."""
    places = {tier.node: index for index, tier in enumerate(described.tiers) if tier.kind == "node"}
    wanted = [places.get(tier.node) if tier.kind == "node" else None for tier in applied.tiers]
    kept = [index for index in wanted if index is not None]
    if len(described.tiers) <= len(applied.tiers) or len(kept) != len(wanted) or kept[0] != 0:
        return described
    links = tuple(
        replace(link, source=kept.index(link.source), target=kept.index(link.target))
        for link in described.links
        if link.source in kept and link.target in kept
    )
    return replace(described, tiers=tuple(described.tiers[index] for index in kept), links=links)


def _where(costs: TierSpec, place: TierSpec) -> TierSpec:
    capacity = place.capacity_bytes if place.kind == "node" else max(costs.capacity_bytes, place.capacity_bytes)
    return replace(
        costs, name=place.name, kind=place.kind, node=place.node, addressable=place.addressable, capacity_bytes=capacity
    )
