"""Interrupts a session at every line, and prints what came of it.

    python -m tools.interrupts --tracker pagemap                  every line; some minutes
    python -m tools.interrupts --sample 40 --seed 3               some of them
    python -m tools.interrupts --json all.json                    keeps each outcome

Exit code 1 where something was left behind, a second session did not run, or training differed from stock.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"  # before torch: a process with threads of its own cannot be forked for each line

from tools.interrupts.cases import CaseServer, table  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.interrupts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tracker", default="pagemap")
    parser.add_argument("--sample", type=int, help="so many lines, chosen by --seed; without it, all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    began = time.monotonic()
    server = CaseServer(given.tracker)
    places = server.places(given.sample, given.seed)
    outcomes = server.run(places, given.jobs)
    text, wrong = table(outcomes, given.tracker)
    sys.stdout.write(f"{text}\n{len(places)} lives in {time.monotonic() - began:.0f} s\n")
    if given.json:
        rows = [{"place": place, **asdict(outcome)} for place, outcome in outcomes.items()]
        given.json.write_text(json.dumps(rows, indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
