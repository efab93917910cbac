"""The NUMA nodes of this host: their CPUs, memory, distances and speeds, and which are slower than which.

Firmware and kernels disagree about speed, so sources are asked in order of trust and the one that decided is named:
HMAT (access0 latencies), a calibration of this host, the kernel's memory tiers (one tier for all nodes on some real
CXL hosts), nodes without CPUs, SLIT distances.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sentinel.system.calibration import kept, latencies
from sentinel.system.nodes import Node
from sentinel.system.sysfs import entries, field, numbers, text

MIB = 1 << 20
NOTICEABLE = 1.1
"""A measured latency below 1.1 times the fast node's is noise: the node is not slower."""


@dataclass(frozen=True)
class Topology:
    """`nodes` by number. `fast`: the node with memory that is nearest to most of this process's CPUs. `slower`: nodes
    with memory that are slower seen from there, nearest first. `decided_by`: hmat, measurement, memory_tiering,
    no_cpus, distance, or only_node. `spans`: nodes of this process's CPUs. `forbidden`: nodes on which its cpuset lets
    it have no memory; they are in `nodes`, not in `slower`."""

    nodes: tuple[Node, ...] = ()
    fast: int = 0
    slower: tuple[int, ...] = ()
    decided_by: str = "only_node"
    spans: tuple[int, ...] = ()
    forbidden: tuple[int, ...] = ()

    def node(self, number: int) -> Node | None:
        """The node of that number, None if there is none."""
        return next((node for node in self.nodes if node.number == number), None)


Latencies = Mapping[int, float]
"""Node -> measured latency in ns, seen from one node."""


def topology(root: Path = Path("/"), cpus: Collection[int] | None = None) -> Topology:
    """What sysfs under `root` tells, and the calibration that is kept for this host; empty where it tells nothing.
    `cpus`: of this process, by default as allowed. Never raises."""
    system = root / "sys/devices/system/node"
    tiers = _memory_tiers(root)
    listed = numbers(text(system / "online")) or _listed(system)
    nodes = tuple(_node(system, number, listed, tiers) for number in listed)
    mine = frozenset(os.sched_getaffinity(0) if cpus is None else cpus)
    spans = tuple(node.number for node in nodes if mine & set(node.cpus))
    forbidden = _forbidden(root, nodes)
    if len([node for node in nodes if node.total_bytes]) == 1:
        nodes = tuple(_all_of_the_host(root, node) if node.total_bytes else node for node in nodes)
    usable = tuple(node for node in nodes if node.total_bytes and node.number not in forbidden)
    if not usable:
        return Topology(nodes, spans=spans, forbidden=forbidden)
    fast = _nearest_to(mine, nodes, usable)
    calibration = kept(nodes, fast.number) if root == Path("/") and len(usable) > 1 else None
    slower, decided_by = _order(usable, fast, {} if calibration is None else latencies(calibration))
    return Topology(nodes, fast.number, slower, decided_by, spans, forbidden)


def reordered(host: Topology, measured: Latencies) -> Topology:
    """`host` with its nodes ordered again, now that a calibration has found these latencies."""
    usable = tuple(node for node in host.nodes if node.total_bytes and node.number not in host.forbidden)
    fast = host.node(host.fast)
    if fast is None or fast not in usable:
        return host
    slower, decided_by = _order(usable, fast, measured)
    return replace(host, slower=slower, decided_by=decided_by)


def _nearest_to(mine: frozenset[int], nodes: tuple[Node, ...], usable: tuple[Node, ...]) -> Node:
    """The node with memory to which most of the CPUs are nearest: their own, if it has memory."""
    near = dict.fromkeys((node.number for node in usable), 0)
    for node in nodes:
        home = min(usable, key=lambda other: (other is not node, node.distances.get(other.number, 255), other.number))
        near[home.number] += len(mine & set(node.cpus))
    return max(usable, key=lambda node: (near[node.number], -node.number))


def _order(usable: tuple[Node, ...], fast: Node, measured: Latencies) -> tuple[tuple[int, ...], str]:
    others = [node for node in usable if node.number != fast.number]
    criteria: tuple[tuple[str, Callable[[Node], float | None]], ...] = (
        ("hmat", lambda node: _told(node, fast)),
        ("measurement", lambda node: _noticed(measured, node.number, fast.number)),
        ("memory_tiering", lambda node: node.memory_tier),
        ("no_cpus", lambda node: int(not node.cpus) if fast.cpus else None),
        ("distance", lambda node: fast.distances.get(node.number)),
    )
    for name, criterion in criteria:
        values = {node.number: value for node in (fast, *others) if (value := criterion(node)) is not None}
        if len(values) < len(others) + 1 or len(set(values.values())) < 2:
            continue  # it does not know them all, or sees no difference
        here = (values[fast.number], fast.distances.get(fast.number, 10))
        found = [((values[n.number], fast.distances.get(n.number, 10)), n.number) for n in others]
        return tuple(number for place, number in sorted(found) if place > here), name
    return (), "only_node" if not others else "distance"


