"""Runs the known workload under a page tracker and compares, page for page: prints JSON, exits 1 if they differ.

    python tools/known_workload/run.py ebpf perf pagemap uffd

`--build FILE` only compiles it, `--library FILE` uses what was compiled so: for machines without a compiler.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from sentinel.core.errors import CapabilityError
from sentinel.core.units import PAGE_BYTES
from sentinel.profiler.pages import TRACKERS, choose, native_touch

SOURCE = Path(__file__).with_name("touches.c")
PAGES = 1009


def build(target: Path) -> Path:
    """Compiles the workload to the library `target`. CapabilityError without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("clang")
    if compiler is None:
        raise CapabilityError("compiling the known workload", "no C compiler was found", "apt-get install gcc")
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", "-D_GNU_SOURCE"]
    subprocess.run([compiler, *flags, str(SOURCE), "-o", str(target)], check=True)
    return target


def expected(workload: ctypes.CDLL, in_system_calls: bool = True) -> tuple[Counter[int], Counter[int], Counter[int]]:
    """In how many layers each page is touched, read, written."""
    touched: dict[int, set[int]] = {}
    reads: Counter[int] = Counter()
    writes: Counter[int] = Counter()
    row = (ctypes.c_int * 5)()
    for index in range(workload.workload_row(0, row)):
        workload.workload_row(index, row)
        first, pages, layers, write, way = row
        if way == 1 and not in_system_calls:
            continue
        for page in range(first, first + pages):
            (writes if write else reads)[page] += layers
            touched.setdefault(page, set()).update(range(layers))
    return Counter({page: len(layers) for page, layers in touched.items()}), reads, writes


def observed(workload: ctypes.CDLL, name: str) -> tuple[dict[str, Any], bool]:
    """What tracker `name` reports, and whether it is right."""
    tracker, _ = choose(name)
    assert tracker is not None
    owned = native_touch.map_range(PAGES * PAGE_BYTES)
    try:
        tracker.start([owned])
        for layer in range(workload.workload_layers()):
            tracker.mark(layer)
            if workload.workload_layer(ctypes.c_void_p(owned.start), layer) != 0:
                raise SystemExit("a system call of the workload failed")
        samples = tracker.stop()
    finally:
        native_touch.unmap_range(owned)
    rows, quality = samples.pages, samples.quality
    pages = rows["page"] - owned.start // PAGE_BYTES
    touched, reads, writes = expected(workload, "accesses by system calls" not in quality.blind_to)
    right = Counter(pages.tolist()) == touched and quality.lost == 0
    if "writes" in quality.sees:
        right &= Counter(pages[rows["reads"] == 1].tolist()) == reads
        right &= Counter(pages[rows["writes"] == 1].tolist()) == writes
    told = {"tracker": name, "touches": len(rows), "expected": sum(touched.values()), "sees": quality.sees}
    return {**told, "blind_to": quality.blind_to, "lost": quality.lost, "exact": bool(right)}, bool(right)


def main() -> int:
    """Run each tracker asked for; those that this host refuses are named, not failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trackers", nargs="*", default=list(TRACKERS), metavar="TRACKER")
    parser.add_argument("--build", type=Path, metavar="FILE")
    parser.add_argument("--library", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    if chosen.build is not None:
        build(chosen.build)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        workload = ctypes.CDLL(str(chosen.library or build(Path(folder) / "touches.so")))
        results, all_right = [], True
        for name in chosen.trackers:
            try:
                result, right = observed(workload, name)
            except CapabilityError as error:
                result, right = {"tracker": name, "refused": str(error)}, True
            results.append(result)
            all_right &= right
    print(json.dumps(results, indent=2))
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())
