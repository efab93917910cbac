"""Node: what sysfs tells of one NUMA node."""

from __future__ import annotations

from dataclasses import dataclass, field


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
