"""From figures to the Machine that plans are made for."""

from __future__ import annotations

from dataclasses import replace

from sentinel.calibrate.moving import with_moving
from sentinel.calibrate.results import EMULATED, Calibration, NodeFigures, best
from sentinel.core.errors import UsageError
from sentinel.core.machine import Link, Machine, TierSpec
from sentinel.core.units import PAGE_BYTES, format_bytes
from sentinel.system.sysfs import as_list
from sentinel.system.topology import Topology, reordered
from sentinel.tiers.choice import declared_words, host_bytes, links_among, of_memory

PLANNED_MOVERS = 1
"""Movers a direction that carry out a plan, in pages of 4 KiB: their figure is the link's."""
MOST_USE = 0.95
"""The highest utilisation that the loaded-latency model is evaluated at."""
DUPLEX_SHARE = 0.75
"""Both directions at once that get at least this share of what each gets alone do not share bandwidth."""


def machine_of(found: Calibration, host: Topology, slow: str | None = None) -> Machine:
    """The Machine of what was measured on `host`, fast tier first, then the other nodes, nearest first.

    `slow`: instead of nodes, a declared tier: `emulated:PRESET`, or `PRESET` for one that exists on paper. Needed
    where only one node was measured. Raises UsageError for a word that names none.
    """
    fast = _tier(found, found.nodes[0], host, "fast")
    if slow is not None:
        kind, tiers = declared_words(slow)
        slower = tuple(tier.spec(kind, host) for tier in tiers)
        declared = Machine(f"calibrated, {slow}", (fast, *slower), links_among(fast, slower), decided_by="user")
        copied = any(each.node is None for each in found.moving)
        return with_moving(of_memory(declared) if copied else declared, found.moving)
    if len(found.nodes) < 2:
        raise UsageError("a machine has two tiers, and only one node was measured", "name a declared tier with --slow")
    ordered = reordered(host, {} if found.emulated else {n.node: n.latency_ns.median for n in found.nodes})
    rank = {number: place for place, number in enumerate(ordered.slower)}
    others = sorted(found.nodes[1:], key=lambda node: (rank.get(node.node, len(rank)), node.latency_ns.median))
    links = [link for index, node in enumerate(others, start=1) for link in _links(found, node, index)]
    measured = Machine(
        "calibrated",
        (fast, *(_tier(found, node, host, f"node{node.node}") for node in others)),
        tuple(links),
        full_duplex=is_full_duplex(found, others[0].node),
        decided_by=ordered.decided_by,
    )
    return with_moving(measured, found.moving)


def copies_of(found: Calibration, host: Topology) -> Machine | None:
    """What copies within this host's fast memory take, of which emulated tiers are made: its links have their rate, no
    faster than that memory was read and written, and what they take from compute. None where none were measured."""
    mine = [each for each in found.moving if each.node is None]
    if not mine:
        return None
    fast = _tier(found, found.nodes[0], host, "fast")
    copied = replace(fast, name="emulated", kind="emulated", node=None)
    most = min(fast.read_bytes_per_s, fast.write_bytes_per_s)  # copies out of caches may have it otherwise
    rates = [((1, 0) if each.to_fast else (0, 1), min(max(int(each.rate.median), 1), most)) for each in mine]
    links = tuple(Link(*ends, rate) for ends, rate in rates)
    return with_moving(Machine("this host", (fast, copied), links, decided_by="measurement"), mine)


def conditions(found: Calibration) -> str:
    """How and when it was measured, in one line."""
    emulated = f"{EMULATED}; " if found.emulated else ""
    return (
        f"{emulated}measured {found.began} by sentinel calibrate on {found.processor or 'an unnamed processor'},"
        f" CPUs {as_list(found.cpus)}, over {format_bytes(found.nbytes)}, medians of {found.rounds} rounds"
    )


def is_full_duplex(found: Calibration, other: int) -> bool:
    """Whether promotions and demotions between the fast node and `other` go on beside each other."""
    pairs = [(found.nodes[0].node, other), (other, found.nodes[0].node)]
    alone = sum(planned_rate(found, *pair) for pair in pairs)
    return sum(found.both_ways[pair].median for pair in pairs) >= DUPLEX_SHARE * alone


def planned_rate(found: Calibration, source: int, target: int) -> float:
    """Bytes per second of migrations as a plan's are carried out."""
    for move in found.moves:
        if (move.source, move.target, move.page_bytes) == (source, target, PAGE_BYTES):
            at = min(move.rates, key=lambda movers: abs(movers - PLANNED_MOVERS))
            return move.rates[at].median
    raise KeyError((source, target))


def _links(found: Calibration, other: NodeFigures, index: int) -> tuple[Link, Link]:
    """No faster than the nodes were read and written, which noise on a busy host may have it."""
    fast = found.nodes[0]

    def rate(source: NodeFigures, target: NodeFigures) -> int:
        planned = planned_rate(found, source.node, target.node)
        return max(round(min(planned, best(source.read).median, best(target.write).median)), 1)

    return Link(index, 0, rate(other, fast), measured=True), Link(0, index, rate(fast, other), measured=True)


def _tier(found: Calibration, node: NodeFigures, host: Topology, name: str) -> TierSpec:
    here = host.node(node.node)
    return TierSpec(
        name=name,
        kind="node",
        capacity_bytes=here.free_bytes if here is not None else host_bytes(host),
        latency_ns=round(node.latency_ns.median, 1),
        read_bytes_per_s=round(best(node.read).median),
        write_bytes_per_s=round(best(node.write).median),
        node=node.node,
        measured=True,
        source=f"{conditions(found)}; mixed {format_bytes(best(node.mixed).median)}/s",
        # a profile's layer times were recorded in the fast tier, its load included: it must not count twice
        loaded_latency_a=0.0 if node is found.nodes[0] else loaded_latency_a(node),
    )


def loaded_latency_a(node: NodeFigures) -> float:
    """`a` of latency·(1 + a·u/(1−u)) that gives the loaded latency where readers use what they get alone."""
    if node.loaded_ns is None:
        return 0.0
    readers = min(node.read, key=lambda threads: abs(threads - node.readers))
    use = min(node.read[readers].median / best(node.read).median, MOST_USE)
    growth = node.loaded_ns.median / node.latency_ns.median - 1
    return round(max(growth, 0.0) * (1 - use) / use, 4)
