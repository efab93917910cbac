"""docs/fetched.md from docs/fetched.json.

python -m benchmarks.fetched > docs/fetched.json; python -m benchmarks.fetched_page
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks._page_parts import Told, goal, table, where
from sentinel.core.units import format_bytes

DOCS = Path(__file__).resolve().parents[1] / "docs"
_MACHINES = {"gpu": "GPU", "disk": "disk"}
_HEAD = """# Slow memory that cannot be used in place

`python -m benchmarks.fetched > docs/fetched.json`, {where}

What is on a disk, or in the host's memory behind a GPU, has to come to fast memory before it is used. Each plan here
keeps to that. **All of it is simulated**, with described machines and models traced under fake tensors; no run of
Sentinel places tensors on a GPU, and with a file as slow tier training reads ahead without a plan
([a file as slow tier](storage.md)). `--slow emulated:nvme-gen4` carries such a plan out with injected waits.

- *GPU*: 100 TFLOP/s, 3,350 GB/s of its own memory, 55 GB/s each way to its host. *Disk*: 1.5 TFLOP/s, DRAM, and an NVMe
  disk that reads 7 and writes 5 GB/s, one at a time.
- *fast*: fast memory, as a share of the step's footprint. Other columns are shares of the speed with everything in fast
  memory.
- *window*: what the next layers use is fetched some layers ahead and leaves right after its use; the best number of
  layers for each step. *Just in time*: fetched one layer ahead, but what is needed again soonest stays as far as there
  is room, about what plans were until 30 November 2026. *Ours*: policy `sentinel`.
- *bound*: of plans of this kind, which move between whole layers, a copy of all bytes each way, and hold room on both
  sides of a move. *Window bound*: of any execution, whose moves may begin and end within layers, and which need not
  copy back what nobody changed ([how it is counted](decisions/0141-the-window-bound-is-told.md)).
"""
_BETWEEN = """
## A tier in between

Three tiers in one plan: DRAM, CXL memory to which pages move at 5 GB/s, and the disk, which here reads while it writes.
What is not in DRAM is in CXL memory, where it is used in place or fetched, or on the disk, from which it is fetched.
"""


def page(told: Told) -> str:
    """The page as Markdown."""
    return "\n".join(_lines(told)) + "\n"


def _lines(told: Told) -> Iterator[str]:
    rows, between, least = told["results"]["rows"], told["results"]["between"], told["settings"]["least"]
    fit = [row for row in rows if "needed_bytes" not in row]
    yield _HEAD.format(where=where(told))
    heads = (
        "model",
        "machine",
        "fast",
        "window",
        "just in time",
        "ours",
        "bound",
        "ours, of the bound",
        "window bound",
    )
    yield from table(heads, (tuple(_cells(row)) for row in rows))
    yield ""
    worst = min(row["bound_ns"] / row["sentinel_ns"] for row in fit)
    loose = [row["window_bound_ns"] / row["sentinel_ns"] for row in fit]
    behind = sum(
        row["sentinel_ns"] > min(row["window_ns"] or row["just_in_time_ns"], row["just_in_time_ns"]) for row in fit
    )
    reached = sum(share >= least for share in loose)
    goals = (
        goal(f"at least {least} of the bound's speed in each of {len(fit)} rows (least {worst:.3f})", worst >= least),
        goal(f"never behind a window, nor just in time ({behind} times)", not behind),
        goal(
            f"at least {least} of the window bound's speed in each (in {reached}, least {min(loose):.2f})",
            reached == len(fit),
        ),
    )
    yield f"Goals: {'; '.join(goals)}."
    yield _BETWEEN
    tiers = ("model", "DRAM", "CXL", "without CXL", "ours", "window bound")
    yield from table(tiers, (tuple(_cells_between(row)) for row in between))


def _cells(row: Told) -> Iterator[str]:
    yield from (row["model"], _MACHINES[row["machine"]], f"{row['share']:.0%}")
    if "needed_bytes" in row:
        needed = format_bytes(row["needed_bytes"])
        share = row["needed_bytes"] / row["footprint_bytes"]
        yield from ("-", "-", f"a layer, and what moves beside it, needs {needed} ({share:.0%})", "-", "-")
    else:
        yield from (_speed(row, name) for name in ("window_ns", "just_in_time_ns", "sentinel_ns", "bound_ns"))
        yield f"{row['bound_ns'] / row['sentinel_ns']:.3f}"
    yield _speed(row, "window_bound_ns")


def _cells_between(row: Told) -> Iterator[str]:
    yield from (row["model"], f"{row['dram']:.0%}", f"{row['cxl']:.0%}")
    yield from (_speed(row, name) for name in ("without_ns", "three_ns", "window_bound_ns"))


def _speed(row: Told, name: str) -> str:
    """The share of the speed with everything in fast memory; a dash where there is no plan."""
    return "-" if row[name] is None else f"{row['all_fast_ns'] / row[name]:.3f}"


if __name__ == "__main__":
    (DOCS / "fetched.md").write_text(page(json.loads((DOCS / "fetched.json").read_text())))
