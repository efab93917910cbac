"""Results of benchmarks/two_nodes.py: what lies in a folder, and docs and README by a whole set of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from benchmarks import _bench, two_nodes_readme
from benchmarks.two_nodes_figures import EXAMPLES, MACHINE, Results
from benchmarks.two_nodes_page import page
from sentinel.executed.placements import NAMES

FOLDER = _bench.ROOT / "docs" / "two-nodes"
PAGE = _bench.ROOT / "docs" / "two-nodes.md"
README = _bench.ROOT / "README.md"


def results_in(folder: Path) -> Results:
    """What lies there: example -> "runs", a list of what each run found, and "after", by steps of warm-up."""
    found: dict[str, dict[str, Any]] = {}
    for example in EXAMPLES:
        paths = [folder / f"{example}.json", *sorted(folder.glob(f"{example}-run*.json"))]
        if not paths[0].exists():
            continue
        after = {int(path.stem.rpartition("-after")[2]): path for path in folder.glob(f"{example}-after*.json")}
        found[example] = {
            "runs": [json.loads(path.read_text()) for path in paths],
            "after": {steps: json.loads(after[steps].read_text()) for steps in sorted(after)},
        }
    return found


def take_over(folder: Path) -> Results:
    """Docs and README by the results in `folder`. Raises SystemExit, and changes nothing, where an example, or a
    placement of it, is missing."""
    results = results_in(folder)
    missing = [example for example in EXAMPLES if example not in results]
    if missing:
        raise SystemExit(f"{folder} has no result of {', '.join(missing)}: docs and README stay as they are")
    for example, found in results.items():
        there = {row["name"] for run in found["runs"] for row in run["rows"]}
        if absent := [name for name in NAMES if name not in there]:
            raise SystemExit(f"{example} was not run as {', '.join(absent)}: docs and README stay as they are")
    machine = (folder / MACHINE).read_text()
    texts = page(results, machine), two_nodes_readme.rewritten(README.read_text(), results, machine)
    if folder.resolve() != FOLDER.resolve():
        for path in FOLDER.glob("*.json"):
            path.unlink()
        for path in folder.glob("*.json"):
            shutil.copyfile(path, FOLDER / path.name)
    PAGE.write_text(texts[0])
    README.write_text(texts[1])
    return results
