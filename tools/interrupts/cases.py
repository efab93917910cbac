"""Lives side by side, each in a process forked from one that has imported all they need and done nothing."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import signal
import sys
from collections import Counter
from dataclasses import asdict

import torch

from sentinel.profiler import torch_shim
from tools.interrupts.life import Outcome, Place, live

LONGEST_SECONDS = 300
"""A life that takes longer hangs: it is ended, and that is wrong."""


class CaseServer:
    """Runs lives under one page tracker. The process that makes it must not have had a session."""

    def __init__(self, tracker: str) -> None:
        self._tracker = tracker
        torch.set_num_threads(1)
        torch_shim.library()
        plain = self._wait(*self._begin(None))
        if plain.wrong:
            raise RuntimeError(f"without any interrupt: {plain.wrong}")
        for name in plain.modules:  # that a session imports late: once here, not once a life
            with contextlib.suppress(ImportError):  # some are no files
                importlib.import_module(name)
        self._places = plain.places

    def places(self, sample: int | None = None, seed: int = 0) -> list[Place]:
        """All places of a life, in the order in which they come; or a sample."""
        if sample is None or sample >= len(self._places):
            return list(self._places)
        return random.Random(seed).sample(self._places, sample)

    def run(self, places: list[Place], jobs: int = 1) -> dict[Place, Outcome]:
        """The outcome of an interrupt at each place."""
        outcomes: dict[Place, Outcome] = {}
        running: list[tuple[Place, int, int]] = []
        for place in places:
            if len(running) == jobs:
                first = running.pop(0)
                outcomes[first[0]] = self._wait(*first[1:])
            running.append((place, *self._begin(place)))
        for place, child, pipe in running:
            outcomes[place] = self._wait(child, pipe)
        return outcomes

    def _begin(self, target: Place | None) -> tuple[int, int]:
        """(process, pipe to read its outcome from)."""
        reading, writing = os.pipe()
        child = os.fork()
        if child:
            os.close(writing)
            return child, reading
        signal.alarm(LONGEST_SECONDS)
        os.close(reading)
        known = set(sys.modules)
        try:
            outcome = live(self._tracker, target)
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
            return Outcome(raised=True, wrong=[f"the process ended with status {status}"])
        found = json.loads(text)
        found["places"] = [tuple(place) for place in found["places"]]
        return Outcome(**found)


def table(outcomes: dict[Place, Outcome], tracker: str) -> tuple[str, int]:
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
    lines = [f"Tracker `{tracker}`.", "", f"| file | {' | '.join(columns)} |", "| --- |" + " ---: |" * len(columns)]
    for name, row in [*sorted(rows.items()), ("**all**", total)]:
        lines.append(f"| {name} | {' | '.join(str(row[column]) for column in columns)} |")
    for place, outcome in outcomes.items():
        lines += [f"* {place[0]}, {place[1]}:{place[2]}: {'; '.join(outcome.wrong)}"] if outcome.wrong else []
    return "\n".join(lines), total["wrong"]
