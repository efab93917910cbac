"""Results of benchmarks/two_nodes.py: what lies in a folder, and docs and README by a whole set of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from benchmarks import _bench, two_nodes_readme
from benchmarks.two_nodes_figures import EXAMPLES, MACHINE, TIERING, Results
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
    """Docs and README by the results in `folder`. Raises SystemExit, and changes nothing, where an example, a run or
    a placement of it is missing, or where results are of two kinds."""
    results = results_in(folder)
    missing = [example for example in EXAMPLES if example not in results]
    if missing:
        raise SystemExit(f"{folder} has no result of {', '.join(missing)}: docs and README stay as they are")
    for example, found in results.items():
        for run in found["runs"]:
            there = {row["name"] for row in run["rows"]}
            if absent := [name for name in NAMES if name not in there]:
                raise SystemExit(f"{example} was not run as {', '.join(absent)}: docs and README stay as they are")
    _check_one_kind(folder, results)
    machine = (folder / MACHINE).read_text()
    texts = page(results, machine), two_nodes_readme.rewritten(README.read_text(), results, machine)
    if folder.resolve() != FOLDER.resolve():
        new = {path.name: path for path in folder.glob("*.json")}
        for name, path in new.items():
            shutil.copyfile(path, FOLDER / name)
        for path in FOLDER.glob("*.json"):
            if path.name not in new:
                path.unlink()
    PAGE.write_text(texts[0])
    README.write_text(texts[1])
    return results


def _check_one_kind(folder: Path, results: Results) -> None:
    """Raises SystemExit unless all examples have the same runs, all of the same settings, and each example one plan."""
    first = EXAMPLES[0]
    names = {each: {path.stem.removeprefix(each) for path in folder.glob(f"{each}*.json")} for each in EXAMPLES}
    for example in EXAMPLES:
        if other := sorted(names[first] ^ names[example]):
            lacks, has = (first, example) if other[0] in names[example] else (example, first)
            raise SystemExit(
                f"{folder} has {has}{other[0]}.json and no {lacks}{other[0]}.json: run the one or remove the other;"
                " docs and README stay as they are"
            )
    of_first = results[first]["runs"][0].get("settings") or {}
    for example, found in results.items():
        plan = (found["runs"][0].get("settings") or {}).get("plan")
        asked = {**of_first, "plan": plan} if of_first else {}
        kinds = [(f"a run of {example}", asked, run) for run in found["runs"]]
        for steps, run in found["after"].items():
            alone = {**asked, "placements": [TIERING], "warm_up": steps} if asked else {}
            kinds.append((f"{example}-after{steps}", alone, run))
        for name, kind, run in kinds:
            if (there := run.get("settings") or {}) != kind:
                raise SystemExit(
                    f"{folder}: {name} is of the settings {there or 'none'}, beside the others it has to be of"
                    f" {kind or 'none'}: run it again or remove it; docs and README stay as they are"
                )
