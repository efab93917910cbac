"""All that docs/data.md and docs/data-orders.md state of training data, by one command: `python -m benchmarks.data_run
--folder DIR`, DIR on a disk, on a host that does nothing else.

Each step is a benchmark of its own and writes its JSON, with the commit that ran, below build/data-run. A step that is
there for this commit is not run again, nor a source of `benchmarks.data`, so the same command goes on where it was
stopped. Once all are there they are copied to docs/, and the pages are made from them. `--tiny` runs all of it on
little data, to see that it works, and leaves docs/ as it is.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import _bench
from benchmarks.data import say

DOCS, KEPT = _bench.ROOT / "docs", _bench.ROOT / "build" / "data-run"
RIVALS = {"webdataset": "webdataset", "datasets": "datasets", "streaming": "mosaicml-streaming", "litdata": "litdata"}
"""Modules of other libraries, and their packages."""
PAGES = ("benchmarks.data_page", "benchmarks.data_orders_page")


class Step(NamedTuple):
    """A benchmark, whose JSON is `name`.json. `tiny`: words that make it short. `folder`: whether it takes
    `--folder`."""

    name: str
    words: tuple[str, ...]
    tiny: tuple[str, ...]
    folder: bool = False


_SMALL = ("--samples", "2048", "--rounds", "1")
STEPS = (
    Step("data-orders", ("benchmarks.data_orders",), ("--samples", "8192", "--large", "0")),
    Step("data", ("benchmarks.data",), _SMALL, folder=True),
    Step("data-closely", ("benchmarks.data", "--closely"), _SMALL, folder=True),
    Step("data-encoded", ("benchmarks.data", "--encoded"), _SMALL, folder=True),
    Step("data-limits", ("benchmarks.data_limits",), ("--rounds", "1"), folder=True),
    Step("three-ranks", ("benchmarks.three_ranks",), ("--rounds", "1")),
    Step("importance", ("benchmarks.importance",), ("--seeds", "2", "--epochs", "6")),
    Step("selecting-jobs", ("benchmarks.selecting_jobs",), ("--seeds", "1", "--epochs", "4")),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is not there yet, then make the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="for the data, on a disk (default: that of temporary files)")
    parser.add_argument("--tiny", action="store_true", help="on little data; docs/ stays as it is")
    given = parser.parse_args(arguments)
    for sentence in missing():
        say(f"note: {sentence}")
    kept, commit, began = KEPT / "tiny" if given.tiny else KEPT, _bench.commit(), time.monotonic()
    kept.mkdir(parents=True, exist_ok=True)
    for number, step in enumerate(STEPS):
        path = kept / f"{step.name}.json"
        said = f"step {number + 1} of {len(STEPS)}, {step.name}"
        if _commit_of(path) == commit:
            say(f"{said}: it is there")
            continue
        say(f"{said}, after {(time.monotonic() - began) / 60:.0f} minutes")
        words = [*step.words, *(step.tiny if given.tiny else ())]
        if step.folder and given.folder:
            words += ["--folder", str(given.folder)]
        if step.words[0] == "benchmarks.data":
            words += ["--parts", str(kept / step.name)]
        run(words, path)
    if given.tiny:
        say(f"all steps work: {kept}")
        return
    for step in STEPS:
        shutil.copyfile(kept / f"{step.name}.json", DOCS / f"{step.name}.json")
    for page in PAGES:
        subprocess.run([sys.executable, "-m", page], cwd=_bench.ROOT, check=True)
    say(f"docs/ has the results of {commit}")


def run(words: Sequence[str], path: Path) -> None:
    """A benchmark, whose output is there whole or not at all. Raises SystemExit where it fails."""
    part = path.with_suffix(".part")
    with open(part, "wb") as output:
        done = subprocess.run([sys.executable, "-m", *words], cwd=_bench.ROOT, stdout=output, check=False)
    if done.returncode:
        raise SystemExit(f"python -m {' '.join(words)} ended with {done.returncode}; run this command again to go on")
    json.loads(part.read_text())
    part.replace(path)


def missing() -> list[str]:
    """What is not here, and what that leaves out."""
    found = [
        f"{package} is not installed and will not be measured: pip install --no-deps -r benchmarks/data_rivals.txt"
        for module, package in RIVALS.items()
        if find_spec(module) is None
    ]
    if not (shutil.which("redis-server") or shutil.which("valkey-server")):
        found.append("three-ranks will fail without a server: apt-get install redis-server")
    if shutil.which("cc") is None:
        found.append("sources cannot be described without a C compiler: apt-get install gcc")
    return found


def _commit_of(path: Path) -> str | None:
    """Of the result that is there, None if there is none."""
    try:
        found: str | None = json.loads(path.read_text()).get("commit")
    except (OSError, ValueError):
        return None
    return found


if __name__ == "__main__":
    main()
