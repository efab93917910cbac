"""The NUMA nodes of this host: their CPUs, memory, distances and speeds, and which are slower than which.

Firmware and kernels disagree about speed, so sources are asked in order of trust and the one that decided is named:
HMAT (access0 latencies), the kernel's memory tiers (one tier for all nodes on some real CXL hosts), nodes without
CPUs, SLIT distances.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

MIB = 1 << 20


@dataclass(frozen=True)
class Node:
    """One NUMA node. `distances`: node -> SLIT distance. Speeds as the firmware's HMAT tells, from the nearest
    CPUs; None where it does not. `memory_tier`: the kernel's, larger is slower; None if it has none."""

    number: int
    cpus: tuple[int, ...] = ()
    total_bytes: int = 0
    free_bytes: int = 0
    distances: dict[int, int] = field(default_factory=dict)
    read_latency_ns: int | None = None
    write_latency_ns: int | None = None
    read_bytes_per_s: int | None = None
    write_bytes_per_s: int | None = None
    memory_tier: int | None = None


@dataclass(frozen=True)
class Topology:
    """`nodes` by number. `fast`: the node of most of this process's CPUs. `slower`: nodes with memory that are slower
    seen from there, nearest first. `decided_by`: hmat, memory_tiering, no_cpus, distance, or only_node."""

    nodes: tuple[Node, ...] = ()
    fast: int = 0
    slower: tuple[int, ...] = ()
    decided_by: str = "only_node"

    def node(self, number: int) -> Node | None:
        """The node of that number, None if there is none."""
        return next((node for node in self.nodes if node.number == number), None)


def topology(root: Path = Path("/"), cpus: Collection[int] | None = None) -> Topology:
    """What sysfs under `root` tells; empty where it tells nothing. `cpus`: of this process, by default as allowed.

    Never raises.
    """
    system = root / "sys/devices/system/node"
    tiers = _memory_tiers(root)
    numbers = _ranges(_text(system / "online")) or _listed(system)
    nodes = tuple(_node(system, number, numbers, tiers) for number in numbers)
    if not any(node.total_bytes for node in nodes):
        return Topology(nodes)
    mine = frozenset(cpus if cpus is not None else _allowed_cpus())
    fast = max((node for node in nodes if node.total_bytes), key=lambda n: (len(mine & set(n.cpus)), -n.number))
    slower, decided_by = _order(nodes, fast)
    return Topology(nodes, fast.number, slower, decided_by)


def _order(nodes: tuple[Node, ...], fast: Node) -> tuple[tuple[int, ...], str]:
    others = [node for node in nodes if node.total_bytes and node.number != fast.number]
    criteria: tuple[tuple[str, Callable[[Node], int | None]], ...] = (
        ("hmat", lambda node: node.read_latency_ns),
        ("memory_tiering", lambda node: node.memory_tier),
        ("no_cpus", lambda node: int(not node.cpus)),
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


def _node(system: Path, number: int, numbers: list[int], tiers: dict[int, int]) -> Node:
    folder = system / f"node{number}"
    memory = _meminfo(_text(folder / "meminfo"))
    distances = [int(word) for word in _text(folder / "distance").split() if word.isdigit()]
    speeds = folder / "access0/initiators"
    return Node(
        number=number,
        cpus=tuple(_ranges(_text(folder / "cpulist"))),
        total_bytes=memory.get("MemTotal", 0),
        free_bytes=_available(memory),
        distances=dict(zip(numbers, distances, strict=False)),
        read_latency_ns=_speed(speeds / "read_latency", 1),
        write_latency_ns=_speed(speeds / "write_latency", 1),
        read_bytes_per_s=_speed(speeds / "read_bandwidth", MIB),
        write_bytes_per_s=_speed(speeds / "write_bandwidth", MIB),
        memory_tier=tiers.get(number),
    )


def _available(memory: dict[str, int]) -> int:
    """Free memory and what the kernel gives up without a word: clean file pages and reclaimable slabs."""
    files = max(memory.get("FilePages", 0) - memory.get("Shmem", 0) - memory.get("Dirty", 0), 0)
    return min(memory.get("MemFree", 0) + files + memory.get("SReclaimable", 0), memory.get("MemTotal", 0))


def _meminfo(text: str) -> dict[str, int]:
    """Bytes by name, of lines such as `Node 0 MemTotal:  1024 kB`."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 4 and words[0] == "Node" and words[3].isdigit():
            found[words[2].rstrip(":")] = int(words[3]) * (1024 if words[-1] == "kB" else 1)
    return found


def _memory_tiers(root: Path) -> dict[int, int]:
    """Node -> memory tier, from .../memory_tiering/memory_tier4/nodelist."""
    found = {}
    for entry in _entries(root / "sys/devices/virtual/memory_tiering"):
        rank = entry.name.removeprefix("memory_tier")
        if rank.isdigit():
            for node in _ranges(_text(entry / "nodelist") or _text(entry / "nodes")):
                found[node] = int(rank)
    return found


def _ranges(text: str) -> list[int]:
    """The numbers in `0-3,8`."""
    found: list[int] = []
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        if low.isdigit() and (high.isdigit() or not high):
            found += range(int(low), int(high or low) + 1)
    return found


def _listed(system: Path) -> list[int]:
    names = (entry.name.removeprefix("node") for entry in _entries(system) if entry.name.startswith("node"))
    return sorted(int(name) for name in names if name.isdigit())


def _speed(path: Path, unit: int) -> int | None:
    text = _text(path).strip()
    return int(text) * unit if text.isdigit() and int(text) > 0 else None


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _allowed_cpus() -> Collection[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
