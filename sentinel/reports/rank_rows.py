"""What each rank of a job says of itself beside its report's headline, and the row that it is shown in."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sentinel.core.errors import FormatError
from sentinel.core.plan import Plan
from sentinel.files.disk import open_regular, read_exactly
from sentinel.reports.forms import FORMAT
from sentinel.system.launched import Launched
from sentinel.system.process_start import started_at

MOST_BYTES = 1 << 30
"""Of a report that is read."""
MOST_RANKS = 1 << 20
"""Of a job. A report over all ranks has a row for each, also of those that left nothing."""
TRAINS, ENDED, FAILED = "trains", "ended", "failed"


class RankRow(NamedTuple):
    """One rank. `state`: what became of it, in words. `headline`: of its report, empty where there is none. `told`:
    what `told_by` gave; empty of a rank that left nothing."""

    rank: int
    state: str
    headline: Mapping[str, Any]
    told: Mapping[str, Any]
    caveats: Sequence[str] = ()


def told_by(who: Launched, state: str, plan: Plan | None, script: str | None) -> dict[str, Any]:
    """What a report says of the rank that it is of. `state`: TRAINS, ENDED or FAILED."""
    return {
        "rank": who.rank,
        "size": who.size,
        "node": os.uname().nodename,
        "pid": os.getpid(),
        "started": started_at(os.getpid()),
        "job": hashlib.sha256(who.job.encode()).hexdigest()[:16],
        "state": state,
        "written_s": time.time(),
        "placement": None if plan is None else placement_digest(plan),
        "script": script,
    }


def placement_digest(plan: Plan) -> str:
    """The same for plans that place and move the same bytes at the same layers, whatever times they were made for."""
    blocks = [(b.offset, b.nbytes, b.start, b.stop, b.tier) for b in plan.blocks]
    moves = [(m.block, m.source, m.target, m.start, m.due) for m in plan.migrations]
    return hashlib.sha256(repr((plan.capacity_bytes, blocks, moves)).encode()).hexdigest()[:16]


def read(path: str | os.PathLike[str]) -> RankRow:
    """The row of a rank's JSON report. Raises FormatError for what is none, or of no rank."""
    with open_regular(path, MOST_BYTES) as (file, nbytes):
        data = read_exactly(file, nbytes, path)
    try:
        value = json.loads(data)
    except ValueError as error:
        if os.fspath(path).endswith(".safetensors"):
            raise FormatError(
                path, "file", "is no report of a rank; give a profile with --profile, a run with --run"
            ) from None
        raise FormatError(path, "file", f"is no JSON ({error}); give reports of ranks, such as r.rank0.json") from None
    except RecursionError:
        raise FormatError(path, "file", "is nested too deeply for a report; give r.rank0.json and so on") from None
    told = value.get("rank") if isinstance(value, dict) and value.get("format") == FORMAT else None
    numbers = [told.get(name) for name in ("rank", "size")] if isinstance(told, dict) else []
    headline = value.get("headline") if isinstance(value, dict) else None
    if not isinstance(told, dict) or not numbers or not all(type(n) is int and n >= 0 for n in numbers):
        raise FormatError(
            path, "rank", "is missing: this is not a report of one rank of several; give r.rank0.json and so on"
        )
    if not told["rank"] < told["size"] <= MOST_RANKS:
        raise FormatError(
            path,
            "rank",
            f"is rank {told['rank']} of {told['size']}, where ranks count from 0 to at most {MOST_RANKS - 1}",
        )
    caveats = value.get("caveats")
    return RankRow(
        told["rank"],
        _state(told),
        _figures(headline) if isinstance(headline, dict) else {},
        {name: each for name, each in told.items() if name not in _WORDS or isinstance(each, str)},
        [str(caveat) for caveat in caveats] if isinstance(caveats, list) else (),
    )


_WORDS = frozenset(("node", "job", "placement", "script"))
"""Of what `told_by` gives, what is text, or is missing."""


def _figures(headline: Mapping[str, Any]) -> dict[str, Any]:
    """Those that a table can hold: a file may come from anywhere."""
    return {
        name: value
        for name, value in headline.items()
        if (isinstance(value, str) if name == "kind" else isinstance(value, int | float) and abs(value) < 1 << 63)
    }


def absent(rank: int) -> RankRow:
    """The row of a rank that left nothing."""
    return RankRow(rank, "left no report: it ended within its first steps, or its files are elsewhere", {}, {})


def _state(told: Mapping[str, Any]) -> str:
    """In words. Whether a process lives is known on its own node only."""
    if told.get("state") != TRAINS:
        return "ended" if told.get("state") == ENDED else "failed"
    pid, started = told.get("pid"), told.get("started")
    here = told.get("node") == os.uname().nodename and isinstance(pid, int)
    if here and isinstance(pid, int) and started_at(pid) != started:
        return "died: this is its last report"
    return "had not ended when this was written"
