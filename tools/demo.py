"""What `make demo` runs: the GPT-2 example with a fifth of its footprint in fast memory, then another under a cap.

The first line says where slow memory is: a slower node of this host, or, by name, an emulated one. Then come the
losses, the headline of the report, and what it says in short. Under a cap (tools/demo_cap.py) a larger GPT-2 trains in
part of the memory that it needs, with the rest in a file. The last line is the path of the first one's HTML report.
"""

from __future__ import annotations

import os
import runpy
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
    means = "this host has no slower node: copies are real, delays of slow accesses are injected"
    return EMULATED, f"{EMULATED} - EMULATED: {means}"


def main() -> None:
    """Train, write the report, print its headline and its path."""
    slow, means = slow_tier()
    print(f"Slow memory: {means}", flush=True)
    sys.path.insert(0, str(ROOT / "examples"))
    import common

    import sentinel
    from sentinel.cli.common import print_table
    from sentinel.reports.sections.key_figures import headline_rows
    from sentinel.reports.summary import summary

    train = runpy.run_path(str(ROOT / "examples" / "01_gpt2.py"))["train"]
    train(common.Options(steps=STEPS, fast="20%", slow=slow))
    sentinel.stop()
    report = sentinel.report()
    path = ROOT / "runs" / "demo.html"
    path.parent.mkdir(exist_ok=True)
    report.write(path.with_suffix(".trace"))  # first: the page names it
    report.write(path)
    print()
    print_table(headline_rows(report.headline))
    print()
    print_table(summary(report.headline))
    folder = path.parent / "demo-file"
    print(
        f"\nAnother GPT-2, in less memory than it needs; the rest is in a file in {os.path.relpath(folder)}.",
        flush=True,
    )
    capped = subprocess.run([sys.executable, "-m", "tools.demo_cap", str(folder)], cwd=ROOT, check=False)
    print()
    print(os.path.relpath(path))
    sys.exit(capped.returncode)


if __name__ == "__main__":
    main()
