"""Files that an earlier version wrote, in the form of today's."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

import numpy as np

from sentinel.core.counters import Counters
from sentinel.core.errors import UsageError
from sentinel.core.extents import cut_extents
from sentinel.core.profile import ACCESS_DTYPE, Profile
from sentinel.core.run import SYSCALL
from sentinel.files.codec import Misfit, decode
from sentinel.files.digests import Noun, canonical, checksum
from sentinel.files.formats import BY_NAME, TEXTS, Format

MOST_ACCESSES = 10_000_000
"""Of page ranges in layers, that a profile of version 2 is read as: some 2 GiB. The file itself may be 1,000 times
smaller."""

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


def noun_of(form: Format, header: Any, tables: dict[str, Any]) -> Noun:
    """The noun in a file of `form`, of any version. Raises Misfit for what its fields do not want."""
    if form.noun is Profile and "ranges" in tables:
        return _cut(form, header, tables)
    wanted = BY_NAME[form.name].tables
    missing = {  # texts stood in the header
        name: np.zeros(0, dtype) for name, dtype in wanted.items() if name not in tables and dtype != TEXTS
    }
    noun: Noun = decode(form.noun, upgraded(form, header), {**tables, **missing})
    return noun


def _cut(form: Format, header: Any, tables: dict[str, Any]) -> Profile:
    """A profile that knew whole tensors, with page ranges beside them.

    Its digest is another one now. So its origin names the profile that it was, by which plans of it name it.
    """
    now = {name: table for name, table in tables.items() if name != "ranges"}
    now["accesses"] = tables["accesses"].view(ACCESS_DTYPE)
    whole: Profile = decode(Profile, header, now)
    try:
        profile = cut_extents(whole, tables["ranges"], MOST_ACCESSES)
    except UsageError as error:
        raise Misfit(str(error), "ranges") from error
    said = {name: value for name, value in header.items() if name != "origin"}
    columns = {f"{table}.{name}": rows[name] for table, rows in tables.items() for name in rows.dtype.names or ()}
    columns |= {table: rows for table, rows in tables.items() if rows.dtype.names is None}
    return replace(profile, origin={**profile.origin, "profile": checksum(form, canonical(said), columns)})


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
