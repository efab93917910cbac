"""Claim: a tick at which nothing is due takes at most 5 µs, and neither ticks nor allocations get dearer from one
version to the next. What a move takes is told, not judged.

A small job trains with everything in fast memory, so nothing moves. Told are medians over the applied steps: of
`add_layer()` after an empty layer and after one in which tensors were born and died, and of one allocation from the
plan's slots, beside one by malloc in the same process before. Another small job has too little fast memory, so its
weights move. Told is the processor time that its training thread spends in ticks, for each tick and for each move: all
of it is shared among the moves. With `--against`, another checkout of this repository with its native library built,
fresh processes of both take turns; a ratio is that of two that ran one after the other.

    python -m benchmarks.ticks --against ../before --into docs/costs/ticks.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import _bench

CHILD, MOVING = Path(__file__).with_name("_ticks.py"), Path(__file__).with_name("_ticks_with_moves.py")
JUDGED = ("empty_tick_ns", "full_tick_ns", "allocation_ns")
KINDS = (*JUDGED, "move_ns", "tick_with_moves_ns")


def one(checkout: Path, child: Path, settings: dict[str, int]) -> dict[str, Any]:
    """What one fresh process of `child` with the `sentinel` of `checkout` found."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    options = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(
        [sys.executable, str(child), *options], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"with {checkout}:\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if Path(found.pop("sentinel")) != checkout:
        raise SystemExit(f"{checkout} was not imported: is a package of another place installed over it?")
    return found


def commit_of(checkout: Path) -> str | None:
    """The commit that is checked out, with a + where files differ from it."""
    told = subprocess.run(
        ["git", "-C", str(checkout), "describe", "--always", "--dirty=+"], capture_output=True, text=True, check=False
    )
    return told.stdout.strip() or None


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout, built")
    parser.add_argument("--rounds", type=int, default=9, help="processes of each (default %(default)s)")
    parser.add_argument("--layers", type=int, default=200)
    parser.add_argument("--steps", type=int, default=30, help="applied steps that count (default %(default)s)")
    parser.add_argument("--allocations", type=int, default=20, help="in a layer that has some (default %(default)s)")
    parser.add_argument("--numel", type=int, default=16384, help="of each, 4 bytes an element (default %(default)s)")
    parser.add_argument(
        "--moving-layers", type=int, default=32, help="of the job whose weights move (default %(default)s)"
    )
    parser.add_argument("--moving-width", type=int, default=256, help="of these layers (default %(default)s)")
    parser.add_argument("--into", type=Path, help="write the JSON there instead of printing it")
    chosen = parser.parse_args()
    checkouts = {"now": _bench.ROOT}
    if chosen.against is not None:
        if not (chosen.against / "sentinel").is_dir():
            parser.error(f"--against {chosen.against}: there is no checkout of this repository")
        checkouts["before"] = chosen.against.resolve()
    settings = {name: getattr(chosen, name) for name in ("layers", "steps", "allocations", "numel")}
    moving = {"layers": chosen.moving_layers, "width": chosen.moving_width, "steps": chosen.steps}
    rounds: list[dict[str, Any]] = []
    for order in _bench.taking_turns(list(checkouts), chosen.rounds):
        rounds.append(
            {name: {**one(checkouts[name], CHILD, settings), **one(checkouts[name], MOVING, moving)} for name in order}
        )
        each = {
            name: f"{found['empty_tick_ns'] / 1e3:.2f} µs, a move {found['move_ns'] / 1e3:.1f} µs"
            for name, found in rounds[-1].items()
        }
        print(f"round {len(rounds)} of {chosen.rounds}: a tick with nothing due {each}", file=sys.stderr, flush=True)
    kinds = (*KINDS, "stock_allocation_ns", "moves_a_step")
    found = {
        "median": {
            name: {kind: statistics.median(each[name][kind] for each in rounds) for kind in kinds} for name in checkouts
        },
        "commits": {name: commit_of(checkout) for name, checkout in checkouts.items()},
        "raw": rounds,
    }
    if "before" in checkouts:
        found["now_over_before"] = {
            kind: _bench.paired([{name: each[name][kind] for name in checkouts} for each in rounds], "now", "before")
            for kind in KINDS
        }
    told = _bench.told(
        "ticks and allocations cost little",
        {"settings": {**settings, "moving": moving, "rounds": chosen.rounds}},
        found,
    )
    text = json.dumps(told, indent=2) + "\n"
    if chosen.into is None:
        print(text, end="")
    else:
        chosen.into.write_text(text)


if __name__ == "__main__":
    main()
