"""Lives side by side, each in a process forked from one that has imported all they need and done nothing."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import select
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict

import torch

from sentinel.profiler import torch_shim
from tools.interrupts.interrupter import Place
from tools.interrupts.life import Life, Outcome, live

LONGEST_SECONDS = 300
"""A life that takes longer hangs: it is ended, and that is wrong."""


class CaseServer:
    """Runs lives of one kind. The process that makes it must not have had a session."""

    def __init__(self, make: Callable[[], Life]) -> None:
        self._make = make
        torch.set_num_threads(1)
        torch_shim.library()
        plain = self._wait(*self._begin(None))
        if plain.wrong:
            raise RuntimeError(f"without any interrupt: {plain.wrong}")
        for name in plain.modules:  # that a session imports late: once here, not once a life
            with contextlib.suppress(ImportError):  # some are no files
                importlib.import_module(name)
        gc.freeze()  # what all lives are born with: each looks through its own objects only, in half the time
        self._places = plain.places

    def places(self, sample: int | None = None, seed: int = 0) -> list[Place]:
        """All places of a life, in the order in which they come; or a sample."""
        if sample is None or sample >= len(self._places):
            return list(self._places)
        return random.Random(seed).sample(self._places, sample)

    def lines(self, seed: int) -> list[Place]:
        """Each line once, in one of the parts of a life that run it."""
        parts: dict[tuple[str, int], list[Place]] = {}
        for place in self._places:
            parts.setdefault(place[1:], []).append(place)
        return [random.Random(f"{seed} {line}").choice(places) for line, places in parts.items()]

    def run(self, places: list[Place], jobs: int, tell: Callable[[dict[Place, Outcome]], None]) -> dict[Place, Outcome]:
        """The outcome of an interrupt at each place, in their order; `tell` has those so far after each.

        A KeyboardInterrupt ends the lives that run, and returns what there is.
        """
        outcomes: dict[Place, Outcome] = {}
        running: dict[int, tuple[Place, int]] = {}  # by the pipe that its outcome comes from
        waiting = list(reversed(places))
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    child, pipe = self._begin(waiting[-1])
                    running[pipe] = waiting.pop(), child
                for pipe in select.select(list(running), [], [])[0]:  # one that hangs keeps no other from ending
                    place, child = running[pipe]
                    outcomes[place] = self._wait(child, pipe)
                    del running[pipe]
                    tell(outcomes)
        except KeyboardInterrupt:
            for _, child in running.values():
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        return {place: outcomes[place] for place in places if place in outcomes}

    def _begin(self, target: Place | None) -> tuple[int, int]:
        """(process, pipe to read its outcome from)."""
        reading, writing = os.pipe()
        child = os.fork()
        if child:
            os.close(writing)
            return child, reading
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all of us, and is not the interrupt of this life
        signal.alarm(LONGEST_SECONDS)
        os.close(reading)
        known = set(sys.modules)
        try:
            outcome = live(self._make, target)
        except BaseException as error:
            outcome = Outcome(raised=True, wrong=[f"{type(error).__name__}: {error}"])
        if target is None:
            outcome.modules = sorted(set(sys.modules) - known)
        else:
            outcome.places = []
        with os.fdopen(writing, "w") as pipe:
            json.dump(asdict(outcome), pipe)
        os._exit(0)

    @staticmethod
    def _wait(child: int, pipe: int) -> Outcome:
        with os.fdopen(pipe) as reading:
            text = reading.read()
        _, status = os.waitpid(child, 0)
        if not text:
            hung = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
            ended = f"it hung for {LONGEST_SECONDS} s" if hung else f"the process ended with status {status}"
            return Outcome(raised=True, wrong=[ended])
        found = json.loads(text)
        found["places"] = [tuple(place) for place in found["places"]]
        return Outcome(**found)


def table(outcomes: dict[Place, Outcome]) -> tuple[str, int]:
    """Markdown, a row a file, and how many lives went wrong."""
    rows: dict[str, Counter[str]] = {}
    for (_, file, _), outcome in outcomes.items():
        row = rows.setdefault(file, Counter())
        row["lines"] += 1
        row["reached"] += outcome.raised
        row["went on"] += outcome.raised and outcome.session_went_on
        row["cut a step"] += outcome.cut_step is not None
        row["wrong"] += bool(outcome.wrong)
    columns = ("lines", "reached", "went on", "cut a step", "wrong")
    total = sum(rows.values(), Counter[str]())
    lines = [f"| file | {' | '.join(columns)} |", "| --- |" + " ---: |" * len(columns)]
    for name, row in [*sorted(rows.items()), ("**all**", total)]:
        lines.append(f"| {name} | {' | '.join(str(row[column]) for column in columns)} |")
    for place, outcome in outcomes.items():
        lines += [f"* {place[0]}, {place[1]}:{place[2]}: {'; '.join(outcome.wrong)}"] if outcome.wrong else []
    return "\n".join(lines), total["wrong"]