def _told(node: Node, fast: Node) -> float | None:
    """The firmware's latency. It is seen from the nearest CPUs: from here, another node with CPUs is no nearer than
    the fast one."""
    if node.read_latency_ns is None or fast.read_latency_ns is None or not node.cpus:
        return node.read_latency_ns
    return max(node.read_latency_ns, fast.read_latency_ns)


def _noticed(measured: Latencies, number: int, fast: int) -> float | None:
    """The measured latency of a node, the fast one's where the difference is within noise."""
    if number not in measured or fast not in measured:
        return None
    return measured[number] if measured[number] >= NOTICEABLE * measured[fast] else measured[fast]


def _forbidden(root: Path, nodes: tuple[Node, ...]) -> tuple[int, ...]:
    """Nodes outside the cpuset; none where the kernel does not tell."""
    told = field(root / "proc/self/status", "Mems_allowed_list")
    allowed = numbers(told)
    return tuple(node.number for node in nodes if node.number not in allowed) if told else ()


def _node(system: Path, number: int, listed: list[int], tiers: dict[int, int]) -> Node:
    folder = system / f"node{number}"
    memory = _meminfo(text(folder / "meminfo"))
    distances = [int(word) for word in text(folder / "distance").split() if word.isdigit()]
    speeds = folder / "access0/initiators"
    return Node(
        number=number,
        cpus=tuple(numbers(text(folder / "cpulist"))),
        total_bytes=memory.get("MemTotal", 0),
        free_bytes=_available(memory),
        distances=dict(zip(listed, distances, strict=False)),
        read_latency_ns=_speed(speeds / "read_latency", 1),
        write_latency_ns=_speed(speeds / "write_latency", 1),
        read_bytes_per_s=_speed(speeds / "read_bandwidth", MIB),
        write_bytes_per_s=_speed(speeds / "write_bandwidth", MIB),
        memory_tier=tiers.get(number),
    )


def _all_of_the_host(root: Path, node: Node) -> Node:
    """The only node with memory, where it tells of less than the host has: kernels of some virtual machines give a node
    its memory as it is needed, and only /proc/meminfo tells of all (seen: 4.3 GiB of 126). Where several nodes have
    memory nothing tells which has how much."""
    host = _meminfo(text(root / "proc/meminfo"))
    if host.get("MemTotal", 0) <= node.total_bytes:
        return node
    return replace(node, total_bytes=host["MemTotal"], free_bytes=host.get("MemAvailable", node.free_bytes))


def untold_bytes(host: Topology, root: Path = Path("/")) -> int:
    """What the host has beyond that of its nodes, where several have memory: kernels that give a node its memory as it
    is needed do not tell which has it. The nodes of others have all that /proc/meminfo tells of."""
    told = [node.total_bytes for node in host.nodes if node.total_bytes]
    return max(_meminfo(text(root / "proc/meminfo")).get("MemTotal", 0) - sum(told), 0) if len(told) > 1 else 0


def _available(memory: dict[str, int]) -> int:
    """Free memory and what the kernel gives up without a word: clean file pages and reclaimable slabs."""
    files = max(memory.get("FilePages", 0) - memory.get("Shmem", 0) - memory.get("Dirty", 0), 0)
    return min(memory.get("MemFree", 0) + files + memory.get("SReclaimable", 0), memory.get("MemTotal", 0))


def _meminfo(told: str) -> dict[str, int]:
    """Bytes by name, of lines such as `MemTotal:  1024 kB`, which begin with `Node 0` where a node tells."""
    found = {}
    for line in told.splitlines():
        words = line.split()
        name, number, *unit = [*(words[2:] if words[:1] == ["Node"] else words), "", ""][:3]
        if number.isdigit():
            found[name.rstrip(":")] = int(number) * (1024 if unit == ["kB"] else 1)
    return found


def _memory_tiers(root: Path) -> dict[int, int]:
    """Node -> memory tier, from .../memory_tiering/memory_tier4/nodelist."""
    found = {}
    for entry in entries(root / "sys/devices/virtual/memory_tiering"):
        rank = entry.name.removeprefix("memory_tier")
        if rank.isdigit():
            for node in numbers(text(entry / "nodelist") or text(entry / "nodes")):
                found[node] = int(rank)
    return found


def _listed(system: Path) -> list[int]:
    names = (entry.name.removeprefix("node") for entry in entries(system) if entry.name.startswith("node"))
    return sorted(int(name) for name in names if name.isdigit())


def _speed(path: Path, unit: int) -> int | None:
    said = text(path).strip()
    return int(said) * unit if said.isdigit() and int(said) > 0 else None
