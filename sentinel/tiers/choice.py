"""The machine that a word such as `numa:1` or `emulated:cxl-asic-x8` stands for on this host."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from sentinel.core.errors import CapabilityError, UsageError
from sentinel.core.machine import Link, Machine, TierKind, TierSpec
from sentinel.core.rules import require
from sentinel.core.units import parse_bytes
from sentinel.system.calibration import kept, kept_copies
from sentinel.system.nodes import Node
from sentinel.system.topology import Topology, topology
from sentinel.tiers.presets import (
    DEFAULT_FAST,
    DEFAULT_NODE,
    DEFAULT_SLOW,
    MOVER_BYTES_PER_S,
    PRESETS,
)

_WORDS = (
    '"auto", "numa:N", "emulated:PRESET", or a PRESET to plan for only; of several tiers "PRESET=SIZE+PRESET", the'
    f" fastest first; presets: {', '.join(PRESETS)}"
)


class DeclaredTier(NamedTuple):
    """A slower tier that is described by `preset`; of `capacity_bytes`, if that was said."""

    preset: str
    capacity_bytes: int | None = None

    def spec(self, kind: TierKind, host: Topology) -> TierSpec:
        """It holds as much as the host has, unless it was said how much."""
        capacity = host_bytes(host) if self.capacity_bytes is None else self.capacity_bytes
        return PRESETS[self.preset].spec(self.preset, kind, capacity)


def machine_for(slow: str) -> Machine:
    """Fast memory of this host and the slower tiers that `slow` names.

    `numa:N`: node N. `emulated:PRESET`: host memory with that preset's delays, to which moves are copied at its rate.
    `PRESET`: described, nothing can be applied. `PRESET=SIZE+PRESET`, emulated or described: several slower tiers, the
    fastest first. `auto`: the nearest slower node if there is one, else described as cxl-asic-x8. The fast tier has all
    that the fast node has.

    Speeds of nodes are those of the calibration kept for this host, else the firmware's, else a preset's. What moves to
    emulated tiers is copied: it takes from compute what a kept calibration says, and is no faster than its copies.

    Raises UsageError for a word that is none of these, CapabilityError for one that this host cannot do.
    """
    host = topology()
    kind, _, name = slow.partition(":")
    if slow == "auto":
        if host.slower:
            return _with_node(host, host.slower[0])
        default = (DeclaredTier(DEFAULT_SLOW),)
        return replace(_described(host, default, "described"), decided_by="declared")
    if (number := node_named(slow)) is not None:
        return _with_node(host, number, decided_by="user")
    if kind == "file" and name:
        raise CapabilityError(
            f"slow={slow!r}",
            "nothing is planned for a file yet",
            'only start_profile and `sentinel run` take one; slow="emulated:nvme-gen4" shows what a plan would do',
        )
    declared, named = declared_words(slow)
    machine = _described(host, named, declared)
    return _as_copied(machine, kept_copies(host.nodes, host.fast)) if declared == "emulated" else machine


def node_named(word: str) -> int | None:
    """N of `numa:N`, None of any other word."""
    kind, _, number = word.partition(":")
    # int() refuses ², which isdigit() takes, and more than 4,300 digits
    is_node = kind == "numa" and number.isascii() and number.isdigit() and len(number) < 10
    return int(number) if is_node else None


def declared_words(slow: str) -> tuple[TierKind, tuple[DeclaredTier, ...]]:
    """(kind, tiers) of `emulated:PRESET`, `PRESET` or `PRESET=SIZE`, or several of them with + between.

    Raises UsageError for any other word, and for tiers of which one would never be used: named twice, after a slower
    one, or after one of unlimited size.
    """
    kind, colon, rest = slow.partition(":")
    parts = [part.partition("=") for part in (rest if colon else slow).split("+")]
    names = [name for name, _, _ in parts]
    unknown = kind not in ("emulated", slow) or any(name not in PRESETS for name in names)
    require((unknown, f"slow={slow!r} names no slow tier", f"use {_WORDS}"))
    unlimited = next((name for name, equals, _ in parts[:-1] if not equals), "")
    require(
        (len(set(names)) < len(names), f"slow={slow!r} names a tier twice", "name each once"),
        (
            names != sorted(names, key=lambda name: PRESETS[name].latency_ns),
            f"slow={slow!r} names a tier after a slower one",
            "put the one of the lowest latency first",
        ),
        (
            unlimited,
            f"slow={slow!r}: {unlimited} may hold everything, so {names[-1]} would hold nothing",
            f'say how much it holds: "{unlimited}=4GiB"',
        ),
    )
    tiers = (DeclaredTier(name, parse_bytes(size) if equals else None) for name, equals, size in parts)
    return "emulated" if colon else "described", tuple(tiers)


def links_between(fast: TierSpec, slow: TierSpec, index: int) -> tuple[Link, Link]:
    """Promotion and demotion between tiers 0 and `index`: as fast as the slower side reads or writes, and where a mover
    carries pages no faster than one does, emulated or not. From a device whole regions are read."""
    mover = (MOVER_BYTES_PER_S,) if slow.addressable else ()
    up = min(*mover, slow.read_bytes_per_s, fast.write_bytes_per_s)
    down = min(*mover, fast.read_bytes_per_s, slow.write_bytes_per_s)
    latency_ns = round(slow.latency_ns)
    return Link(index, 0, up, latency_ns), Link(0, index, down, latency_ns)


def links_among(fast: TierSpec, slower: Sequence[TierSpec]) -> tuple[Link, ...]:
    """Both ways between the fast tier and each slower one."""
    return tuple(link for index, tier in enumerate(slower, 1) for link in links_between(fast, tier, index))


def of_memory(machine: Machine) -> Machine:
    """`machine`, the links of its emulated tiers as fast as their memory: what a measured rate of copies is to cut, in
    place of the rate that is taken where nobody measured one."""
    emulated = {index for index in machine.slower if machine.tiers[index].kind == "emulated"}
    links = (
        replace(link, bandwidth_bytes_per_s=machine.most_bytes_per_s(link))
        if emulated & {link.source, link.target}
        else link
        for link in machine.links
    )
    return replace(machine, links=tuple(links))


def _described(host: Topology, tiers: Sequence[DeclaredTier], kind: TierKind) -> Machine:
    fast = _fast_tier(host)
    slower = tuple(tier.spec(kind, host) for tier in tiers)
    name = f"{kind}:{'+'.join(tier.preset for tier in tiers)}"
    return Machine(name, (fast, *slower), links_among(fast, slower), decided_by="user")


def _with_node(host: Topology, number: int, *, decided_by: str = "") -> Machine:
    node = host.node(number)
    if node is None or not node.total_bytes:
        there = ", ".join(str(n.number) for n in host.nodes if n.total_bytes) or "none"
        raise CapabilityError(
            f'slow="numa:{number}"',
            f"this host has no node {number} with memory (nodes with memory: {there})",
            'use slow="emulated:cxl-asic-x8" to run with injected delays, or a host with two nodes',
        )
    if number in host.forbidden:
        raise CapabilityError(
            f'slow="numa:{number}"',
            f"this process's cpuset allows no memory on node {number}",
            'widen it (cpuset.mems), or use slow="emulated:cxl-asic-x8" to run with injected delays',
        )
    if number == host.fast:
        raise UsageError(
            f'slow="numa:{number}" is the node that this process runs on',
            "name another node, or run elsewhere: `sentinel run --cpus node:N`",
        )
    fast = _fast_tier(host)
    slow = _as_told(PRESETS[DEFAULT_NODE].spec(f"node{number}", "node", node.free_bytes, node=number), node)
    declared = Machine(
        f"numa:{number}", (fast, slow), links_between(fast, slow, 1), decided_by=decided_by or host.decided_by
    )
    return _as_measured(declared, kept(host.nodes, host.fast))


def _as_measured(machine: Machine, calibration: Machine | None) -> Machine:
    """`machine`, of two nodes, with the numbers of the calibration where it knows both."""
    if calibration is None:
        return machine
    places = {tier.node: index for index, tier in enumerate(calibration.tiers) if tier.measured}
    fast, slow = (places.get(tier.node) for tier in machine.tiers)
    if fast is None or slow is None:
        return machine
    tiers = tuple(
        replace(calibration.tiers[index], name=tier.name, kind="node", capacity_bytes=tier.capacity_bytes)
        for tier, index in zip(machine.tiers, (fast, slow), strict=True)
    )
    up, down = calibration.link(slow, fast), calibration.link(fast, slow)
    links = (replace(up, source=1, target=0), replace(down, source=0, target=1))
    return replace(machine, tiers=tiers, links=links, full_duplex=calibration.full_duplex)


def _as_copied(machine: Machine, copies: Machine | None) -> Machine:
    """`machine`, of emulated tiers, with the prices of this host's copies, and links that are no faster than they."""
    if copies is None:
        return machine
    links = []
    for link in of_memory(machine).links:
        found = copies.link(1, 0) if link.target == machine.hub else copies.link(0, 1)
        links.append(
            replace(
                link,
                bandwidth_bytes_per_s=min(link.bandwidth_bytes_per_s, found.bandwidth_bytes_per_s),
                measured=found.bandwidth_bytes_per_s <= link.bandwidth_bytes_per_s,
                lost_ns_per_kib=found.lost_ns_per_kib,
                lost_ns_per_move=found.lost_ns_per_move,
                lost_measured=True,
            )
        )
    return replace(machine, links=tuple(links))


def _fast_tier(host: Topology) -> TierSpec:
    node = host.node(host.fast)
    there = node.total_bytes if node is not None else host_bytes(host)
    return _as_told(PRESETS[DEFAULT_FAST].spec("fast", "node", there, node=host.fast), node)


def _as_told(spec: TierSpec, node: Node | None) -> TierSpec:
    """`spec` with the firmware's numbers where all are there: one set of numbers from one source.

    They are those seen from the nearest CPUs, so a node with CPUs of its own keeps the preset's as a remote one.
    """
    if node is None or node.read_latency_ns is None or node.read_bytes_per_s is None or node.write_bytes_per_s is None:
        return spec
    if node.cpus and spec.name != "fast":
        return spec
    return replace(
        spec,
        latency_ns=node.read_latency_ns,
        read_bytes_per_s=node.read_bytes_per_s,
        write_bytes_per_s=node.write_bytes_per_s,
        source=f"declared (HMAT of node {node.number})",
    )


def host_bytes(host: Topology) -> int:
    """All memory of the host."""
    total = sum(node.total_bytes for node in host.nodes)
    return total or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
