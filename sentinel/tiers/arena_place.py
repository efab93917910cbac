"""Where the memory for samples lies: the word `where=`, and what it means on this host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sentinel.core.errors import CapabilityError, NativeError, UsageError
from sentinel.core.units import format_bytes
from sentinel.system import probes
from sentinel.system.disks import Disk, disk_of
from sentinel.system.nodes import Node
from sentinel.system.topology import Topology, topology
from sentinel.tiers.choice import machine_for, node_named

AUTO = "auto"
_WORDS = 'give "auto", "fast", "slow", "numa:N" or "file:DIR"'
_FILE = "file:"
_ENOUGH = 3
"""A slower node is fast enough if it reads 3 times what the source brings: each byte is written there once and
read once, and samples that stayed from an earlier read come on top."""


@dataclass(frozen=True)
class ArenaPlace:
    """`node`: the NUMA node that has the memory; None: where the kernel puts it. `folder`: of the file that it is
    instead, "" for memory. `why`: a sentence, "" where nothing was chosen."""

    node: int | None = None
    folder: str = ""
    why: str = ""


ANYWHERE = ArenaPlace()
"""Ordinary memory, which the kernel puts where it likes."""


def disk_named(where: object) -> Disk | None:
    """The disk of `file:DIR`, None for the other words. Raises UsageError for what is no word, and for a directory that
    is missing, in memory, or may not be written to."""
    if not isinstance(where, str):
        raise UsageError(f"where={where!r} is not a place", _WORDS)
    if where.startswith(_FILE):
        folder = where.removeprefix(_FILE)
        if not folder:
            raise UsageError(f"where={where!r} names no directory", 'name one on a disk: "file:/data/scratch"')
        disk = disk_of(folder)
        if disk.in_memory:
            raise UsageError(
                f"where={where!r}: {folder} is {disk.file_system}, which is in memory, so a file there would save none",
                "name a directory on a disk",
            )
        return disk
    if where not in (AUTO, "fast", "slow") and node_named(where) is None:
        raise UsageError(f"where={where!r} is not a place", _WORDS)
    return None


def place_of(
    where: str, nbytes: int, source_bytes_per_s: Callable[[], float] | None, host: Topology | None = None
) -> ArenaPlace:
    """Where `nbytes` of memory for samples lie. `source_bytes_per_s`: what the source brings, asked only where `auto`
    has a choice; None of a server, whose samples come and go by sockets. `host`: by default this one.

    `fast`: the node of the fast tier. `slow`: the slowest node. `auto`: the slowest node that reads 3 times what the
    source brings, else the slower one that reads most; of a server the slowest one; ordinary memory where there is no
    slower node, and where the kernel refuses policies. Nodes without room are passed over.

    Raises what `disk_named` raises, CapabilityError for a node that is not there, UsageError for one without room.
    """
    disk = disk_named(where)
    if disk is not None:
        return ArenaPlace(folder=str(disk.folder), why=f"memory for samples is a file in {disk.folder}")
    host = host or topology()
    if where == AUTO:
        return _chosen(host, nbytes, source_bytes_per_s)
    node = _node_named(where, host)
    if node.free_bytes < nbytes:
        raise UsageError(
            f"where={where!r}: memory for samples takes {format_bytes(nbytes)}, node {node.number} has"
            f" {format_bytes(node.free_bytes)} left",
            f'give memory="{node.free_bytes >> 20}MiB" or less, or another where=',
        )
    return ArenaPlace(node.number, why=_said(node.number, host, f"where={where!r} says so"))


def _node_named(where: str, host: Topology) -> Node:
    there = [node for node in host.nodes if node.total_bytes and node.number not in host.forbidden]
    if where == "slow":
        if not host.slower:
            raise CapabilityError(
                'where="slow"', "this host has no slower memory", 'leave where= out, or give "file:DIR" on a disk'
            )
        number: int | None = host.slower[-1]
    else:
        number = host.fast if where == "fast" else node_named(where)
    found = next((node for node in there if node.number == number), None)
    if found is None:
        listed = ", ".join(str(node.number) for node in there) or "none"
        raise CapabilityError(
            f'where="{where}"',
            f"this process may have no memory on a node {number} (nodes with memory for it: {listed})",
            "name another node, or leave where= out",
        )
    return found


def _chosen(host: Topology, nbytes: int, source_bytes_per_s: Callable[[], float] | None) -> ArenaPlace:
    if not host.slower:
        return ANYWHERE
    try:
        probes.mbind()
        probes.move_pages()
    except (NativeError, CapabilityError, probes.Missing) as error:
        return ArenaPlace(why=f"memory for samples lies where the kernel puts it: policies are refused here ({error})")
    with_room = [node.number for node in host.nodes if node.number in host.slower and node.free_bytes >= nbytes]
    rates = {number: _read_bytes_per_s(number) for number in with_room}
    if not rates:
        full = f"no slower node has {format_bytes(nbytes)} left"
        fast = host.node(host.fast)
        if fast is None or fast.free_bytes < nbytes:
            return ArenaPlace(why=f"memory for samples lies where the kernel puts it: {full}, nor has the fast one")
        return ArenaPlace(host.fast, why=_said(host.fast, host, full))
    slowest_first = sorted(rates, key=lambda number: rates[number])
    if source_bytes_per_s is None:
        said = f"it reads {format_bytes(rates[slowest_first[0]])}/s, sockets carry less"
        return ArenaPlace(slowest_first[0], why=_said(slowest_first[0], host, said))
    brought = source_bytes_per_s()
    enough = [number for number in slowest_first if rates[number] >= _ENOUGH * brought]
    number = enough[0] if enough else slowest_first[-1]
    said = f"it reads {format_bytes(rates[number])}/s, the source brings {format_bytes(brought)}/s"
    if not enough:
        said += f" (no slower node reads {_ENOUGH} times that, and fast memory is taken only if it is asked for)"
    return ArenaPlace(number, why=_said(number, host, said))


def _read_bytes_per_s(number: int) -> int:
    """Of a slower node, as its calibration, its firmware or a preset tells."""
    return machine_for(f"numa:{number}").tiers[1].read_bytes_per_s


def _said(number: int, host: Topology, why: str) -> str:
    """In which memory samples lie, and what that means for the fast tier."""
    beside = ", whose fast tier has so much less for tensors" if number == host.fast else ""
    return f"memory for samples is on node {number}{beside}: {why}"
