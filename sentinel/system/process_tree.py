"""A process and all that it has started: which processes these are, what they took, and where they may run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from sentinel.system.sysfs import numbers


class Process(NamedTuple):
    """`ticks`: of the clock (`SC_CLK_TCK` a second) that it and those that it has waited for were on a processor."""

    parent: int
    ticks: int


def processes(root: Path = Path("/")) -> dict[int, Process]:
    """Those that there are and may be seen, by their numbers."""
    found = {}
    for name in _names(f"{root}/proc"):
        told = _read(f"{root}/proc/{name}/stat").rpartition(")")[2].split()  # a name may have anything in it
        if len(told) > 14:
            found[int(name)] = Process(int(told[1]), sum(map(int, told[11:15])))
    return found


def tree(pid: int, found: Mapping[int, Process]) -> list[int]:
    """A process, its children, theirs, and so on, as far as they are in `found`."""
    children: dict[int, list[int]] = {}
    for each, told in found.items():
        children.setdefault(told.parent, []).append(each)
    listed = [pid] if pid in found else []
    for each in listed:  # grows as it goes
        listed += sorted(children.get(each, []))
    return listed


def ticks(pid: int, found: Mapping[int, Process]) -> int:
    """Of the process and all below it, and of those that they have waited for."""
    return sum(found[each].ticks for each in tree(pid, found))


def allowed(pids: Iterable[int], root: Path = Path("/")) -> frozenset[int]:
    """The processors that any thread of these processes may run on: OpenMP binds each of its threads to its own."""
    cpus: set[int] = set()
    for pid in pids:
        for thread in _names(f"{root}/proc/{pid}/task"):
            told = _read(f"{root}/proc/{pid}/task/{thread}/status")
            cpus.update(numbers(told.rpartition("Cpus_allowed_list:")[2].partition("\n")[0]))
    return frozenset(cpus)


def _names(folder: str) -> list[str]:
    """Those that are numbers; none where there is no such folder, as of a process that has ended."""
    try:
        return [name for name in os.listdir(folder) if name.isdigit()]
    except OSError:
        return []


def _read(path: str) -> str:
    """Without a buffer: a host may have thousands of processes. By an object, which an interrupt closes wherever it
    comes."""
    try:
        with FileIO(path) as file:
            return file.read(1 << 16).decode(errors="replace")  # a name that the kernel cut may end within a letter
    except OSError:  # there is none, or it ended meanwhile
        return ""
