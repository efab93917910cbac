"""Child of overhead.py: trains one model in one way and prints step times and peak memory as one line of JSON."""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from pathlib import Path
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
PROFILED_STEP = 1


def tune_malloc() -> None:
    """No block of its own mapping, nothing given back: what keeps glibc from faulting the same pages in each step.

    M_MMAP_MAX=0 and not a large M_MMAP_THRESHOLD, which glibc refuses beyond 32 MiB.
    """
    libc = ctypes.CDLL(None)
    for setting, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1)):
        if libc.mallopt(setting, value) != 1:
            raise SystemExit(f"mallopt({setting}, {value}) was refused")


def peak_rss_bytes() -> int:
    """Most that was resident since the process began, or since `forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def forget_peak() -> None:
    """The peak counts from what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def train(model_name: str, variant: str, warmup: int, steps: int) -> dict[str, Any]:
    """Step times in ns after `warmup` steps, and the two peaks."""
    import torch

    from benchmarks._models import JOBS

    torch.manual_seed(0)
    job = JOBS[model_name]()
    managed = variant == "sentinel"
    if managed:
        import sentinel

        sentinel.annotate(job.model, job.optimizer)
    times, peak_before, loss = [], 0, torch.zeros(())
    for step in range(warmup + steps):
        if managed and step == PROFILED_STEP:
            sentinel.start_profile(fast="100%", slow="emulated:cxl-asic-x8", tracker="ops")
        if step == warmup:
            peak_before = peak_rss_bytes()
            forget_peak()
        began = time.perf_counter_ns()
        job.optimizer.zero_grad()
        loss = job.loss()
        loss.backward()
        job.optimizer.step()
        if step >= warmup:
            times.append(time.perf_counter_ns() - began)
        if managed and step == PROFILED_STEP:
            sentinel.end_profile()
    steady = peak_rss_bytes()
    return {
        "step_ns": times,
        "peak_rss_bytes": max(peak_before, steady),
        "steady_peak_rss_bytes": steady,
        "loss": loss.item(),
        "headline": sentinel.report().headline if managed else None,
    }


def main() -> None:
    """Parse, train, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("variant", choices=["stock", "tuned", "sentinel"])
    parser.add_argument("--warmup", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    chosen = parser.parse_args()
    if chosen.variant == "tuned":
        tune_malloc()
    print(json.dumps(train(chosen.model, chosen.variant, chosen.warmup, chosen.steps)))


if __name__ == "__main__":
    main()
