"""Settings of the kernel that a comparison changes while it runs: seen before, put back where a child was killed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from sentinel.executed.node_memory import as_before_a_comparison

ROOT = Path("/")
_SETTINGS = (
    "proc/sys/kernel/numa_balancing",
    "proc/sys/vm/percpu_pagelist_high_fraction",
    "sys/kernel/mm/numa/demotion_enabled",
    "sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs",
)
_WEIGHTS = "sys/kernel/mm/mempolicy/weighted_interleave"
_AUTOMATIC = f"{_WEIGHTS}/auto"
"""Turned off by each weight that is written, so put back after these (Linux 6.16)."""
_CGROUPS = "sys/fs/cgroup"
_CONTROL = f"{_CGROUPS}/cgroup.subtree_control"
_MEMORY = "memory"
"""The one controller that a comparison turns on; others are not ours to put back."""


def settings_now(root: Path = ROOT) -> dict[str, str]:
    """Path below `root` -> what it says; those that are not there are left out."""
    weights = sorted(path.relative_to(root).as_posix() for path in (root / _WEIGHTS).glob("node*"))
    found = {}
    for name in (*_SETTINGS, *weights, _AUTOMATIC, _CONTROL):
        with contextlib.suppress(OSError):
            said = (root / name).read_text().strip()
            found[name] = said if name != _CONTROL else _MEMORY * (_MEMORY in said.split())
    return found


def put_back(before: Mapping[str, str], root: Path = ROOT) -> list[str]:
    """Write what differs from `before`; a sentence for each, also for what could not be written. Settings that a
    comparison does not change are not written, whatever `before` says: it may be a file of anybody's."""
    for folder in sorted((root / _CGROUPS).glob("sentinel-compare-*")):
        with contextlib.suppress(OSError):  # of another one that still runs, or not ours
            folder.rmdir()
    said = []
    for name, found in before.items():
        now = settings_now(root)  # one that is written may change another
        if name not in now or not isinstance(found, str):
            said.append(f"{name!a} could not be written: it is no setting that a comparison changes here, or no text")
            continue
        value = as_before_a_comparison(Path("/", name), found)
        if now.get(name) == value:
            continue
        try:
            (root / name).write_text(value if name != _CONTROL else f"{'+' if value else '-'}{_MEMORY}")
            said.append(f"/{name} was {now.get(name, '')!r} and is {value!r} again")
        except OSError as error:
            said.append(f"/{name} is {now.get(name, '')!r}, was {value!r}, and could not be written: {error.strerror}")
    return said
