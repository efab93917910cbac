"""Claim: what `sentinel estimate` says of memory, before anything runs, is what the same step is recorded to take.

Each example is recorded as it trains, its second step by its operators (tracker `ops`), and is estimated from shapes,
in processes of their own: the most memory that is alive at once, and the bytes that operators read and write in each
layer. An error is estimate over recording, less one, of a layer that touches any. The goals: peaks within 3 %, layers
within 5 %.

    python -m benchmarks.estimate --into docs/estimate.json      # two minutes, and the page beside it
    python -m benchmarks.estimate --examples 02_resnet
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import _bench, estimate_page

EXAMPLES = ("01_gpt2", "02_resnet", "04_dlrm")
THREADS = "2"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print everything as one JSON object, or write it and its page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", nargs="+", default=list(EXAMPLES), metavar="EXAMPLE")
    parser.add_argument("--into", type=Path, help="write the JSON there, and a page of the same name beside it")
    given = parser.parse_args(arguments)
    results = {name: row(both(name, "recorded"), both(name, "estimated")) for name in given.examples}
    claim = "what is estimated from shapes is what is recorded"
    made = _bench.told(claim, {"settings": {"threads": int(THREADS)}}, results)
    if given.into is None:
        print(json.dumps(made, indent=2))
        return
    given.into.write_text(json.dumps(made, indent=2) + "\n")
    given.into.with_suffix(".md").write_text(estimate_page.page(made))


def both(name: str, how: str) -> dict[str, Any]:
    """The example, recorded or estimated, in a fresh process."""
    threads = {"OMP_NUM_THREADS": THREADS, "MKL_NUM_THREADS": THREADS}
    return _bench.child("benchmarks._example_profile", [how, name], threads)


def row(real: dict[str, Any], guess: dict[str, Any]) -> dict[str, Any]:
    """Both, and how far the estimate is off."""
    if real["layers"] != guess["layers"]:
        raise SystemExit(f"the layers differ: {real['layers']} are recorded, {guess['layers']} are estimated")
    whole = sum(real["layer_bytes"])
    errors = [
        (mine / theirs - 1, layer)
        for layer, mine, theirs in zip(real["layers"], guess["layer_bytes"], real["layer_bytes"], strict=True)
        if theirs
    ]
    worst, worst_layer = max(errors, key=lambda error: abs(error[0]))
    return {
        "recorded": real,
        "estimated": guess,
        "errors": {
            "peak": guess["peak_bytes"] / real["peak_bytes"] - 1,
            "step": sum(guess["layer_bytes"]) / whole - 1,
            "layer_median": statistics.median(error for error, _ in errors),
            "layer_worst": worst,
            "worst_layer": worst_layer,
            "layers": len(errors),
        },
    }


if __name__ == "__main__":
    main()
