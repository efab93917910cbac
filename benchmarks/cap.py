"""Claim: a GPT-2 whose tensors exceed their memory trains from a file, bit-identically, faster than from swap.

Processes train the same GPT-2 with AdamW, and take turns step by step: stock PyTorch with all the memory it wants;
stock in a memory cgroup, with a swap file beside Sentinel's file (`--swap`: as root, on a host without other swap; it
belongs to the whole host while this runs); and Sentinel with a budget for tensors and no plan. The swapping process
may hold as much as a Sentinel process held at its peak, in a cgroup that counts, before: page cache is in both.

A step is seen from outside. The first two steps, in which memory and optimizer state are born, are not counted.
Printed beside: what moved, what operators waited, and the pace of the disk as far as they waited for it.

Goals: the same losses. The time that the budget adds to a step: at most a quarter of what swap adds. Exit 1 where a
loss differs.

    python -m benchmarks.cap --directory /data/scratch --swap > cap.json                     # as root
    python -m benchmarks.cap --directory . --shape 4 512 2 128 --fast 200MiB --steps 3       # a minute
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import _bench
from sentinel.core.units import parse_bytes

STOCK, SWAP, SENTINEL = "stock", "swap", "sentinel"
BORN = 2  # steps
CGROUPS = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max", "memory.peak"),
)
"""Of both versions: where, the file that takes a limit, the file that tells the peak."""


@contextlib.contextmanager
def cgroup() -> Iterator[tuple[Path, str, str] | None]:
    """A memory cgroup, with its two files; None where none can be made."""
    for root, limit, peak in CGROUPS:
        folder = root / f"sentinel-cap-{os.getpid()}-{time.monotonic_ns()}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            if (folder / limit).exists():
                try:
                    yield folder, limit, peak
                finally:
                    _remove(folder)
                return
            folder.rmdir()
    yield None


@contextlib.contextmanager
def swap_file(folder: Path, nbytes: int) -> Iterator[str]:
    """The host swaps to a file in `folder` meanwhile; gives why it does not, or ""."""
    if any(line.startswith("/") for line in Path("/proc/swaps").read_text().splitlines()[1:]):
        yield "this host has swap of its own, which would be measured too"
        return
    path = folder / f"sentinel-cap-{os.getpid()}.swap"
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
        finally:
            os.close(descriptor)
        refused = _tried("mkswap", str(path)) or _tried("swapon", str(path))
        try:
            yield refused
        finally:
            if not refused:
                subprocess.run(["swapoff", str(path)], check=True)
    finally:
        path.unlink(missing_ok=True)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Sentinel and stock, and swap where it can be had, step by step."""
    results: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(cgroup())
        words = ["--budget", options.fast] if options.cap is None else ["--cap", options.cap]
        ours = [*_shape(options), *words, "--file", options.directory]
        told = _trained({SENTINEL: ours + _join(group)}, options)
        if group is not None:
            results["sentinel_peak_bytes"] = int((group[0] / group[2]).read_text())
            if options.cap is not None:
                results["peak_over_cap"] = results["sentinel_peak_bytes"] / parse_bytes(options.cap)
        results["storage"] = told[SENTINEL]["storage"]
    processes = {STOCK: _shape(options), SENTINEL: ours}
    with contextlib.ExitStack() as stack:
        if not options.swap:
            results["no_swap"] = "--swap was not asked for"
        elif (group := stack.enter_context(cgroup())) is None:
            results["no_swap"] = "no memory cgroup can be made here: run as root, with a writable /sys/fs/cgroup"
        else:
            refused = stack.enter_context(swap_file(Path(options.directory), options.swap_bytes))
            if refused:
                results["no_swap"] = refused
            else:
                (group[0] / group[1]).write_text(str(results["sentinel_peak_bytes"]))
                processes[SWAP] = _shape(options) + _join(group)
        told = _trained(processes, options)
    return results | _summed_up(told)


def _trained(processes: dict[str, Sequence[str]], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    steppers: dict[str, _bench.Stepper] = {}
    found: dict[str, dict[str, Any]] = {name: {"ns": [], "losses": []} for name in processes}
    try:
        for name, words in processes.items():
            steppers[name] = _bench.Stepper(words, options.threads)
        for order in _bench.taking_turns(list(processes), BORN + options.steps):
            for name in order:
                told = steppers[name].do("step")
                found[name]["ns"].append(told["outside_ns"])
                found[name]["losses"].append(told["loss"])
        for name, stepper in steppers.items():
            found[name]["storage"] = stepper.do("stop").get("storage")
    finally:
        for stepper in steppers.values():
            stepper.close()
    return found


def _summed_up(told: dict[str, dict[str, Any]]) -> dict[str, Any]:
    rounds = [dict(zip(told, times, strict=True)) for times in zip(*(told[n]["ns"][BORN:] for n in told), strict=True)]
    stored = told[SENTINEL]["storage"]
    moved = stored["read_bytes"] + stored["written_bytes"]
    found: dict[str, Any] = {
        "same_losses": len({tuple(each["losses"]) for each in told.values()}) == 1,
        "step_s": {name: statistics.median(each["ns"][BORN:]) / 1e9 for name, each in told.items()},
        "over_stock": {name: _bench.paired(rounds, name, STOCK) for name in told if name != STOCK},
        "waited_gb_per_s": moved / max(stored["waited_ns"], 1),
        "steps": told,
    }
    if SWAP in told:
        added = {name: found["step_s"][name] - found["step_s"][STOCK] for name in (SENTINEL, SWAP)}
        found["added_over_what_swap_adds"] = added[SENTINEL] / added[SWAP]
    return found


def _shape(options: argparse.Namespace) -> list[str]:
    return ["--shape", *map(str, options.shape)]


def _join(group: tuple[Path, str, str] | None) -> list[str]:
    return [] if group is None else ["--cgroup", str(group[0])]


def _tried(*command: str) -> str:
    """Why a command failed; "" if it did not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    return f"{command[0]}: {done.stderr.strip()}" if done.returncode else ""


def _remove(folder: Path) -> None:
    for _ in range(100):  # a process that has just ended is still counted for a moment
        with contextlib.suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.05)


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cap", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", required=True, help="on a disk: of Sentinel's file, and of the swap file")
    parser.add_argument("--fast", default="900MiB", help="memory of tensors")
    parser.add_argument(
        "--cap", help="instead: of the whole process; its peak, which a cgroup counts, is told over this"
    )
    parser.add_argument("--shape", type=int, nargs=4, default=[12, 768, 2, 256], help="LAYERS WIDTH ROWS COLUMNS")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--swap", action="store_true", help="beside the kernel's swap: as root")
    parser.add_argument("--swap-bytes", type=parse_bytes, default=8 << 30)
    options = parser.parse_args()
    results = measured(options)
    settings = {name: getattr(options, name) for name in ("fast", "cap", "shape", "threads", "swap_bytes")}
    _bench.emit((__doc__ or "").splitlines()[0], settings, results)
    return 0 if results["same_losses"] else 1


if __name__ == "__main__":
    sys.exit(main())
