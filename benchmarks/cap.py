"""Claim: a GPT-2 whose tensors exceed their memory trains from a file, bit-identically, faster than from swap.

For each budget, processes train the same GPT-2 with AdamW: stock PyTorch with all the memory it wants, also with a
malloc that keeps its memory; Sentinel with a budget for tensors, without and with `overlap_optimizer=True`; and stock
in a memory cgroup, with a swap file beside Sentinel's file (`--swap`: as root, on a host without other swap; it belongs
to the whole host while this runs). The swapping process may hold as much as a Sentinel process held at its peak, in a
cgroup that counts, before: page cache is in both.

They take turns of two steps, the first left out: in it a process may profit from what it moved while others ran. A step
is seen from outside. The first four steps, in which memory and optimizer state are born and a step is recorded, are not
counted. Printed beside, as means over both steps of the turns that count: what a step moved, and what its operators
waited for the disk.

Goals: the same losses. The time that the budget adds to a step: at most a quarter of what swap adds. Exit 1 where a
loss differs.

    python -m benchmarks.cap --directory /data/scratch --swap --into docs/cap.json          # as root; half an hour
    python -m benchmarks.cap --directory /data/scratch --swap --model resnet50 --rows 32 --fast 1GiB  # vgg16, lstm
    python -m benchmarks.cap --directory . --shape 4 512 2 128 --fast 300MiB --rounds 3     # a minute
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import _bench
from benchmarks.cap_page import page
from sentinel.core.units import parse_bytes

STOCK, TUNED, SWAP, SENTINEL, OVERLAP = "stock", "tuned", "swap", "sentinel", "overlap"
BORN = 2  # turns
TURN = 2  # steps, of which the last is counted
_SETTINGS = ("fast", "whole", "shape", "model", "rows", "rounds", "threads", "swap_bytes")
PIECE, PIECES, LANES = 2 << 20, 1024, 4
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


def disk_rates(folder: Path) -> dict[str, Any]:
    """What the disk does alone, in the pieces of the file tier."""
    rates: dict[str, Any] = {"how": f"{PIECES} pieces of 2 MiB past the page cache, by {LANES} threads"}
    path = folder / f"sentinel-cap-{os.getpid()}.disk"
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_DIRECT, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, PIECES * PIECE)
        with ThreadPoolExecutor(LANES) as pool, mmap.mmap(-1, PIECE) as piece:
            piece.write(os.urandom(PIECE))
            for name, move in (("write", os.pwritev), ("read", os.preadv)):
                began = time.perf_counter()
                done = list(pool.map(lambda at, move=move: move(descriptor, [piece], at * PIECE), range(PIECES)))
                rates[f"{name}_bytes_per_s"] = sum(done) / (time.perf_counter() - began)
    finally:
        os.close(descriptor)
        path.unlink()
    return rates


def measured(budget: str, options: argparse.Namespace) -> dict[str, Any]:
    """Sentinel with this budget and stock, and swap where it can be had, turn by turn."""
    results: dict[str, Any] = {"budget": budget, "budget_bytes": parse_bytes(budget)}
    ours = [*_shape(options), "--cap" if options.whole else "--budget", budget, "--file", options.directory]
    with cgroup() as group:
        alone = _trained({SENTINEL: ours + _join(group)}, options, rounds=1)
        if group is not None:
            results["sentinel_peak_bytes"] = int((group[0] / group[2]).read_text())
            if options.whole:
                results["peak_over_cap"] = results["sentinel_peak_bytes"] / results["budget_bytes"]
    results["tensor_peak_bytes"] = alone[SENTINEL]["storage"]["tensor_peak_bytes"]
    processes = {
        STOCK: _shape(options),
        TUNED: [*_shape(options), "--tuned"],
        SENTINEL: ours,
        OVERLAP: [*ours, "--overlap"],
    }
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
        others = _bench.others_share()
        told = _trained(processes, options, rounds=options.rounds)
        results["others_share"] = others()
    return results | _summed_up(told)


def _trained(
    processes: dict[str, Sequence[str]], options: argparse.Namespace, *, rounds: int
) -> dict[str, dict[str, Any]]:
    """Of each process: losses, ns of counted steps, and counts of its storage when these began and at the end."""
    steppers: dict[str, _bench.Stepper] = {}
    found: dict[str, dict[str, Any]] = {name: {"ns": [], "losses": []} for name in processes}
    try:
        for name, words in processes.items():
            steppers[name] = _bench.Stepper(words, options.threads)
        for turn, order in enumerate(_bench.taking_turns(list(processes), BORN + rounds)):
            for name in order:
                took = [steppers[name].do("step") for _ in range(TURN)]
                found[name]["losses"] += [told["loss"] for told in took]
                if turn >= BORN:
                    found[name]["ns"].append(took[-1]["outside_ns"])
                if turn == BORN - 1:
                    found[name]["born"] = steppers[name].do("storage")["storage"]
        for name, stepper in steppers.items():
            found[name]["storage"] = stepper.do("stop").get("storage")
    finally:
        for stepper in steppers.values():
            stepper.close()
    return found


def _summed_up(told: dict[str, dict[str, Any]]) -> dict[str, Any]:
    rounds = [dict(zip(told, times, strict=True)) for times in zip(*(told[n]["ns"] for n in told), strict=True)]
    found: dict[str, Any] = {
        "same_losses": len({tuple(each["losses"]) for each in told.values()}) == 1,
        "step_s": {name: statistics.median(each["ns"]) / 1e9 for name, each in told.items()},
        "over_stock": {name: _bench.paired(rounds, name, STOCK) for name in told if name != STOCK},
        "processes": told,
    }
    if SWAP in told:
        added = {name: found["step_s"][name] - found["step_s"][STOCK] for name in told}
        found["added_over_what_swap_adds"] = {name: added[name] / added[SWAP] for name in (SENTINEL, OVERLAP)}
    return found


def _shape(options: argparse.Namespace) -> list[str]:
    if options.model is None:
        return ["--shape", *map(str, options.shape)]
    return ["--model", options.model, *([] if options.rows is None else ["--rows", str(options.rows)])]


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
    parser.add_argument(
        "--fast", nargs="+", default=["1506MiB", "1012MiB", "740MiB"], help="budgets, one after another"
    )
    parser.add_argument("--whole", action="store_true", help="a budget is of the whole process, as `cap` is")
    parser.add_argument("--shape", type=int, nargs=4, default=[12, 768, 2, 256], help="LAYERS WIDTH ROWS COLUMNS")
    parser.add_argument("--model", help="instead, one of benchmarks._models.JOBS; a page is made of the GPT-2 only")
    parser.add_argument("--rows", type=int, help="samples in a batch of that model")
    parser.add_argument("--rounds", type=int, default=5, help="turns that count")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--swap", action="store_true", help="beside the kernel's swap: as root")
    parser.add_argument("--swap-bytes", type=parse_bytes, default=8 << 30)
    parser.add_argument("--into", type=Path, metavar="FILE.json", help="write it here, and a page FILE.md beside it")
    options = parser.parse_args()
    disk = disk_rates(Path(options.directory))
    results = []
    for budget in options.fast:
        results.append(measured(budget, options))
        print(f"{budget}: measured", file=sys.stderr)
    settings = {name: getattr(options, name) for name in _SETTINGS}
    settings |= {"turn": TURN, "disk": disk}
    claim = (__doc__ or "").splitlines()[0]
    if options.into is None:
        _bench.emit(claim, settings, results)
    else:
        told = _bench.told(claim, settings, results)
        options.into.write_text(json.dumps(told, indent=1) + "\n")
        if options.model is None:
            options.into.with_suffix(".md").write_text(page(told))
    return 0 if all(each["same_losses"] for each in results) else 1


if __name__ == "__main__":
    sys.exit(main())
