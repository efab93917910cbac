"""Claim: with everything in fast memory a step costs no more than a stock step, in time and in memory.

Per model, three ways of training take turns in fresh processes: stock PyTorch, stock with malloc tuned so that
it faults no page twice (else that gain would hide what managing costs), and Sentinel with fast="100%". Medians
of step times after warm-up; ratios are taken round by round. The goals: at most 1.00 of stock, at most 1.02 of
tuned, peak resident memory at most that of stock, an inactive add_layer() under 100 ns.

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
from typing import Any

from benchmarks import _bench, _huge_pages

MODELS = ("gpt2", "resnet50", "bert", "mobilenetv2", "lstm")
VARIANTS = ("stock", "tuned", "sentinel")
STEP = "benchmarks._step"


def inactive_add_layer_ns() -> dict[str, Any]:
    """Time of one `add_layer()` without a session, the loop around it included."""
    import sentinel

    calls = 1_000_000
    runs = [seconds / calls * 1e9 for seconds in timeit.repeat(sentinel.add_layer, number=calls, repeat=7)]
    return {"median": statistics.median(runs), "runs": runs}


def measure(model: str, rounds: int, warmup: int, steps: int, threads: int, huge_pages: str) -> dict[str, Any]:
    """Raw runs, medians and ratios of one model."""
    environment = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    of_stock = environment | _huge_pages.stock_environment(huge_pages)
    raw: list[dict[str, Any]] = []
    for order in _bench.taking_turns(VARIANTS, rounds):
        raw.append({})
        for variant in order:
            print(f"{model}: round {len(raw)} of {rounds}, {variant}", file=sys.stderr, flush=True)
            options = ["--warmup", str(warmup), "--steps", str(steps)]
            its_own = environment if variant == "sentinel" else of_stock
            raw[-1][variant] = _bench.child(STEP, [model, variant, *options], its_own)
    times = [{name: statistics.median(run["step_ns"]) for name, run in runs.items()} for runs in raw]
    peaks = [{name: float(run["peak_rss_bytes"]) for name, run in runs.items()} for runs in raw]
    steady = [{name: float(run["steady_peak_rss_bytes"]) for name, run in runs.items()} for runs in raw]
    return {
        "step_ns": {name: statistics.median(values[name] for values in times) for name in VARIANTS},
        "peak_rss_bytes": {name: max(values[name] for values in peaks) for name in VARIANTS},
        "sentinel_over_stock": _bench.paired(times, "sentinel", "stock"),
        "sentinel_over_tuned": _bench.paired(times, "sentinel", "tuned"),
        "tuned_over_stock": _bench.paired(times, "tuned", "stock"),
        "peak_rss_over_stock": _bench.paired(peaks, "sentinel", "stock"),
        "steady_peak_rss_over_stock": _bench.paired(steady, "sentinel", "stock"),
        "same_loss": len({run["loss"] for runs in raw for run in runs.values()}) == 1,
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
