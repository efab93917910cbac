"""Interrupts a session at every line, and prints what came of it.

    python -m tools.interrupts --tracker pagemap                  every line in every part of a life that runs it: hours
    python -m tools.interrupts --slow file                        the same where slow memory is a file
    python -m tools.interrupts --once                             every line once, in a part chosen by --seed
    python -m tools.interrupts --sample 40 --seed 3               some of them
    python -m tools.interrupts --once --json all.json             keeps each outcome, also where it is killed
    python -m tools.interrupts --once --json all.json --resume    goes on where that was interrupted
    python -m tools.interrupts --markdown page.md                 writes its part of a page: table, machine and versions

Tells every few seconds how far it is. Exit code 1 where something was left behind, a second session did not run, or
training differed from stock; 130 after Ctrl-C, with the table of what there is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"  # before torch: a process with threads of its own cannot be forked for each line

from benchmarks._bench import ROOT, commit, machine, versions  # noqa: E402
from benchmarks._page_parts import between  # noqa: E402
from sentinel.system.disks import disk_of  # noqa: E402
from tools.interrupts.cases import CaseServer, table  # noqa: E402
from tools.interrupts.interrupter import Place  # noqa: E402
from tools.interrupts.kinds import EmulatedLife, FileLife  # noqa: E402
from tools.interrupts.life import Life, Outcome  # noqa: E402

TELL_EVERY_S, KEEP_EVERY_S = 2, 30
EMULATED, FILE = "emulated", "file"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.interrupts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--slow", choices=(EMULATED, FILE), default=EMULATED, help="where slow memory is")
    parser.add_argument("--tracker", default="pagemap", help="of pages; a file needs none")
    parser.add_argument("--directory", type=Path, help="for files; without it, for temporary ones")
    parser.add_argument("--once", action="store_true", help="each line in one part only of those that run it")
    parser.add_argument("--sample", type=int, help="so many lines, chosen by --seed; without it, all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true", help="keep what --json has; only the other lines are run")
    parser.add_argument("--markdown", type=Path, help="a page; what it has of lives of the other kind stays")
    given = parser.parse_args()
    if given.markdown:
        try:
            _page(given, [])
        except ValueError as error:  # now, not after an hour
            parser.error(f"--markdown: {error}")
    kept = _kept(parser, given)
    with tempfile.TemporaryDirectory(dir=_disk(given.directory)) as folder:
        return _run(given, kept, _maker(given, Path(folder)))


def _run(given: argparse.Namespace, kept: dict[Place, Outcome], make: Callable[[], Life]) -> int:
    began = time.monotonic()
    sys.stderr.write("one life without an interrupt, to learn its lines\n")
    server = CaseServer(make)
    known = len(server.places())
    places = server.lines(given.seed) if given.once else server.places(given.sample, given.seed)
    which = "all" if len(places) == known else f"{len(places)} of them, seed {given.seed}"
    sys.stderr.write(f"a life has {known} places: a line in a part of it; interrupted: {which}\n")
    todo = [place for place in places if place not in kept]
    keep = partial(_keep, given, kept) if given.json else None
    found = kept | server.run(todo, given.jobs, Progress(len(todo), keep))
    outcomes = {place: found[place] for place in places if place in found}
    text, wrong = table(outcomes)
    ended = f"{len(outcomes)} lives, of {known} places, in {time.monotonic() - began:.0f} s"
    sys.stdout.write(f"{text}\n{ended}\n")
    if given.json:
        _keep(given, {}, outcomes)
    if given.markdown:
        lines = [_made_by(given, list(outcomes.values()), known), "", text]
        given.markdown.write_text(_page(given, lines))
    if len(outcomes) < len(places):
        return 130
    return 1 if wrong else 0


def _maker(given: argparse.Namespace, folder: Path) -> Callable[[], Life]:
    return partial(FileLife, folder) if given.slow == FILE else partial(EmulatedLife, given.tracker)


def _disk(directory: Path | None) -> Path:
    """The directory, or one that is on a disk where there is one."""
    if directory is not None:
        return directory
    usual = Path(tempfile.gettempdir())
    return ROOT if disk_of(usual).in_memory else usual


def _asked(given: argparse.Namespace) -> dict[str, str]:
    """What outcomes that belong together have in common."""
    return {"slow": given.slow, "tracker": given.tracker, "commit": commit()}


def _kept(parser: argparse.ArgumentParser, given: argparse.Namespace) -> dict[Place, Outcome]:
    """The outcomes that `--resume` goes on from; ends the program where they are of other lines."""
    if not given.resume:
        return {}
    if given.json is None or not given.json.exists():
        parser.error("--resume: name with --json the file of the run to go on with")
    told, asked = json.loads(given.json.read_text()), _asked(given)
    if (before := {name: told.get(name) for name in asked}) != asked:
        parser.error(f"--resume: {given.json} is of {before}, this is {asked}: run without --resume")
    rows = [(tuple(row.pop("place")), row) for row in told["rows"]]
    return {place: Outcome(**row) for place, row in rows}


def _keep(given: argparse.Namespace, kept: dict[Place, Outcome], found: dict[Place, Outcome]) -> None:
    """Write both to the file of --json, which is whole at each moment."""
    rows = [{"place": place, **asdict(outcome)} for place, outcome in (kept | found).items()]
    beside = given.json.with_name(f"{given.json.name}.new")
    beside.write_text(json.dumps({**_asked(given), "rows": rows}, indent=1))
    beside.replace(given.json)


class Progress:
    """Says at once which life went wrong, and every few seconds how many have ended; `keep` has them twice a minute."""

    def __init__(self, n_lives: int, keep: Callable[[dict[Place, Outcome]], None] | None = None) -> None:
        self._n_lives, self._began, self._keep = n_lives, time.monotonic(), keep
        self._told = self._kept = self._began
        self._wrong: set[Place] = set()

    def __call__(self, outcomes: dict[Place, Outcome]) -> None:
        now = time.monotonic()
        for place in [place for place, outcome in outcomes.items() if outcome.wrong and place not in self._wrong]:
            self._wrong.add(place)
            sys.stderr.write(f"wrong: {' '.join(map(str, place))}: {'; '.join(outcomes[place].wrong)}\n")
        if self._keep and now - self._kept >= KEEP_EVERY_S:
            self._kept = now
            self._keep(outcomes)
        if now - self._told < TELL_EVERY_S:
            return
        self._told = now
        left_s = (now - self._began) / len(outcomes) * (self._n_lives - len(outcomes))
        done = f"{len(outcomes)} of {self._n_lives} lives, {len(self._wrong)} wrong, some {left_s:.0f} s left"
        sys.stderr.write(f"{done}\n")
        sys.stderr.flush()


def _page(given: argparse.Namespace, lines: list[str]) -> str:
    """The page, with these lines where lives of this kind are; one that is not there yet has nothing else.

    Raises ValueError where a page has no place for them.
    """
    where = "in a file" if given.slow == FILE else "on an emulated tier"
    begin = f"<!-- slow memory {where}: made by `python -m tools.interrupts` -->"
    end = f"<!-- end of slow memory {where} -->"
    page = given.markdown.read_text() if given.markdown.exists() else f"{begin}{end}\n"
    return between(page, begin, end, lines)


def _made_by(given: argparse.Namespace, outcomes: list[Outcome], known: int) -> str:
    """When, where and by which command a table was made."""
    which = f"--slow {FILE}" if given.slow == FILE else f"--tracker {given.tracker}"
    seed = "" if given.sample is None else f" --sample {given.sample} --seed {given.seed}"
    seed = f" --once --seed {given.seed}" if given.once else seed
    reached = sum(outcome.raised for outcome in outcomes)
    about = machine()
    on = ", ".join(f"{name} {version}" for name, version in versions().items() if version)
    return (
        f"Made by `python -m tools.interrupts {which}{seed}` on {time.strftime('%Y-%m-%d')}"
        f", commit {commit()}.\n{len(outcomes):,} lives, of which {reached:,} reached their line and were"
        f" interrupted there; a life has {known:,} places, each a line in a part of it.\n"
        f"{about['cpu']}, {about['cores']} cores, Linux {about['kernel']}; {on}."
    )


if __name__ == "__main__":
    raise SystemExit(main())
