"""What is to be measured, held against what this host has before anything is touched."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sentinel.core.errors import CapabilityError, UsageError
from sentinel.core.units import HUGE_PAGE_BYTES, format_bytes
from sentinel.system import limits, processor
from sentinel.system.topology import Topology

MIB = 1 << 20
USUAL_BYTES, EMULATED_BYTES, LEAST_BYTES = 256 * MIB, 16 * MIB, 4 * MIB
CACHES = 4
"""Memory measured is at least 4 times as large as the last cache: less would measure the cache too."""
REGIONS = 2
"""Held on a node at one time."""
HEADROOM_BYTES = 32 * MIB


@dataclass(frozen=True)
class MeasurementPlan:
    """`cpus`: of node `fast`, where all threads run. `others`: nodes measured from there and moved to and from.

    `duration_ns`: of a round of streaming or loads. `on_nodes`: there is more than one node to put memory on.
    """

    fast: int
    others: tuple[int, ...]
    cpus: tuple[int, ...]
    threads: tuple[int, ...]
    nbytes: int
    rounds: int
    duration_ns: int
    on_nodes: bool


def plan_measurements(
    host: Topology,
    *,
    nodes: Collection[int] | None = None,
    threads: Sequence[int] | None = None,
    nbytes: int | None = None,
    quick: bool = False,
) -> MeasurementPlan:
    """What to measure on `host`. `nodes`: besides the fast one, by default all with memory. `threads`: numbers of
    threads, 0 for all CPUs; by default 1, 2, 4, ... and all. `nbytes`: of memory, by default what outgrows the cache.

    Raises UsageError for what makes no sense here, CapabilityError for what has no room.
    """
    others = _others(host, nodes)
    cpus = _cpus(host)
    counts = _threads(threads, len(cpus), quick)
    size = _nbytes(host, (host.fast, *others), nbytes, counts[-1])
    rounds, duration_ns = (3, 20_000_000) if quick else (5, 100_000_000)
    return MeasurementPlan(host.fast, others, cpus, counts, size, rounds, duration_ns, len(host.nodes) > 1)


def _others(host: Topology, nodes: Collection[int] | None) -> tuple[int, ...]:
    with_memory = [n.number for n in host.nodes if n.total_bytes and n.number not in host.forbidden]
    if nodes is None:
        return tuple(number for number in with_memory if number != host.fast)
    for number in nodes:
        if number in with_memory or (not host.nodes and number == host.fast):
            continue
        if number in host.forbidden:
            raise CapabilityError(
                f"calibrating node {number}", "this process's cpuset allows no memory there", "widen it (cpuset.mems)"
            )
        there = ", ".join(map(str, with_memory)) or "none"
        raise UsageError(f"--nodes: this host has no node {number} with memory (with memory: {there})", "name these")
    return tuple(sorted(set(nodes) - {host.fast}))


def _cpus(host: Topology) -> tuple[int, ...]:
    """Of the fast node those that this process may use; all that it may use where that node has none of them."""
    allowed = os.sched_getaffinity(0)
    fast = host.node(host.fast)
    return tuple(sorted(allowed & set(fast.cpus) if fast is not None else allowed)) or tuple(sorted(allowed))


def _threads(asked: Sequence[int] | None, most: int, quick: bool) -> tuple[int, ...]:
    if asked is None:
        return tuple(sorted({1, most} if quick else {*(1 << i for i in range(most.bit_length())), most}))
    counts = sorted({most if count == 0 else count for count in asked})
    if not counts or counts[0] < 1 or counts[-1] > most:
        raise UsageError(
            f"--threads: this process may use {most} CPUs of the fast node", f"give numbers from 1 to {most}, or N"
        )
    return tuple(counts)


def _nbytes(host: Topology, nodes: Sequence[int], asked: int | None, threads: int) -> int:
    free_bytes, where = min((_free_bytes(host, node), f"node {node}") for node in nodes)
    limit_bytes = limits.room_bytes()
    if limit_bytes is not None and limit_bytes <= free_bytes:
        free_bytes, where = limit_bytes, "this process's memory cgroup"
    room = max((free_bytes - HEADROOM_BYTES) // REGIONS, 0)
    least = max(LEAST_BYTES, threads * HUGE_PAGE_BYTES)
    if asked is None:
        usual = max(USUAL_BYTES, CACHES * processor.last_cache_bytes())
        wanted = EMULATED_BYTES if processor.is_emulated() else min(usual, room)
    else:
        wanted = asked
    size = max(wanted, least if asked is None else 0) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
    if size < least:
        said = f"--size {format_bytes(wanted)} is too little to measure"
        raise UsageError(said, f"give at least {format_bytes(least)}")
    if size > room:
        raise CapabilityError(
            f"calibrating with {format_bytes(size)}",
            f"{where} has {format_bytes(free_bytes)} free, and {REGIONS} times the size and"
            f" {format_bytes(HEADROOM_BYTES)} are needed",
            f"give --size {format_bytes(room // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES).replace(' ', '')} or less,"
            " or free memory there",
        )
    return size


def _free_bytes(host: Topology, number: int) -> int:
    node = host.node(number)
    return node.free_bytes if node is not None else limits.available_bytes()
