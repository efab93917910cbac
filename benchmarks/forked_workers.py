"""Claim: workers forked within the profiled step cost no more memory than with stock PyTorch, and little time.

A process trains a model whose parameters and optimizer state are 512 MiB. Between backward and the optimizer it forks
eight workers, which read all parameters and stay alive through the steps that follow: once by os.fork(), once as the
workers of a DataLoader. In Sentinel's case that step is the profiled one. Each process is fresh; memory and time come
from different ones, since whoever looks at memory slows its owner down.

Memory is that of the process and all its descendants, each page shared out among those that map it (Pss of
/proc/PID/smaps_rollup), looked at from outside again and again while all of them stand still: the most counts.

Goals: at its peak at most 1.2 times stock's; the step at most 3 times stock's; the same losses; and each worker has
read the parameters as they were at its birth. Exit 1 where a loss or a reading differs.

    python -m benchmarks.forked_workers > forked-workers.json             # three rounds
    python -m benchmarks.forked_workers --rounds 1 --mib 64 --workers 3   # a minute or two
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import _bench

CHILD = "benchmarks._forked_step"
WAYS = ("fork", "loader")
STOCK, SENTINEL = "stock", "sentinel"
LOOK_EVERY_S = 0.1
STANDS_STILL = "TZX"  # stopped, ended and not yet waited for, gone


def tree(root: int) -> list[int]:
    """`root` and its descendants that are there just now."""
    found = [root]
    for pid in found:
        for thread in _names(Path(f"/proc/{pid}/task")):
            try:
                found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
            except OSError:
                continue  # it has ended
    return found


def pss_bytes(pid: int) -> int:
    """The memory of a process, shared pages in parts; 0 once it has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:"))


def at_once(root: int) -> list[int]:
    """What `root` and its descendants hold. They stand still meanwhile: a fork between two looks would count twice."""
    stopped: list[int] = []
    try:
        while more := [pid for pid in tree(root) if pid not in stopped]:  # one that stands still has no more children
            for pid in more:
                stopped.append(pid)
                _signal(pid, signal.SIGSTOP)
                while state(pid) not in STANDS_STILL:
                    time.sleep(0.0005)
        return [pss_bytes(pid) for pid in stopped]
    finally:
        for pid in reversed(stopped):
            _signal(pid, signal.SIGCONT)


def state(pid: int) -> str:
    """The letter by which the kernel tells what a process does; X where it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def peak(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The most that `process` and its descendants held at one time, until it ends, each of them in the order of their
    births; and how often that was looked at."""
    most: list[int] = []
    looks = 0
    while process.poll() is None:
        began = time.monotonic()
        most = max(most, at_once(process.pid), key=sum)
        looks += 1
        time.sleep(max(LOOK_EVERY_S, time.monotonic() - began))  # at least half the time it runs
    return {"peak_pss_bytes": sum(most), "of_each": most, "looks": looks}


def run(arguments: Sequence[str], watched: bool) -> dict[str, Any]:
    """One fresh process: what it says of itself, and, `watched`, how much memory it took."""
    command = [sys.executable, "-m", CHILD, *arguments]
    process = subprocess.Popen(command, cwd=_bench.ROOT, stdout=subprocess.PIPE, text=True)
    held = peak(process) if watched else {}
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with exit code {process.returncode}")
    said: dict[str, Any] = json.loads(output.splitlines()[-1])
    return said | held


def one_round(order: Sequence[str], way: str, tracker: str, numbers: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Of stock and of Sentinel, in `order`: what an unwatched process took, and what a watched one held."""
    found = {}
    for name in order:
        arguments = [STOCK if name == STOCK else tracker, way, *numbers]
        told = run(arguments, watched=False)
        held = run(arguments, watched=True)
        found[name] = told | {key: held[key] for key in ("peak_pss_bytes", "of_each", "looks")}
    return found


def summed_up(rounds: Sequence[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Sentinel over stock, and whether the bytes are the same."""
    ratios = {
        key: _bench.paired([{name: said[key] for name, said in each.items()} for each in rounds], SENTINEL, STOCK)
        for key in ("peak_pss_bytes", "forked_step_ns")
    }
    return {
        "peak_pss_over_stock": ratios["peak_pss_bytes"],
        "forked_step_over_stock": ratios["forked_step_ns"],
        "median_peak_pss_bytes": {
            name: statistics.median(each[name]["peak_pss_bytes"] for each in rounds) for name in (STOCK, SENTINEL)
        },
        "same_losses": all(each[STOCK]["losses"] == each[SENTINEL]["losses"] for each in rounds),
        "workers_read_the_parameters": all(
            said["workers_read_the_parameters"] for each in rounds for said in each.values()
        ),
        "rounds": list(rounds),
    }


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.forked_workers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, default=512, help="of parameters and optimizer state")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=6, help="after the one in which the workers are born")
    parser.add_argument("--tracker", default="auto", help="of the profiled step")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    options = parser.parse_args()
    numbers = [str(options.mib << 20), str(options.workers), str(options.steps)]
    run([options.tracker, "fork", str(1 << 20), "1", "2"], watched=False)  # the torch shim is compiled once a machine
    results = {}
    for way in options.ways:
        orders = _bench.taking_turns([STOCK, SENTINEL], options.rounds)
        results[way] = summed_up([one_round(order, way, options.tracker, numbers) for order in orders])
    settings = {key: getattr(options, key) for key in ("mib", "workers", "steps", "tracker")}
    _bench.emit((__doc__ or "").splitlines()[0], settings, results)
    fine = all(each["same_losses"] and each["workers_read_the_parameters"] for each in results.values())
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
