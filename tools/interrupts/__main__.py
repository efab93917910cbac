"""Interrupts a session at every line, and prints what came of it.

    python -m tools.interrupts --tracker pagemap                  every line in every part of a life that runs it: hours
    python -m tools.interrupts --once                             every line once, in a part chosen by --seed
    python -m tools.interrupts --sample 40 --seed 3               some of them
    python -m tools.interrupts --once --json all.json             keeps each outcome
    python -m tools.interrupts --once --json all.json --resume    goes on where that was interrupted
    python -m tools.interrupts --markdown page.md                 writes a page with the table, machine and versions

Tells every few seconds how far it is. Exit code 1 where something was left behind, a second session did not run, or
training differed from stock; 130 after Ctrl-C, with the table of what there is.
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

from benchmarks._bench import commit, machine, versions  # noqa: E402
from tools.interrupts.cases import CaseServer, table  # noqa: E402
from tools.interrupts.life import Outcome, Place  # noqa: E402

TELL_EVERY_S = 2
ABOUT = """\
# A session interrupted line by line

Ctrl-C may come at any moment. Here a KeyboardInterrupt is raised once at each line of Sentinel that one kind of session
runs: on an emulated tier, without a saved plan, without NUMA nodes and without a file as slow memory. What only other
sessions run was not interrupted.

A *life* is one session in a process of its own: `start_profile()`, a watched step, `end_profile()`, steps that are
watched again, applied steps, `stop()`. In each life the interrupt is raised at one line, and the program catches it and
goes on. A row of the table sums up the lives whose line is in that file:

- *reached*: lives in which the line ran, and so was interrupted. The others ran as their module was imported, which
  was done before.
- *went on*: the session went on after the interrupt. In the other lives it ended.
- *cut a step*: the interrupt ended the optimizer's step early, as Ctrl-C does in stock training.
- *wrong*: at least one of these is true after the next call to Sentinel. Something is left behind (a mapping, a
  descriptor, a thread, a hook, a log that grows). A second session does not run to its report. Losses or parameters
  differ by a bit from those of stock training whose step was cut at the same parameter.
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.interrupts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tracker", default="pagemap")
    parser.add_argument("--once", action="store_true", help="each line in one part only of those that run it")
    parser.add_argument("--sample", type=int, help="so many lines, chosen by --seed; without it, all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true", help="keep what --json has; only the other lines are run")
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    kept = _kept(parser, given)
    began = time.monotonic()
    sys.stderr.write("one life without an interrupt, to learn its lines\n")
    server = CaseServer(given.tracker)
    known = len(server.places())
    places = server.lines(given.seed) if given.once else server.places(given.sample, given.seed)
    which = "all" if len(places) == known else f"{len(places)} of them, seed {given.seed}"
    sys.stderr.write(f"a life has {known} places: a line in a part of it; interrupted: {which}\n")
    todo = [place for place in places if place not in kept]
    found = kept | server.run(todo, given.jobs, Progress(len(todo)))
    outcomes = {place: found[place] for place in places if place in found}
    text, wrong = table(outcomes, given.tracker)
    ended = f"{len(outcomes)} lives, of {known} places, in {time.monotonic() - began:.0f} s"
    sys.stdout.write(f"{text}\n{ended}\n")
    if given.json:
        rows = [{"place": place, **asdict(outcome)} for place, outcome in outcomes.items()]
        given.json.write_text(json.dumps({**_asked(given), "rows": rows}, indent=1))
    if given.markdown:
        given.markdown.write_text(f"{ABOUT}\n{_made_by(given, list(outcomes.values()), known)}\n\n{text}\n")
    if len(outcomes) < len(places):
        return 130
    return 1 if wrong else 0


def _asked(given: argparse.Namespace) -> dict[str, str]:
    """What outcomes that belong together have in common."""
    return {"tracker": given.tracker, "commit": commit()}


def _kept(parser: argparse.ArgumentParser, given: argparse.Namespace) -> dict[Place, Outcome]:
    """The outcomes that `--resume` goes on from; ends the program where they are of other lines."""
    if not given.resume:
        return {}
    if given.json is None or not given.json.exists():
        parser.error("--resume: name with --json the file of the run to go on with")
    told = json.loads(given.json.read_text())
    if (before := {name: told.get(name) for name in ("tracker", "commit")}) != _asked(given):
        parser.error(f"--resume: {given.json} is of {before}, this is {_asked(given)}: run without --resume")
    rows = [(tuple(row.pop("place")), row) for row in told["rows"]]
    return {place: Outcome(**row) for place, row in rows}


class Progress:
    """Says how many lives have ended, and how many wrongly, every few seconds."""

    def __init__(self, n_lives: int) -> None:
        self._n_lives, self._began = n_lives, time.monotonic()
        self._told = self._began

    def __call__(self, outcomes: dict[Place, Outcome]) -> None:
        now = time.monotonic()
        if now - self._told < TELL_EVERY_S:
            return
        self._told = now
        wrong = sum(bool(outcome.wrong) for outcome in outcomes.values())
        left_s = (now - self._began) / len(outcomes) * (self._n_lives - len(outcomes))
        done = f"{len(outcomes)} of {self._n_lives} lives, {wrong} wrong, some {left_s:.0f} s left"
        sys.stderr.write(f"{done}\n")
        sys.stderr.flush()


def _made_by(given: argparse.Namespace, outcomes: list[Outcome], known: int) -> str:
    """When, where and by which command a table was made."""
    seed = "" if given.sample is None else f" --sample {given.sample} --seed {given.seed}"
    seed = f" --once --seed {given.seed}" if given.once else seed
    reached = sum(outcome.raised for outcome in outcomes)
    about = machine()
    on = ", ".join(f"{name} {version}" for name, version in versions().items() if version)
    return (
        f"Made by `python -m tools.interrupts --tracker {given.tracker}{seed}` on {time.strftime('%Y-%m-%d')}"
        f", commit {commit()}.\n{len(outcomes):,} lives, of which {reached:,} reached their line and were"
        f" interrupted there; a life has {known:,} places, each a line in a part of it.\n"
        f"{about['cpu']}, {about['cores']} cores, Linux {about['kernel']}; {on}."
    )


if __name__ == "__main__":
    raise SystemExit(main())
