"""Claim: predictions made before the runs that judge them are right about each step and about what slow memory adds.

Two commands. `--predict` trains each example with everything fast; from its layer times and one profile a plan is made
and simulated for each policy, on the machine asked for, its links no faster than one mover (2 GB/s) nor than this host
copies beside those steps. What a byte that moves takes from compute is measured beside them too, by copies of blocks;
what a migration takes, as `sentinel calibrate` measures it there and then. What is predicted is the ratio of
the step to a plain one. It goes into a file with its SHA-256 beside it, which have to be committed, alone.

`--judge` refuses predictions that are not committed. The plans are carried out as saved, on the machine that was
predicted, with an emulated tier: copies are real, delays of slow accesses are injected. One process trains plainly (all
fast, nothing moves), others by the plans, and they take turns of a few steps; each turn is held against the plain ones
before and after it. The first step of each turn is left out. `all-fast` is among the judged: its error is that of the
method. So is `sentinel-forced` where ours moves nothing at the price of moves: ours as it would be if they were free.

With `--physics other` the emulator obeys other laws than the model (benchmarks/_other_physics.py), and the predictions
stay as they are: judged is whether policies that were predicted more than 3 % apart come in the predicted order.

    python -m benchmarks.blind_validation --predict && git add docs/validation && git commit
    python -m benchmarks.blind_validation --judge          # hours; with --quick, in both: minutes

Keep the host idle: while others have more than 5 % of the processors nothing is predicted or judged. What is judged
already is not run again. Predictions are made again only with `--again WHY`, which counts as one more try.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from benchmarks import _bench, blind_validation_page
from benchmarks._blind_commitment import ALL_FAST, FORCED, checked, committed, digest_of, results_of, written
from benchmarks.validation import EXAMPLES
from sentinel.planner import POLICIES

CLAIM = (__doc__ or "").partition("\n")[0].removeprefix("Claim: ")
CONTROL = ALL_FAST
QUICK_EXAMPLES, QUICK_POLICIES = ("02_resnet", "03_lstm"), ("sentinel", "capuchin", "lru")
APART = 1.03
"""Policies are ranked where one was predicted to take more than so many times the step of the other."""
LEAST_ADDED = 0.01
"""Where slow memory adds less than this share of a step, the error of the added time would be that of the clock."""
TOGETHER = 3
"""Policies that take turns with one plain process: more would not fit into memory, nor into one speed of the host."""
SETTLING = 12
"""Steps before the first turn: optimizer state has settled by then, and test and trial has decided."""
PREDICTING_STEPS = 22
"""One creates the optimizer's state, one is profiled; the plan is retimed after 16, from the latest 8."""
MOST_OTHERS = 0.05
"""Share of the processors that others may have while predictions are made, or judged."""
INTO = _bench.ROOT / "docs" / "validation"


