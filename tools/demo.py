"""What `make demo` runs: the GPT-2 example with a fifth of its footprint in fast memory.

The first line says where slow memory is: a slower node of this host, or, by name, an emulated one. The last
line is the path of the HTML report.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EMULATED = "emulated:cxl-asic-x8"
STEPS = 30


def slow_tier() -> tuple[str, str]:
    """(what to ask for, what that is): the nearest slower node where there is one."""
    from sentinel import tiers

    slow = tiers.machine_for("auto").tiers[1]
    if slow.kind == "node":
        return f"numa:{slow.node}", f"NUMA node {slow.node} of this host"
    return EMULATED, f"{EMULATED} - EMULATED: this host has no slower node, so real delays are injected"


def main() -> int:
    """Run the demo; returns its exit code."""
    slow, means = slow_tier()
    print(f"Slow memory: {means}", flush=True)
    folder = ROOT / "runs"
    folder.mkdir(exist_ok=True)
    report = folder / "demo.html"
    example = [str(ROOT / "examples" / "01_gpt2.py"), "--steps", str(STEPS), "--fast", "20%", "--slow", slow]
    return subprocess.run(
        [sys.executable, *example, "--report", os.path.relpath(report)], check=False, cwd=Path.cwd()
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
