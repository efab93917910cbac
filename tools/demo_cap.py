"""What `make demo` runs last: examples/11_memory_cap.py, stock and under a cap on its memory, one after the other.

Nothing is emulated: tensors that do not fit are in a file in FOLDER. Prints a table of both, and the path of a report.
Exit 1 where losses or parameters differ.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "11_memory_cap.py"
CAP = "900MiB"
STEPS = 8
BEGIN = 4
"""Steps in which optimizer state is born and one is recorded, the one after that included: none of them is timed."""
NEEDED_BYTES = 3 << 30
"""Of stock training, and room to breathe: a host that swaps shows nothing."""
LOOK_S = 0.25
"""Between two looks at the memory of a process."""


class Run(NamedTuple):
    """Of a whole process, as seen from outside: its lines of losses and parameters, the most memory that it was seen to
    take, and the median time of a step, from one line to the next."""

    told: list[str]
    peak_bytes: int
    step_s: float


def run(words: Sequence[str]) -> Run:
    """The example with `words`. Raises SystemExit where it fails; the reason is on stderr."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLE), "--steps", str(STEPS), *words], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    memory = Memory(process.pid)
    memory.start()
    told: list[str] = []
    seen: list[float] = []
    for line in process.stdout:
        if line.startswith("step "):
            seen.append(time.monotonic())
            say(f"{words[0]}, {line.split('  ')[0]} of {STEPS}, after {seen[-1] - began:.0f} s")
        if line.startswith(("step ", "parameters ")):
            told.append(line.strip())
    process.wait()
    memory.join()
    if process.returncode != 0:
        raise SystemExit(f"{EXAMPLE.name} {' '.join(words)} ended with {process.returncode}")
    steps = [after - before for before, after in pairwise(seen[BEGIN:])]
    return Run(told, memory.peak_bytes, median(steps))


class Memory(threading.Thread):
    """Looks at the memory of a process until it ends. By the kernel's Pss: what is resident, a page once, however often
    it is mapped, and of pages that several processes share a part."""

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self._path, self.peak_bytes = Path(f"/proc/{process}/smaps_rollup"), 0

    def run(self) -> None:
        """See the class."""
        while True:
            try:
                lines = self._path.read_text().splitlines()
            except OSError:  # it has ended
                return
            found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")]
            self.peak_bytes = max(self.peak_bytes, *found, 0)
            time.sleep(LOOK_S)


def say(what: str) -> None:
    """Progress, where somebody looks."""
    if sys.stderr.isatty():
        print(f"\r{what}\033[K", end="", file=sys.stderr, flush=True)


def left_out(folder: Path) -> str:
    """Why this cannot be shown here; "" where it can."""
    from sentinel.core.units import format_bytes
    from sentinel.system.disks import memory_under
    from sentinel.system.limits import available_bytes

    if (there := available_bytes()) < NEEDED_BYTES:
        return f"{format_bytes(NEEDED_BYTES)} of memory must be available, {format_bytes(there)} are"
    return memory_under(folder)


def main() -> None:
    """See the module's docstring."""
    from sentinel.cli.common import print_table
    from sentinel.core.units import format_bytes

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="on a disk; made if it is not there")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    if why := left_out(folder):
        print(f"Left out: {why}.")
        return
    report = folder.parent / "demo-cap.html"
    ours = run(["--cap", CAP, "--slow", f"file:{folder}", "--report", str(report)])
    stock = run(["--stock"])
    say("")
    same = stock.told == ours.told
    rows = [
        ("", "stock", f"cap of {CAP}", ""),
        (
            "memory of the process, at its peak (Pss)",
            format_bytes(stock.peak_bytes),
            format_bytes(ours.peak_bytes),
            f"{ours.peak_bytes / stock.peak_bytes:.0%}",
        ),
        (
            f"step, median of {STEPS - BEGIN - 1}",
            f"{stock.step_s:.2f} s",
            f"{ours.step_s:.2f} s",
            f"{ours.step_s / stock.step_s:.2f} of stock",
        ),
        ("losses and parameters", "", "the same, bit for bit" if same else "DIFFERENT", ""),
    ]
    print_table(rows)
    print(os.path.relpath(report))
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
