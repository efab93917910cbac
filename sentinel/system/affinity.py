"""The CPUs that this process may use: words for them, and binding to them before threads start."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

from sentinel.core.errors import CapabilityError, UsageError
from sentinel.system.sysfs import as_list, numbers, text
from sentinel.system.topology import Topology

_REMEDY = 'give CPUs such as "0-3,8", or nodes such as "node:0" or "node:0,1"'
_MOST_CPUS = 8192
"""Linux numbers no more of them (CONFIG_MAXSMP)."""
_MOST_DIGITS = 9
"""Of a number that is read at all: Python refuses to read some thousands."""


def cpus_named(words: str, host: Topology) -> frozenset[int]:
    """The CPUs that `0-3,8` or `node:0,1` names on `host`.

    Raises UsageError for words that name none, or a node that is not there or has no CPUs.
    """
    said = f"--cpus {words}"
    of_nodes = words.startswith("node:")
    listed = numbers_told(words.removeprefix("node:"))
    if not listed:
        raise UsageError(f"{said} names no CPUs", _REMEDY)
    if not of_nodes:
        return frozenset(listed)
    with_cpus = ", ".join(str(node.number) for node in host.nodes if node.cpus)
    found: set[int] = set()
    for number in listed:
        node = host.node(number)
        if node is None:
            there = ", ".join(str(n.number) for n in host.nodes) or "none"
            raise UsageError(f"{said}: this host has no node {number} (nodes: {there})", "name one of these")
        if not node.cpus:
            raise UsageError(f"{said}: node {number} has no CPUs, only memory", f"name a node with CPUs: {with_cpus}")
        found.update(node.cpus)
    return frozenset(found)


def bind_to(cpus: Collection[int], root: Path = Path("/")) -> None:
    """All threads of this process, and those that they start, run on `cpus` from now on.

    Nothing changed, raises UsageError where one is not there, CapabilityError where one is not allowed.
    """
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus)
        granted = os.sched_getaffinity(0)
    except (OSError, ValueError, OverflowError):  # none of them may be used, or it is no number of a CPU
        granted = set()
    if granted != set(cpus):
        if granted:
            os.sched_setaffinity(0, before)
        raise _refused(set(cpus), granted, root)
    for thread in map(int, os.listdir("/proc/self/task")):
        try:
            os.sched_setaffinity(thread, cpus)
        except ProcessLookupError:
            continue  # it has ended


def _refused(cpus: set[int], granted: set[int], root: Path) -> UsageError | CapabilityError:
    online = set(numbers(text(root / "sys/devices/system/cpu/online")))
    absent, barred = cpus - online, (cpus & online) - granted
    what = f"binding to CPUs {as_list(cpus)}"
    if absent:
        return UsageError(f"{what}: CPUs {as_list(absent)} are not online (online: {as_list(online)})", _REMEDY)
    return CapabilityError(
        what, f"this process's cpuset forbids CPUs {as_list(barred)}", "name others, or widen the container's cpuset"
    )


def spanning(host: Topology) -> str:
    """The sentence for a process whose CPUs are of several nodes, "" for one at home on one."""
    if len(host.spans) < 2:
        return ""
    nodes = ", ".join(map(str, host.spans))
    return (
        f"this process may run on CPUs of nodes {nodes}: memory that is fast for one is slow for another;"
        f" node {host.fast} is taken as the fast one; `sentinel run --cpus node:{host.fast}` binds it there"
    )


def numbers_told(words: str) -> list[int]:
    """As `numbers`, of words of a user: nothing at all where a part has another form, or a number that no CPU has, and
    so no node."""
    parts = [part.strip() for part in words.split(",")]
    digits = re.findall(r"[0-9]+", words)
    if not words.isascii() or any(len(each) > _MOST_DIGITS or int(each) >= _MOST_CPUS for each in digits):
        return []
    found = [numbers(part) for part in parts]
    return sorted({number for part in found for number in part}) if all(found) else []
