"""Headers of files that an earlier version wrote, in the form of today's."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from sentinel.core.counters import Counters
from sentinel.core.run import SYSCALL
from sentinel.files.formats import Format

_MOVED = re.compile(r"pages moved by (.+) to node (-?[0-9]{1,9})")
_REASONS = {
    "this process": SYSCALL,
    "another process": SYSCALL,
    "a change of memory policy": "mempolicy_mbind",
    "NUMA balancing": "numa_misplaced",
    "reclaim (demotion)": "demotion",
    "compaction": "compaction",
    "memory hotplug": "memory_hotplug",
    "memory failure": "memory_failure",
    "pinning": "longterm_pin",
    "DAMON": "damon",
}
"""Who moved pages, in the words of sentinel-run 1 -> the kernel's reason."""
_WITNESSED = {
    "witness records lost": "lost",
    "witness records unmatched": "unmatched",
    "witness pages in huge pages": "huge_pages",
    "witness still watches": "watching",
}

_COUNTED = {f.name for f in fields(Counters)} - {"stayed"}


def upgraded(form: Format, header: Any) -> Any:
    """`header` of a file in the format `form`, its version included, as the present version has it.

    What is not of the form that the earlier version wrote is left as it is, for the decoder to refuse.
    """
    if form.name != "sentinel-run" or form.version > 1:
        return header
    counters = header.get("counters") if isinstance(header, dict) else None
    if not isinstance(counters, dict):
        return header
    rest, witnessed = _run_counters_1(counters)
    return {**header, "counters": rest, **({"witnessed": witnessed} if "lost" in witnessed else {})}


def _run_counters_1(counters: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(counters, witnessed) out of the counters of sentinel-run 1, some of which were sentences.

    A counter that is not counted any more is left out.
    """
    stayed: dict[str, Any] = {}
    rest: dict[str, Any] = {"stayed": stayed}
    moved_by: list[dict[str, Any]] = []
    witnessed: dict[str, Any] = {"moved_by": moved_by}
    for name, count in counters.items():
        if matched := _MOVED.fullmatch(name):
            who, node = matched[1], int(matched[2])
            own = who == "this process"
            moved_by.append({"reason": _REASONS.get(who, who), "own": own, "node": node, "pages": count})
        elif name in _WITNESSED:
            witnessed[_WITNESSED[name]] = count
        elif name.startswith("stayed_"):
            stayed[name.removeprefix("stayed_")] = count
        elif name in _COUNTED:
            rest[name] = count
    moved_by.sort(key=lambda row: (row["reason"], row["own"], row["node"]))
    if "watching" in witnessed:
        witnessed["watching"] = bool(witnessed["watching"])
    return rest, witnessed