class TurnTaker:
    """A process that trains by one plan while it has its turn."""

    def __init__(self, words: Sequence[str], threads: int) -> None:
        of_threads = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks._blind_turns", *words],
            cwd=_bench.ROOT,
            env={**os.environ, **of_threads},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )
        try:
            self._answer()
        except BaseException:  # Ctrl-C too: nobody else knows of the process yet
            self.close()
            raise

    def take(self) -> float:
        """Median ns of the steps of one turn, the first left out."""
        return statistics.median(self._next()["took_ns"][1:])

    def end(self) -> dict[str, Any]:
        """What the run counted."""
        return self._next()

    def close(self) -> None:
        """The process ends, however far it came."""
        self._process.kill()
        self._process.wait()
        self._said.close()

    def _next(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: that there is no answer tells why
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._said.seek(0)
            raise SystemExit(f"a training process ended early:\n{self._said.read()[-4000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def predict(given: argparse.Namespace, settings: Mapping[str, Any]) -> Path:
    """Writes what is predicted into a file, its digest beside it. SystemExit where that is there, and nobody said why
    it is made again."""
    path = given.into / f"{given.stem}predictions.json"
    if path.exists() and not given.again:
        raise SystemExit(f"{path} is there: judge it with --judge, or say with --again WHY it is made once more")
    examples = {}
    for example in given.examples:
        words = ["--example", example, "--fast", given.fast, "--slow", given.slow, "--plans", str(given.plans)]
        words += ["--steps", str(PREDICTING_STEPS), "--policies", *given.policies]
        of_threads = {"OMP_NUM_THREADS": str(given.threads), "MKL_NUM_THREADS": str(given.threads)}
        share = _bench.others_share()
        examples[example] = _bench.child("benchmarks._blind_prediction", words, of_threads)
        examples[example]["others_share"] = _alone(share(), given, f"{example} was predicted")
        print(f"{example}: predicted", file=sys.stderr, flush=True)
    written(path, _bench.told(CLAIM, settings, examples), given.again)
    return path


def _alone(others: float, given: argparse.Namespace, done: str) -> float:
    """The share that others had. SystemExit if that was more than they may have."""
    if others > given.others:
        had = f"others had {others:.0%} of the processors while {done}"
        raise SystemExit(f"{had}: its times are theirs too, and are not kept; leave the host alone, and begin again")
    return others


def judged(
    example: str, policies: Sequence[str], predicted: Mapping[str, Any], given: argparse.Namespace, physics: str
) -> Iterator[dict[str, Any]]:
    """Cells of some policies of one example, which have taken turns with plain steps."""
    of_example = predicted["results"][example]
    rows, group = of_example["policies"], steps_of_a_turn(of_example["plain_ns"], given.group, given.seconds)

    def process(policy: str, turns: int) -> TurnTaker:
        row = rows[policy]
        plan, machine = (
            _as_predicted(given.plans, told, what) for told, what in ((row, "plan"), (of_example, "machine"))
        )
        settings = {"plan": plan, "machine": machine, "fast": row["fast_bytes"], "turns": turns, "settling": SETTLING}
        settings |= {"example": example, "slow": given.slow, "physics": physics, "group": group}
        return TurnTaker([f"--{name}={value}" for name, value in settings.items()], given.threads)

    running: dict[str, TurnTaker] = {}
    plain: TurnTaker | None = None
    try:
        plain = process(CONTROL, given.rounds * len(policies) + 1)
        for policy in policies:
            running[policy] = process(policy, given.rounds)
        ratios: dict[str, list[float]] = {policy: [] for policy in policies}
        before = plain.take()
        plains = [before]
        for order in _bench.taking_turns(policies, given.rounds):
            for policy in order:
                took = running[policy].take()
                after = plain.take()
                ratios[policy].append(2 * took / (before + after))
                before = after
                plains.append(after)
        ends = {policy: each.end() for policy, each in running.items()}
    finally:
        for each in (plain, *running.values()):
            if each is not None:
                each.close()
    for policy in policies:
        found = cell(rows[policy]["ratio"], ratios[policy], ends[policy], of_example["links"])
        told = {"group": group, "plain_ns": statistics.median(plains)}
        yield {**found, **told, "plain_spread": blind_validation_page.spread(plains)}


def steps_of_a_turn(plain_ns: int, least: int, seconds: float) -> int:
    """At least `least`, and as many as take `seconds`, the first one left out: the shorter steps are, the more they
    vary."""
    return max(least, math.ceil(seconds * 1e9 / plain_ns) + 1)


def _as_predicted(plans: Path, told: Mapping[str, Any], what: str) -> Path:
    """The file of a plan or machine. SystemExit if it is not the one that was predicted."""
    path = plans / told[what]
    if digest_of(path) != told[f"{what}_sha256"]:
        raise SystemExit(f"{path} is not the {what} that was predicted: predict again, with --again WHY")
    return path


def cell(
    ratio: float, ratios: Sequence[float], end: Mapping[str, Any], links: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """What was predicted and executed, and the errors: predicted over executed, less one. SystemExit if what ran was
    not what was predicted."""
    if not end["emulated"] or not end["as_saved"]:
        raise SystemExit(f"the saved plan was not carried out on an emulated tier: {end['notes']}")
    if end["links"] != links:
        raise SystemExit(f"it ran with links of {end['links']} bytes per second, and was predicted with {links}")
    executed = statistics.median(ratios)
    added = executed - 1
    return {
        "predicted": ratio,
        "executed": executed,
        "ratios": list(ratios),
        "spread": blind_validation_page.spread(ratios),
        "error": ratio / executed - 1,
        "added_error": (ratio - 1) / added - 1 if added > LEAST_ADDED else None,
        "run": dict(end),
    }


def summary(cells: Sequence[Mapping[str, Any]], migrations: Mapping[tuple[str, str], int]) -> dict[str, Any]:
    """Of the cells of one physics, those of policies that move: errors of ratio and added time; and of all: how many
    pairs that were predicted apart came in that order."""
    moving = [each for each in cells if migrations[each["example"], each["policy"]]]
    errors = [each["error"] for each in moving]
    added = [each["added_error"] for each in moving if each["added_error"] is not None]
    kept, pairs = ranking(cells)
    return {
        "cells": len(moving),
        "ratio_mean": _mean(map(abs, errors)),
        "ratio_worst": max(errors, key=abs, default=None),
        "ratio_bias": _mean(errors),
        "added_cells": len(added),
        "added_mean": _mean(map(abs, added)),
        "added_worst": max(added, key=abs, default=None),
        "added_bias": _mean(added),
        "pairs": pairs,
        "pairs_kept": kept,
    }


def ranking(cells: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """(pairs that came in the predicted order, pairs that were predicted apart), of policies of the same example."""
    kept = pairs = 0
    for one, other in combinations(cells, 2):
        if one["example"] != other["example"]:
            continue
        fast, slow = sorted((one, other), key=lambda each: each["predicted"])
        if slow["predicted"] > APART * fast["predicted"]:
            pairs += 1
            kept += slow["executed"] > fast["executed"]
    return kept, pairs


def _mean(values: Any) -> float | None:
    found = list(values)
    return statistics.fmean(found) if found else None


def main() -> None:
    """Predict, or judge and write the files and the page."""
    given = _given()
    settings = {name: getattr(given, name) for name in ("slow", "fast", "threads")}
    if given.predict:
        path = predict(given, settings)
        names = f"{path.name} {path.with_suffix('.sha256').name} tries.json"
        print(f"commit {names} in {path.parent}, and nothing else; then run --judge", file=sys.stderr)
    else:
        judge(given, settings)


def judge(given: argparse.Namespace, settings: Mapping[str, Any]) -> None:
    """Runs what is still to be judged, and writes results and page after each sitting."""
    source = given.into / f"{given.stem}predictions.json"
    predicted = checked(source, settings)
    path = results_of(source)
    before = json.loads(path.read_text()) if path.exists() else {}
    cells = before["results"]["cells"] if before else []
    of = {"predictions": {"sha256": predicted["sha256"], "when": predicted["when"], **committed(source)}, **settings}
    of |= {"rounds": given.rounds, "group": given.group, "seconds": given.seconds, "quick": bool(given.stem)}
    if before and before["predictions"]["sha256"] != predicted["sha256"]:
        raise SystemExit(f"{path} judged other predictions: remove it, or give another --into")
    if otherwise := [name for name in ("rounds", "group", "seconds") if before and before.get(name) != of[name]]:
        raise SystemExit(f"{path} was judged with other {', '.join(otherwise)}: remove it, or give another --into")
    for physics, example, policies in _sittings(given, predicted, cells):
        share = _bench.others_share()
        found = list(judged(example, policies, predicted, given, physics))
        others = _alone(share(), given, f"{example} was judged")
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        for policy, each in zip(policies, found, strict=True):
            cells.append(
                {"physics": physics, "example": example, "policy": policy, "when": when, "others_share": others, **each}
            )
            print(f"{physics} {example} {policy}: {each['error']:+.1%}", file=sys.stderr, flush=True)
        path.write_text(json.dumps(_bench.told(CLAIM, of, _results(cells, predicted)), indent=1) + "\n")
    if given.into == INTO:
        blind_validation_page.write()
    else:
        (given.into / "page.md").write_text(blind_validation_page.sections(given.into))


def _results(cells: list[dict[str, Any]], predicted: Mapping[str, Any]) -> dict[str, Any]:
    rows = predicted["results"]
    migrations = {
        (example, policy): row.get("migrations", 0)
        for example, told in rows.items()
        for policy, row in told["policies"].items()
    }
    physics = dict.fromkeys(each["physics"] for each in cells)
    summaries = {name: summary([each for each in cells if each["physics"] == name], migrations) for name in physics}
    return {"summaries": summaries, "cells": cells}


def _sittings(
    given: argparse.Namespace, predicted: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str, list[str]]]:
    """(physics, example, policies) that are still to be judged, as many policies as take turns together."""
    done = {(each["physics"], each["example"], each["policy"]) for each in cells}
    for physics in given.physics:
        for example in given.examples:
            if example not in predicted["results"]:
                raise SystemExit(f"{example} was not predicted: give another --into, and predict it")
            rows = predicted["results"][example]["policies"]
            wanted = [
                policy
                for policy in (*given.policies, FORCED, CONTROL)
                if (physics, example, policy) not in done and "refused" not in rows.get(policy, {"refused": ""})
            ]
            for first in range(0, len(wanted), TOGETHER + 1):
                yield physics, example, wanted[first : first + TOGETHER + 1]


def _given() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--predict", action="store_true", help="write predictions and digest, to be committed")
    what.add_argument("--judge", action="store_true", help="run what was predicted, and was committed since")
    parser.add_argument(
        "--quick", action="store_true", help=f"{', '.join(QUICK_EXAMPLES)}; {', '.join(QUICK_POLICIES)}"
    )
    parser.add_argument("--physics", nargs="+", choices=("same", "other"), default=["same", "other"])
    parser.add_argument("--examples", nargs="+", choices=EXAMPLES)
    parser.add_argument("--policies", nargs="+", choices=[name for name in POLICIES if name != CONTROL])
    parser.add_argument("--fast", default="20%", help="fast memory (default 20%%)")
    parser.add_argument("--slow", default="emulated:cxl-asic-x8", help="the slower tier (default %(default)s)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=16, help="turns of each policy (default %(default)s)")
    parser.add_argument(
        "--group", type=int, default=5, help="least steps of a turn, the first left out (default %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="that a turn of shorter steps takes at least (default %(default)s)"
    )
    parser.add_argument("--into", type=Path, default=INTO, metavar="FOLDER", help="default docs/validation")
    parser.add_argument("--plans", type=Path, metavar="FOLDER", help="keep the plans here (default build/validation)")
    parser.add_argument(
        "--others",
        type=float,
        default=MOST_OTHERS,
        metavar="SHARE",
        help="nothing is kept where others had a larger share of the processors (default %(default)s)",
    )
    parser.add_argument("--again", metavar="WHY", help="predict once more, though predictions are there")
    given = parser.parse_args()
    if given.group < 2 or given.rounds < 1:
        parser.error("--group must be at least 2, --rounds at least 1")
    if given.again and given.judge:
        parser.error("--again goes with --predict")
    given.into = given.into.resolve()
    given.stem = "quick-" if given.quick else ""
    given.examples = given.examples or list(QUICK_EXAMPLES if given.quick else EXAMPLES)
    given.policies = given.policies or (
        list(QUICK_POLICIES) if given.quick else [name for name in POLICIES if name != CONTROL]
    )
    given.plans = given.plans or _bench.ROOT / "build" / f"{given.stem}validation"
    return given


if __name__ == "__main__":
    main()
