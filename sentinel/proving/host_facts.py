"""What is told of the host: what bears on results, from a list. Nothing that says whose host it is."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from sentinel.system import limits, processor
from sentinel.system.sysfs import text
from sentinel.system.topology import topology

_PACKAGES = ("torch", "numpy", "highspy", "transformers", "scikit-learn")
_HUGE = Path("/sys/kernel/mm/transparent_hugepage")


def host() -> dict[str, Any]:
    """Kernel, processor, nodes and versions."""
    seen = topology()
    return {
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "processor": processor.model(),
        "cpus": len(os.sched_getaffinity(0)),
        "last_cache_bytes": processor.last_cache_bytes(),
        "virtual": processor.is_virtual(),
        "emulated": processor.is_emulated(),
        "memory_bytes": limits.host_bytes(),
        "huge_pages": {name: _chosen(_HUGE / name) for name in ("enabled", "defrag")},
        "fast_node": seen.fast,
        "slower_nodes": list(seen.slower),
        "decided_by": seen.decided_by,
        "nodes": [
            {
                "number": node.number,
                "cpus": len(node.cpus),
                "memory_bytes": node.total_bytes,
                "distances": {str(other): distance for other, distance in node.distances.items()},
                "firmware_read_latency_ns": node.read_latency_ns,
                "firmware_read_bytes_per_s": node.read_bytes_per_s,
                "memory_tier": node.memory_tier,
            }
            for node in seen.nodes
        ],
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def fast_node_bytes(facts: dict[str, Any]) -> int:
    """What the fast node has, 0 where the host tells of no nodes."""
    return int(next((node["memory_bytes"] for node in facts["nodes"] if node["number"] == facts["fast_node"]), 0))


def same_host(facts: dict[str, Any]) -> dict[str, Any]:
    """Those facts by which a proof that is gone on with knows that it is on the host that it began on."""
    return {name: facts[name] for name in ("processor", "cpus", "kernel", "memory_bytes")}


def allowed(_order: None = None) -> dict[str, Any]:
    """What the doctor finds: by name whether it is there, and where not, what for and how to allow it."""
    from sentinel.profiler.selftest import automatic, check_host, check_trackers

    trials, found = check_trackers(), check_host()
    return {
        "tracker": automatic(trials)[0],
        "there": [each.name for each in found if each.available],
        "missing": [
            {"name": each.name, "needed_for": each.needed_for, "remedy": each.remedy}
            for each in found
            if not each.available
        ],
        "trackers": [trial.tracker for trial in trials if trial.available],
        "trackers_missing": [
            {"name": trial.tracker, "needed_for": "page touches", "remedy": trial.remedy}
            for trial in trials
            if not trial.available
        ],
    }


def _chosen(path: Path) -> str | None:
    """The bracketed word of a sysfs choice."""
    return text(path).partition("[")[2].partition("]")[0] or None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
