"""What results of benchmarks/two_nodes.py come to: bytes over the slow link and shares served, in one run or more."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sentinel.core.units import PAGE_BYTES
from sentinel.reports.placement_comparison import WITHIN_A_NODE

Found = Mapping[str, Any]
"""What `sentinel compare --executed --json` says of one run of an example."""
Results = Mapping[str, Mapping[str, Any]]
"""Example -> "runs", a list of Found, and "after": steps of warm-up -> Found, of the kernel's tiering alone."""
Figure = Callable[[Found, str], float | None]
"""Of one placement in one run."""

EXAMPLES = ("01_gpt2", "02_resnet", "03_lstm", "04_dlrm")
OURS, TIERING, ALL_SLOW = "sentinel", "kernel-tiering", "all-slow"
REFERENCES = ("all-fast", ALL_SLOW)
MACHINE = "machine.json"
LEAST, MOST = 64 << 20, 200 << 20
"""Bytes of footprint that an example is to have."""


def rates(machine: str) -> tuple[float, float]:
    """GB/s at which the slow tier of that file is read, and that its first link carries."""
    planned = json.loads(machine)["machine"]
    return planned["tiers"][1]["read_bytes_per_s"] / 1e9, planned["links"][0]["bandwidth_bytes_per_s"] / 1e9


WATCHED = "natively"
"""How operators are watched in the measured steps. Results without that are of PyTorch's dispatch mode, under which a
step allocates more than others."""


def are_undisturbed(results: Results) -> bool:
    """Whether watching changed no measured step."""
    runs = (run for found in results.values() for run in found["runs"])
    return all((run.get("settings") or {}).get("watched") == WATCHED for run in runs)


def are_counted(results: Results) -> bool:
    """Whether what tensors had of the fast node is known."""
    return all(tensor_rooms(run) for found in results.values() for run in found["runs"])


def tensor_rooms(found: Found) -> list[float]:
    """What tensors had of the fast node under each limited placement but ours, in the mean, over our budget."""
    rows = [row for row in found["rows"] if row["left_bytes"] is not None and row.get("mean_tensor_bytes") is not None]
    return [row["mean_tensor_bytes"] / ours_of(found)["budget_bytes"] for row in rows]


def watched_share(found: Found, name: str) -> float | None:
    """Of the touched bytes of the measured steps, how many fast memory served. None: not measured."""
    row = row_of(found, name)
    share: float | None = row["served_share"] if row else None
    return share


def own_share(found: Found) -> float:
    """Of the bytes that ours touched in all applied steps, how many fast memory served by the engine's account."""
    counters = ours_of(found)["counters"]
    return float(counters["served_fast_bytes"] / max(counters["touched_bytes"], 1))


def served_share(found: Found, name: str) -> float | None:
    """As watched; of ours the smaller one of that and its own account."""
    share = watched_share(found, name)
    return min(share, own_share(found)) if share is not None and name == OURS else share


def never_rounded_up(share: float) -> str:
    """In percent, with two digits: all but one page is not 100.00."""
    return f"{math.floor(share * 10_000) / 100:.2f}"


def slow_bytes(found: Found, name: str) -> float | None:
    """Bytes that slow memory served a step, as watched in the measured ones; of ours the larger one of that and its own
    account. None: not measured."""
    share = watched_share(found, name)
    row = row_of(found, name)
    if share is None or row is None:
        return None
    watched = (1 - share) * row["touched_bytes"]
    return max(watched, own_slow_bytes(found)) if name == OURS else watched


def own_slow_bytes(found: Found) -> float:
    """Bytes that slow memory served ours a step, in the mean of the applied ones, by the engine's account."""
    counters = ours_of(found)["counters"]
    return float((counters["touched_bytes"] - counters["served_fast_bytes"]) / max(counters["steps"], 1))


def moved_bytes(found: Found, name: str) -> float | None:
    """Bytes that moved between the nodes in a later step: in the mean of the second half of the whole steps, both
    directions together, by the witness. None: nobody watched."""
    row = row_of(found, name)
    return None if row is None or row["skipped"] else row["later_migrated_bytes"]


def moved_in_all_bytes(found: Found, name: str) -> float | None:
    """Bytes that moved between the nodes from the job's start to its end. None: nobody watched."""
    row = row_of(found, name)
    if row is None or row["skipped"] or row["migrated_pages"] is None:
        return None
    pages = sum(n for reason, n in row["migrated_pages"].items() if reason != WITHIN_A_NODE)
    return float(pages * PAGE_BYTES)


def link_bytes(found: Found, name: str) -> float | None:
    """Bytes a step over the slow link: served from slow memory, and moved. None where either is unknown."""
    served, moved = slow_bytes(found, name), moved_bytes(found, name)
    return None if served is None or moved is None else served + moved


def each_run(runs: Sequence[Found], name: str, figure: Figure) -> list[float]:
    """The figure of each run that has it."""
    return [value for run in runs if (value := figure(run, name)) is not None]


def middle(runs: Sequence[Found], name: str, figure: Figure) -> float | None:
    """The median of the runs. None where no run has it."""
    values = each_run(runs, name, figure)
    return statistics.median(values) if values else None


def more_than_all_slow(results: Results) -> list[str]:
    """The examples in which ours brings more bytes over the slow link than if everything stayed slow."""
    return _where(results, lambda runs: _less(runs, ALL_SLOW, OURS))


def fewer_than_tiering(results: Results) -> list[str]:
    """The examples in which ours brings fewer bytes over the slow link than the kernel's tiering."""
    return _where(results, lambda runs: _less(runs, OURS, TIERING))


def _where(results: Results, holds: Callable[[Sequence[Found]], bool]) -> list[str]:
    return [example for example, found in results.items() if holds(found["runs"])]


def _less(runs: Sequence[Found], one: str, other: str) -> bool:
    first, second = middle(runs, one, link_bytes), middle(runs, other, link_bytes)
    return first is not None and second is not None and first < second


def row_of(found: Found, name: str) -> Found | None:
    return next((row for row in found["rows"] if row["name"] == name), None)


def roomy(found: Found) -> dict[str, int]:
    """The limited placements that had room on the fast node for the whole footprint as they began: name -> bytes."""
    left = {row["name"]: row["left_bytes"] for row in found["rows"] if row["left_bytes"] is not None}
    return {name: nbytes for name, nbytes in left.items() if nbytes >= ours_of(found)["footprint_bytes"]}


def profiled_anew(found: Found) -> bool:
    """Whether ours was planned in the emulated machine, for the saved plan was not that of its step."""
    return ours_of(found)["tracker"] is not None


def ours_of(found: Found) -> Found:
    """What only ours has."""
    row = row_of(found, OURS)
    assert row is not None, "no row of ours"
    ours: Found = row["ours"]
    return ours


def steps_of(found: Found) -> int:
    """That the script trained."""
    return int(found["script"].split()[-1])
