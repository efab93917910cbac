"""Claim: at equal fast memory, page ranges serve more of the touches of a DLRM from fast memory than whole tensors do.

Tables of skewed rows, the most frequent first, with sparse gradients: one step is profiled by pages; plans are made
of it with page ranges and with whole tensors; the pages that later steps touch, seen by the same tracker, say how
much each plan serves *then*. In the control the rows are in random order: every page is as hot as any other, and
ranges must gain nothing. Losses must be those of the same training without Sentinel, to the bit.

Nothing here is timed. Where the slow tier is emulated its delays are, and tensors keep their pages; `planned` and
`observed` count where the plan has the pages.

    python -m benchmarks.page_ranges > page_ranges.json
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from benchmarks import _bench

CHILD = "benchmarks._ranged_step"
PROFILED_STEP = "1"


def run(order: str, options: list[str], environment: dict[str, str], *, stock: bool = False) -> dict[str, Any]:
    """The child's answer."""
    print(f"page_ranges: rows {order}{', stock' if stock else ''} ...", file=sys.stderr)
    return _bench.child(CHILD, ["--order", order, *options, *(["--stock"] if stock else [])], environment)


def summary(cell: dict[str, Any]) -> dict[str, Any]:
    """Shares that fast memory serves, by page ranges, by whole tensors, and their difference in points."""
    found = {name: cell[name] for name in ("machine", "fast", "fast_bytes")}
    for what in ("planned", "observed", "observed_tables"):
        shares = {kind: _later(cell[kind][what]) for kind in ("ranged", "whole")}
        found[what] = {**shares, "points": round(100 * (shares["ranged"] - shares["whole"]), 1)}
    found["moved_ratio"] = _ratio(*(cell[kind]["migrated_bytes_per_step"] for kind in ("ranged", "whole")))
    return found


def _later(share: float | dict[str, float]) -> float:
    """The median over the steps after the profiled one; a planned share is one number."""
    if isinstance(share, dict):
        return statistics.median(value for step, value in share.items() if step != PROFILED_STEP)
    return share


def _ratio(ranged: float, whole: float) -> float | None:
    return ranged / whole if whole else None


def line(order: str, found: dict[str, Any]) -> str:
    """One row of the table."""
    shares = (
        f"{found[what][kind]:6.1%}"
        for what in ("planned", "observed", "observed_tables")
        for kind in ("ranged", "whole")
    )
    return f"{order:9}{found['machine']:24}{found['fast']:>5}  " + "  ".join(shares)


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", nargs="+", default=["5%", "10%", "20%", "40%"])
    parser.add_argument("--machines", nargs="*", default=["cxl-m5"], help="described machines to plan for too")
    parser.add_argument("--slow", default="emulated:cxl-asic-x8")
    parser.add_argument("--tracker", default="ebpf")
    parser.add_argument("--rows", default="100000")
    parser.add_argument("--skew", default="1.2")
    parser.add_argument("--optimizer", default="adagrad")
    parser.add_argument("--threads", default="1")
    chosen = parser.parse_args()
    job = ["--rows", chosen.rows, "--skew", chosen.skew, "--optimizer", chosen.optimizer]
    options = [*job, "--tracker", chosen.tracker, "--slow", chosen.slow]
    options += ["--machines", *chosen.machines, "--fast", *chosen.fast]
    environment = {"OMP_NUM_THREADS": chosen.threads, "MKL_NUM_THREADS": chosen.threads}
    raw = {order: run(order, options, environment) for order in ("sorted", "shuffled")}
    stock = run("sorted", options, environment, stock=True)
    results = {order: [summary(cell) for cell in told["cells"]] for order, told in raw.items()}
    columns = "planned: ranges, whole; observed later: ranges, whole; of these the tables: ranges, whole"
    print(f"rows, machine, fast; served from fast memory, {columns}", file=sys.stderr)
    for order, cells in results.items():
        for found in cells:
            print(line(order, found), file=sys.stderr)
    identical = stock["losses"] == raw["sorted"]["losses"]
    print(f"losses bit-identical to stock over {len(stock['losses'])} steps: {identical}", file=sys.stderr)
    settings = {name: getattr(chosen, name) for name in ("rows", "skew", "optimizer", "tracker", "slow", "threads")}
    _bench.emit(
        "served from fast memory by page ranges and by whole tensors",
        {**settings, "bit_identical_to_stock": identical},
        {**results, "raw": raw},
    )
    if not identical:
        raise SystemExit("the losses differ from those of stock training")


if __name__ == "__main__":
    main()
