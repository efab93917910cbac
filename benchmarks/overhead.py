"""Claim: with everything in fast memory a step costs no more than a stock step, in time and in memory.

Per model and round four fresh processes train it: stock PyTorch, stock with malloc tuned so that it faults no page
twice (else that gain would hide what managing costs), the tuned one once more, and Sentinel with fast="100%". They take
turns step by step: while one computes the others wait, so a host that slows down for some seconds slows all of them. A
ratio is that of two steps that ran one after the other; told is the median of a round's ratios. What the second tuned
process is over the first is chance: where the pages of a process lie in the machine's caches stays as it is until it
ends. Goals: at most 1.00 of stock, at most 1.00 of tuned in the mean, peak resident memory at most that of stock, an
inactive add_layer() under 100 ns.

Huge pages bear on all three. `--huge-pages always` lets the kernel give them to all memory, as several distributions
do, and `madvise` to what asks for them, which stock then does through glibc; both need root and are taken back.

    python -m benchmarks.overhead --models gpt2 lstm --rounds 5 > overhead.json
    python -m benchmarks.overhead --huge-pages always > overhead-always.json
"""

from __future__ import annotations

import argparse
import statistics
import sys
import timeit
from collections.abc import Mapping
from typing import Any

from benchmarks import _bench, _huge_pages

MODELS = ("gpt2", "resnet50", "bert", "mobilenetv2", "lstm")
VARIANTS = {"stock": [], "tuned": ["--tuned"], "tuned again": ["--tuned"], "sentinel": ["--sentinel"]}
PROFILED_STEP = 1

Round = dict[str, dict[str, Any]]
"""Of each variant: `step_ns`, both peaks in bytes, and the last loss."""


def inactive_add_layer_ns() -> dict[str, Any]:
    """Time of one `add_layer()` without a session, the loop around it included."""
    import sentinel

    calls = 1_000_000
    runs = [seconds / calls * 1e9 for seconds in timeit.repeat(sentinel.add_layer, number=calls, repeat=7)]
    return {"median": statistics.median(runs), "runs": runs}


def one_round(model: str, warmup: int, steps: int, threads: int, of_stock: Mapping[str, str]) -> Round:
    """Four processes, step by step: who begins a step changes from step to step."""
    options = ["--model", model, "--tracker", "ops"]
    processes = {
        name: _bench.Stepper([*options, *flags], threads, None if name == "sentinel" else of_stock)
        for name, flags in VARIANTS.items()
    }
    found: Round = {name: {"step_ns": [], "peak_rss_bytes": 0} for name in VARIANTS}
    try:
        for step, order in enumerate(_bench.taking_turns(list(VARIANTS), warmup + steps)):
            for name in order:
                told = _step(processes[name], name == "sentinel" and step == PROFILED_STEP)
                if step == warmup - 1:
                    found[name]["peak_rss_bytes"] = told["peak_rss_bytes"]
                    processes[name].do("forget-peak")
                elif step >= warmup:
                    found[name]["step_ns"].append(told["outside_ns"])
                    found[name] |= {"steady_peak_rss_bytes": told["peak_rss_bytes"], "loss": told["loss"]}
    finally:
        for process in processes.values():
            process.close()
    for each in found.values():
        each["peak_rss_bytes"] = max(each["peak_rss_bytes"], each["steady_peak_rss_bytes"])
    return found


def _step(process: _bench.Stepper, profiled: bool) -> dict[str, Any]:
    if profiled:
        process.do("start")
    told = process.do("step")
    if profiled:
        told |= {"peak_rss_bytes": process.do("end")["peak_rss_bytes"]}
    return told


def over(rounds: list[Round], name: str, rival: str) -> dict[str, Any]:
    """Time of a step of `name` over that of `rival` beside it: of each round the median, and all steps."""
    steps = [
        [own / other for own, other in zip(each[name]["step_ns"], each[rival]["step_ns"], strict=True)]
        for each in rounds
    ]
    medians = [{name: statistics.median(ratios), rival: 1.0} for ratios in steps]
    return _bench.paired(medians, name, rival) | {"steps": steps}


def measure(model: str, rounds: int, warmup: int, steps: int, threads: int, huge_pages: str) -> dict[str, Any]:
    """Raw runs, medians and ratios of one model."""
    raw: list[Round] = []
    for number in range(rounds):
        raw.append(one_round(model, warmup, steps, threads, _huge_pages.stock_environment(huge_pages)))
        so_far = {rival: round(over(raw, "sentinel", rival)["rounds"][-1], 3) for rival in ("stock", "tuned")}
        print(f"{model}: round {number + 1} of {rounds}: Sentinel over {so_far}", file=sys.stderr, flush=True)
    peaks, steady = (
        [{name: float(each[name][key]) for name in VARIANTS} for each in raw]
        for key in ("peak_rss_bytes", "steady_peak_rss_bytes")
    )
    return {
        "step_ns": {name: statistics.median(ns for each in raw for ns in each[name]["step_ns"]) for name in VARIANTS},
        "peak_rss_bytes": {name: max(values[name] for values in peaks) for name in VARIANTS},
        "sentinel_over_stock": over(raw, "sentinel", "stock"),
        "sentinel_over_tuned": over(raw, "sentinel", "tuned"),
        "tuned_over_stock": over(raw, "tuned", "stock"),
        "tuned_again_over_tuned": over(raw, "tuned again", "tuned"),
        "peak_rss_over_stock": _bench.paired(peaks, "sentinel", "stock"),
        "steady_peak_rss_over_stock": _bench.paired(steady, "sentinel", "stock"),
        "same_loss": all(len({each[name]["loss"] for name in VARIANTS}) == 1 for each in raw),
        "raw": raw,
    }


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--rounds", type=int, default=5, help="processes of each kind (default %(default)s)")
    parser.add_argument("--warmup", type=int, default=6, help="steps not counted, the profiled one among them")
    parser.add_argument("--steps", type=int, default=10, help="steps counted (default %(default)s)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--huge-pages", choices=_huge_pages.CHOICES, default="as-is", help="(default %(default)s)")
    chosen = parser.parse_args()
    if chosen.warmup <= PROFILED_STEP + 1:
        parser.error(f"--warmup {chosen.warmup}: step {PROFILED_STEP + 1} is profiled, so take at least 3")
    settings = {name: getattr(chosen, name) for name in ("rounds", "warmup", "steps", "threads", "huge_pages")}
    with _huge_pages.chosen(chosen.huge_pages):
        models = {name: measure(name, **settings) for name in chosen.models}
        _bench.emit(
            "no cost when there is nothing to do",
            {"settings": settings},
            {"inactive_add_layer_ns": inactive_add_layer_ns(), "models": models},
        )


if __name__ == "__main__":
    main()
