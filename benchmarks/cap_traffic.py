"""Claim: the file tier's transfers slow no computing: bytes that a step under a cap moves, beside one without a cap.

A process trains stock PyTorch with all the memory it wants. In every other step this process moves bytes to no purpose,
by the transfers of Sentinel's file tier: out of frames and back into them, past the page cache, as fast as the disk
takes them, until `--bytes` have gone each way. Steps are seen from outside and take turns: without, with, with,
without. `moved_within` is the share of the bytes that were moved before the step had ended. Processor time is that of
this process, for each way alone, while nothing trains.

Goals: such a step takes at most 3 % longer, and transfers at most 0.04 s of processor time for each GB, each way. Exit
1 where one is missed. With --into docs/cap-traffic.json, docs/storage.md says what was found.

    python -m benchmarks.cap_traffic --directory /data/scratch --into docs/cap-traffic.json       # five minutes
    python -m benchmarks.cap_traffic --directory . --shape 2 256 2 64 --bytes 64MiB --rounds 2    # half a minute
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import _bench
from benchmarks._disk_traffic import FRAMES, Traffic
from sentinel.core.units import parse_bytes
from sentinel.tiers.frames import FRAME_BYTES

MOST_OF_A_STEP, MOST_S_PER_GB = 1.03, 0.04
BORN = 4  # steps that are not counted
WITHOUT, WITH = "without", "with"


def processor_s(traffic: Traffic, nbytes: int) -> dict[str, float]:
    """Processor seconds of this process for each GB, by way, while nothing trains."""
    turns = [traffic.turn(time.process_time) for _ in range(max(nbytes // (FRAMES * FRAME_BYTES), 1))]
    gb = len(turns) * FRAMES * FRAME_BYTES / 1e9
    return {way: sum(turn[way] for turn in turns) / gb for way in turns[0]}


def step_beside(stepper: _bench.Stepper, traffic: Traffic, nbytes: int) -> tuple[int, float]:
    """What a step took while so many bytes went each way, in ns, and the share of them that did before its end."""
    first = traffic.moved_bytes

    def move() -> None:
        while traffic.moved_bytes - first < nbytes:
            traffic.turn(time.perf_counter)

    mover = threading.Thread(target=move)
    mover.start()
    took = stepper.do("step")["outside_ns"]
    within = min((traffic.moved_bytes - first) / nbytes, 1.0)
    mover.join()
    return took, within


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Rounds of two steps each, one of them beside transfers."""
    traffic = Traffic(options.directory)
    rounds, within = [], []
    stepper: _bench.Stepper | None = None
    try:
        words = ["--shape", *map(str, options.shape), "--vocabulary", str(options.vocabulary)]
        stepper = _bench.Stepper(words, options.threads)
        cpu = processor_s(traffic, options.bytes)
        for _ in range(BORN):
            stepper.do("step")
        for order in _bench.taking_turns([WITHOUT, WITH], options.rounds):
            took = {}
            for name in order:
                if name == WITH:
                    took[name], share = step_beside(stepper, traffic, options.bytes)
                    within.append(share)
                else:
                    took[name] = stepper.do("step")["outside_ns"]
            rounds.append(took)
    finally:
        if stepper is not None:
            stepper.close()
        traffic.close()
    slower = _bench.paired(rounds, WITH, WITHOUT)
    return {
        "over_a_step_without": slower,
        "step_s": {name: statistics.median(each[name] for each in rounds) / 1e9 for name in (WITHOUT, WITH)},
        "moved_within": {"median": statistics.median(within), "least": min(within)},
        "processor_s_per_gb": cpu,
        "missed": judged(slower, cpu),
    }


def judged(slower: Mapping[str, Any], cpu: Mapping[str, float]) -> list[str]:
    """What was missed of the goals, in words. `slower`: steps beside transfers over steps without; `cpu`: processor
    seconds for each GB, by way."""
    missed = [f"{took:.3f} processor s for each GB {way}" for way, took in cpu.items() if took > MOST_S_PER_GB]
    if slower["median"] > MOST_OF_A_STEP:
        missed.insert(0, f"a step beside transfers takes {slower['median']:.3f} of one without")
    return missed


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cap_traffic",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--directory", required=True, help="on a disk")
    parser.add_argument("--shape", type=int, nargs=4, default=[12, 768, 2, 256], help="LAYERS WIDTH ROWS COLUMNS")
    parser.add_argument("--vocabulary", type=int, default=8192, help="of that GPT-2")
    parser.add_argument("--bytes", type=parse_bytes, default=1800 << 20, help="in a step, each way")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--into", type=Path, metavar="FILE.json", help="write it here")
    options = parser.parse_args()
    others = _bench.others_share()
    results = measured(options)
    settings = {name: getattr(options, name) for name in ("shape", "vocabulary", "bytes", "rounds", "threads")}
    settings["others_share"] = others()
    told = json.dumps(_bench.told((__doc__ or "").splitlines()[0], settings, results), indent=2)
    if options.into is None:
        print(told)
    else:
        options.into.write_text(told + "\n")
    for sentence in results["missed"]:
        print(f"missed: {sentence}", file=sys.stderr)
    return 1 if results["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
