"""Child of first_steps.py: trains a GPT-2 and does one thing at a time, as it is told on its standard input.

Each line of input is a word; each answer is a line of JSON with what it took. The words: `step`, one training step;
`start`, sentinel.start_profile(); `end`, sentinel.end_profile(); `stop` ends the process.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks._profiled_step import gpt2, training_step


def spent(action: Callable[[], Any]) -> dict[str, Any]:
    """Wall time, processor time of all threads and page faults of `action`, and the loss where it returns one."""
    before, cpu, began = resource.getrusage(resource.RUSAGE_SELF), time.process_time_ns(), time.perf_counter_ns()
    result = action()
    wall_ns, cpu_ns = time.perf_counter_ns() - began, time.process_time_ns() - cpu
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before.ru_minflt
    told = {"wall_ns": wall_ns, "cpu_ns": cpu_ns, "faults": faults}
    return told | ({"loss": result} if isinstance(result, float) else {})


def main() -> None:
    """Parse, then do as told."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentinel", action="store_true", help="annotate the model, as one does for Sentinel")
    parser.add_argument("--shape", type=int, nargs=4, required=True)
    parser.add_argument("--tracker", default="ebpf")
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    model, optimizer, tokens = gpt2(*chosen.shape)
    if chosen.sentinel:
        import sentinel

        sentinel.annotate(model, optimizer)

    def start() -> None:
        sentinel.start_profile(fast="100%", slow="emulated:cxl-asic-x8", tracker=chosen.tracker)

    def end() -> None:
        sentinel.end_profile()

    actions = {"step": training_step(model, optimizer, tokens), "start": start, "end": end}
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        word = line.strip()
        if word == "stop":
            break
        print(json.dumps(spent(actions[word])), flush=True)
    print(json.dumps({"headline": dict(sentinel.report().headline) if chosen.sentinel else None}), flush=True)


if __name__ == "__main__":
    main()
