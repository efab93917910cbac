"""One example under one saved plan, a few steps at a time, for benchmarks/blind_validation.py.

It speaks in lines: {"ready": true} once the plan is applied and has settled; after each line that it is sent, the ns
that its next steps took; at the end what the run counted. Between its turns it waits within the last tick of a step.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any, TextIO

import sentinel
from benchmarks import _other_physics
from benchmarks._validated_run import trained
from sentinel.core.run import Run
from sentinel.migration import due_moves
from sentinel.migration.trials import Trials
from sentinel.session import current, set_overrides
from sentinel.session.planning import Dataflow

BEFORE = 8
"""Steps in which nothing is judged, at most: optimizer state is born, a saved plan is checked against a step or two."""


class AlwaysWaits(Trials):
    """A step waits for each late move, as predictions have it; a session stops waiting where that is faster."""

    def wait(self, layer: int) -> bool:
        """See Trials."""
        del layer
        return True


class Turns(sentinel.Observer):
    """Waits for each of its `turns` of `group` steps, `settling` after a plan was applied. `left`: turns to come."""

    def __init__(self, turns: int, group: int, settling: int, answers: TextIO) -> None:
        self._group, self._settling, self._answers = group, settling, answers
        self._took_ns: list[int] = []
        self._began_ns = 0
        self.left = turns

    def step_ended(self) -> None:
        """See Observer. The time between two of these calls is a step's, the wait for the turn left out."""
        now = time.perf_counter_ns()
        if self._settling > 0:
            self._settling -= 1
            if not self._settling:
                self._wait({"ready": True})
        elif self.left:
            self._took_ns.append(now - self._began_ns)
            if len(self._took_ns) == self._group:
                self.left -= 1
                self._wait({"took_ns": self._took_ns})
                self._took_ns = []
        self._began_ns = time.perf_counter_ns()

    def _wait(self, answer: dict[str, Any]) -> None:
        tell(self._answers, answer)
        if not sys.stdin.readline():
            os._exit(1)  # who takes turns with it is gone: nobody wants the rest


def tell(answers: TextIO, answer: dict[str, Any]) -> None:
    """One line."""
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def counted(run: Run, flow: Dataflow, notes: list[str]) -> dict[str, Any]:
    """What the run says of itself. `as_saved`: the saved plan was carried out to the end, and no other. `links`: what
    movers were throttled to, in bytes per second."""
    counters, machine = run.counters, flow.machine
    assert machine is not None
    return {
        "links": [[link.source, link.target, link.bandwidth_bytes_per_s] for link in machine.links],
        "emulated": run.emulated,
        "as_saved": flow.trace is None and not counters.steps_before,
        "notes": notes,
        "steps": counters.steps,
        "steps_out_of_step": counters.steps_out_of_step,
        "copied_bytes": counters.copied_bytes,
        "uncopied_bytes": counters.uncopied_bytes,
        "copy_cpu_ns": counters.copy_cpu_ns,
        "injected_ns": counters.injected_ns,
        "stall_ns": counters.stall_ns,
        "late": counters.late,
        "cases": counters.cases,
    }


def main() -> None:
    """Train by turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("example", "plan", "machine", "slow", "physics"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("fast", "turns", "group", "settling"):
        parser.add_argument(f"--{name}", type=int, required=True)
    given = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the example prints its losses
    if given.physics == "other":
        _other_physics.install()
    due_moves.Trials = AlwaysWaits  # type: ignore[misc]
    set_overrides({"fast": given.fast, "slow": given.slow, "plan": given.plan, "machine": given.machine})
    watched = Turns(given.turns, given.group, given.settling, answers)
    with sentinel.observe(watched):
        trained(given.example, BEFORE + given.settling + given.turns * given.group)
    session = current()
    run = sentinel.stop()
    assert session is not None
    if watched.left:
        raise SystemExit(f"{watched.left} of {given.turns} turns are left: the plan was applied too late or never")
    tell(answers, counted(run, session.flow, list(session.notes)))


if __name__ == "__main__":
    main()
