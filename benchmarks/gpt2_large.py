"""Claim: a GPT-2 large (774 M parameters, AdamW, batch 1) trains under Sentinel on 24 GB, 30 % fast, bit-identical.

Two fresh processes, one after the other, train the same steps: stock, and with Sentinel, whose slow tier is emulated
(delays of a described CXL memory are injected; nothing is slower for real). Losses of all steps and a digest of all
parameters must be the same. A third process times one plain copy of the footprint, beside which the set-up is told.

    python -m benchmarks.gpt2_large > gpt2-large.json                                    # some ten minutes
    python -m benchmarks.gpt2_large --shape 4 256 4 128 --steps 4 > gpt2-small.json      # a minute
"""

from __future__ import annotations

import argparse
import sys

from benchmarks import _bench

CHILD = "benchmarks._gpt2_large"
LARGE = (36, 1280, 20, 256)


def main() -> None:
    """Parse, train both ways, print; exits with 1 where the bits differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=int, nargs=4, default=LARGE, metavar=("LAYERS", "WIDTH", "HEADS", "COLUMNS"))
    parser.add_argument("--steps", type=int, default=6, help="the second is profiled (default %(default)s)")
    parser.add_argument("--fast", default="30%")
    parser.add_argument("--tracker", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    environment = {"OMP_NUM_THREADS": str(chosen.threads), "MKL_NUM_THREADS": str(chosen.threads)}
    shape = ["--shape", *map(str, chosen.shape), "--steps", str(chosen.steps)]
    runs = {}
    for name, options in (
        ("stock", shape),
        ("sentinel", [*shape, "--sentinel", "--fast", chosen.fast, "--tracker", chosen.tracker]),
    ):
        print(f"{name}: {chosen.steps} steps", file=sys.stderr, flush=True)
        runs[name] = _bench.child(CHILD, options, environment)
    headline = runs["sentinel"]["headline"]
    footprint = int(headline["peak_bytes"])
    copied = _bench.child(CHILD, [*shape, "--copy-bytes", str(footprint)], environment)
    same = all(runs["stock"][key] == runs["sentinel"][key] for key in ("losses", "digest"))
    _bench.emit(
        "a GPT-2 large trains bit-identically with 30 % of its footprint fast",
        {"settings": {"shape": list(chosen.shape), "steps": chosen.steps, "fast": chosen.fast}},
        {
            "same_bits": same,
            "parameters": runs["stock"]["parameters"],
            "footprint_bytes": footprint,
            "setup_ns": headline["setup_ns"],
            "planning_ns": headline["plan_ns"],
            "copy_of_footprint_ns": copied["copy_ns"],
            "setup_over_copy": headline["setup_ns"] / copied["copy_ns"],
            "raw": runs,
        },
    )
    if not same:
        raise SystemExit("losses or parameters differ from stock training")


if __name__ == "__main__":
    main()
