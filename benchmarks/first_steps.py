"""Claim: what a user meets, from the first step on, costs little: the whole of it, in a fresh process.

Each round starts two processes that train the same GPT-2, one stock and one with Sentinel, and lets them take turns
step by step: while one computes the other waits for its turn, so both meet the same speed of the host. Five plain
steps; then, in the other process, start_profile(), a watched step, end_profile(), and applied steps with all in fast
memory. Nothing is warmed, prepared or left out but the compilation of the torch shim, which a machine does once: a
small pair of processes goes first and is not counted.

Goals: the watched step at most 1.3 of a stock step; from start_profile() to the first applied step at most 2.5 stock
steps in all, planning apart; an applied step at most 0.95 of a stock one.

    python -m benchmarks.first_steps > first-steps.json              # three rounds, some ten minutes
    python -m benchmarks.first_steps --rounds 1 --shape 4 256 4 128  # a minute
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import _bench

GPT2 = (12, 768, 4, 256)
TINY = (1, 64, 1, 16)
PLAIN, APPLIED = 5, 8


def round_of(shape: Sequence[int], tracker: str, threads: int, applied: int) -> dict[str, Any]:
    """The raw figures of one pair of processes: `stock` and `sentinel` steps in the order in which they ran."""
    options = ["--shape", *map(str, shape), "--tracker", tracker]
    children = [_bench.Stepper(options, threads), _bench.Stepper([*options, "--sentinel"], threads)]
    stock, ours = children
    try:
        pairs = [{"stock": stock.do("step"), "plain": ours.do("step")} for _ in range(PLAIN)]
        start = ours.do("start")
        watched = {"before": stock.do("step"), "watched": ours.do("step"), "after": stock.do("step")}
        end = ours.do("end")
        after = [{"stock": stock.do("step"), "applied": ours.do("step")} for _ in range(applied)]
        headline = ours.do("stop")["headline"]
    finally:
        for child in children:
            child.close()
    return {"plain": pairs, "start": start, "watched": watched, "end": end, "applied": after, "headline": headline}


def summary(turn: dict[str, Any]) -> dict[str, Any]:
    """The ratios of one round, each to the stock steps beside it."""
    stock_ns = statistics.mean(turn["watched"][name]["outside_ns"] for name in ("before", "after"))
    watched_ns = turn["watched"]["watched"]["outside_ns"]
    end_ns = turn["end"]["outside_ns"] - turn["headline"]["plan_ns"]
    setup_ns = turn["start"]["outside_ns"] + watched_ns + end_ns
    applied = [pair["applied"]["outside_ns"] / pair["stock"]["outside_ns"] for pair in turn["applied"]]
    plain = [pair["plain"]["outside_ns"] / pair["stock"]["outside_ns"] for pair in turn["plain"]]
    return {
        "stock_step_ns": stock_ns,
        "plain_over_stock": statistics.median(plain),
        "watched_over_stock": watched_ns / stock_ns,
        "start_over_stock": turn["start"]["outside_ns"] / stock_ns,
        "end_over_stock": end_ns / stock_ns,
        "setup_over_stock": setup_ns / stock_ns,
        "planning_ns": turn["headline"]["plan_ns"],
        "applied_over_stock": {"median": statistics.median(applied), "steps": applied},
        "tracker": turn["headline"]["tracker"],
        "same_losses": _same_losses(turn),
    }


def _same_losses(turn: dict[str, Any]) -> bool:
    """Of every step of ours, applied ones included: stock's of the same number, which is one step ahead in the end."""
    watched, applied = turn["watched"], turn["applied"]
    ours = [*(pair["plain"] for pair in turn["plain"]), watched["watched"], *(pair["applied"] for pair in applied)]
    stock = [pair["stock"] for pair in turn["plain"]]
    stock += [watched["before"], watched["after"], *(pair["stock"] for pair in applied)]
    return all(own["loss"] == other["loss"] for own, other in zip(ours, stock, strict=False))


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=int, nargs=4, default=GPT2, metavar=("LAYERS", "WIDTH", "ROWS", "COLUMNS"))
    parser.add_argument("--rounds", type=int, default=3, help="pairs of processes (default %(default)s)")
    parser.add_argument("--applied", type=int, default=APPLIED, help="applied steps counted (default %(default)s)")
    parser.add_argument("--tracker", default="ebpf")
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    print("a small pair goes first, for what is compiled once a machine", file=sys.stderr, flush=True)
    round_of(TINY, chosen.tracker, chosen.threads, 1)
    raw, rounds = [], []
    for number in range(chosen.rounds):
        raw.append(round_of(chosen.shape, chosen.tracker, chosen.threads, chosen.applied))
        rounds.append(summary(raw[-1]))
        told = {key: round(rounds[-1][key], 2) for key in ("watched_over_stock", "setup_over_stock")}
        told["applied_over_stock"] = round(rounds[-1]["applied_over_stock"]["median"], 2)
        print(f"round {number + 1} of {chosen.rounds}: {told}", file=sys.stderr, flush=True)
    ratios = ("watched_over_stock", "start_over_stock", "end_over_stock", "setup_over_stock")
    medians = {name: statistics.median(row[name] for row in rounds) for name in ratios}
    medians["applied_over_stock"] = statistics.median(row["applied_over_stock"]["median"] for row in rounds)
    settings = {"shape": list(chosen.shape), "tracker": chosen.tracker, "threads": chosen.threads}
    _bench.emit(
        "what a user meets from the first step on",
        {"settings": settings},
        {"medians": medians, "rounds": rounds, "raw": raw},
    )


if __name__ == "__main__":
    main()
