"""The calibrations of this host that are kept in the user's cache: a Machine of all nodes, as seen from the fast one,
and one of copies within its memory, which emulated tiers are made of.

Each is found by what it depends on: processor, nodes, their CPUs, memory and distances, and the node that is fast; and
copies by how many CPUs the process may use, since a copy takes from compute what no CPU has left over. A host that is
changed, or a process that runs elsewhere, finds none.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from sentinel.core.errors import CapabilityError, FormatError
from sentinel.core.machine import Machine
from sentinel.files import load_machine, save
from sentinel.files.disk import check_writable
from sentinel.system import processor
from sentinel.system.compiler import cache_folder
from sentinel.system.nodes import Node
from sentinel.system.progress import warn

_GIB = 1 << 30


def kept_path(nodes: Sequence[Node], fast: int) -> Path:
    """Where the calibration of these nodes, seen from node `fast`, is kept."""
    return _path("machine", nodes, fast)


def kept_copies_path(nodes: Sequence[Node], fast: int) -> Path:
    """Where the calibration of copies within node `fast` is kept by processes that may use as many CPUs as this."""
    return _path("copies", nodes, fast, len(os.sched_getaffinity(0)))


def _path(what: str, nodes: Sequence[Node], *place: int) -> Path:
    about = [(n.number, n.cpus, round(n.total_bytes / _GIB), sorted(n.distances.items())) for n in nodes]
    digest = hashlib.sha256(repr((processor.model(), about, *place)).encode()).hexdigest()
    return cache_folder() / f"{what}-{digest[:16]}.json"


def kept(nodes: Sequence[Node], fast: int) -> Machine | None:
    """The calibration that is kept for these nodes, None if there is none. One that cannot be read is warned of."""
    return _read(kept_path(nodes, fast))


def kept_copies(nodes: Sequence[Node], fast: int) -> Machine | None:
    """The calibration of copies that is kept for node `fast`: two tiers, whose links have the rate of a copy and what
    it takes from compute. None if there is none; one that cannot be read is warned of."""
    return _read(kept_copies_path(nodes, fast))


def _read(path: Path) -> Machine | None:
    try:
        there = path.exists()
    except OSError:  # of a folder that this process may not enter
        return None
    if not there:
        return None
    try:
        return load_machine(path)
    except (FormatError, OSError) as error:
        said = f"this host's calibration is not used: {error}; run `sentinel calibrate` again"
        warn(said, stacklevel=4)
        return None


def keep(machine: Machine, nodes: Sequence[Node]) -> Path:
    """Keep the calibration `machine` of these nodes for the next session; returns its path. OSError if it can't."""
    return _write(machine, kept_path(nodes, _fast(machine)))


def keep_copies(machine: Machine, nodes: Sequence[Node]) -> Path:
    """Keep what `machine` tells of copies within its fast node, for plans of emulated tiers; returns its path. OSError
    if it can't."""
    return _write(machine, kept_copies_path(nodes, _fast(machine)))


def check_keeping() -> None:
    """Raises CapabilityError where nothing can be kept, as far as it is known beforehand."""
    folder = cache_folder()
    try:
        _make(folder)
        check_writable(folder / "machine.json")
    except (OSError, FormatError) as error:
        raise CapabilityError(
            f"the calibration cannot be kept in {folder}", str(error), "give -o FILE, or set XDG_CACHE_HOME"
        ) from error


def _fast(machine: Machine) -> int:
    if machine.fast.node is None:
        raise ValueError("a calibration's fast tier is a node")
    return machine.fast.node


def _write(machine: Machine, path: Path) -> Path:
    _make(path.parent)
    save(machine, path)
    return path


def _make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def latencies(machine: Machine) -> dict[int, float]:
    """Node -> measured latency in ns."""
    return {tier.node: tier.latency_ns for tier in machine.tiers if tier.measured and tier.node is not None}
