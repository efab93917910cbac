"""The calibration of this host that is kept in the user's cache: a Machine of all nodes, as seen from the fast one.

It is found by what it depends on: processor, nodes, their CPUs, memory and distances, and the node that is fast. A
host that is changed, or a process that runs elsewhere, finds none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from sentinel.core.errors import FormatError
from sentinel.core.machine import Machine
from sentinel.files import load_machine, save
from sentinel.system import processor
from sentinel.system.compiler import cache_folder
from sentinel.system.nodes import Node
from sentinel.system.progress import warn

_GIB = 1 << 30


def kept_path(nodes: Sequence[Node], fast: int) -> Path:
    """Where the calibration of these nodes, seen from node `fast`, is kept."""
    about = [(n.number, n.cpus, round(n.total_bytes / _GIB), sorted(n.distances.items())) for n in nodes]
    digest = hashlib.sha256(repr((processor.model(), about, fast)).encode()).hexdigest()
    return cache_folder() / f"machine-{digest[:16]}.json"


def kept(nodes: Sequence[Node], fast: int) -> Machine | None:
    """The calibration that is kept for these nodes, None if there is none. One that cannot be read is warned of."""
    path = kept_path(nodes, fast)
    if not path.exists():
        return None
    try:
        return load_machine(path)
    except (FormatError, OSError) as error:
        said = f"this host's calibration is not used: {error}; run `sentinel calibrate` again"
        warn(said, stacklevel=3)
        return None


def keep(machine: Machine, nodes: Sequence[Node]) -> Path:
    """Keep the calibration `machine` of these nodes for the next session; returns its path. OSError if it can't."""
    fast = machine.fast.node
    if fast is None:
        raise ValueError("a calibration's fast tier is a node")
    path = kept_path(nodes, fast)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    save(machine, path)
    return path


def latencies(machine: Machine) -> dict[int, float]:
    """Node -> measured latency in ns."""
    return {tier.node: tier.latency_ns for tier in machine.tiers if tier.measured and tier.node is not None}
