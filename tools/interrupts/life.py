"""One life of a session, with an interrupt at one line of it, in a process forked for that.

The rule by which training is judged: an interrupt may cut the step that it comes in, as it would without Sentinel. So
each parameter must then be as it was before the step, or as after it, and those that are as after it must be whole
slices, the first of them. Stock training with a step that did just that, and nothing else, must end with the same bits.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch.optim import Optimizer

import sentinel
from sentinel.core.errors import UsageError
from sentinel.profiler import slices
from sentinel.profiler.annotate import Annotation
from sentinel.reports import Report
from tools.interrupts.interrupter import Interrupter, Place
from tools.interrupts.surroundings import Surroundings, hooks_left
from tools.interrupts.training import MORE_STEPS, Shape, Training, bits_of


class Part(NamedTuple):
    """`step`: the number of the training step that `call` takes, if it takes one."""

    name: str
    call: Callable[[], object]
    step: int | None = None


class Interrupted(NamedTuple):
    """What training was like when the interrupt had come: the bits before step `step`, or, if the interrupt `cut` that,
    within it."""

    step: int
    cut: bool
    bits: list[bytes]


@dataclass
class Outcome:
    """What one life left behind. `wrong`: sentences, empty where all is well."""

    raised: bool = False
    session_went_on: bool = False
    cut_step: int | None = None
    wrong: list[str] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)


class Life(ABC):
    """A training with two sessions, one after the other; kinds of lives differ in where slow memory is."""

    shape: Shape
    asked: dict[str, Any]
    """Of `start_profile`."""
    folder: Path | None = None
    """Where sessions have their files."""

    def __init__(self) -> None:
        self.training = Training(self.shape)
        self._annotation: Annotation | None = None

    @abstractmethod
    def parts(self) -> Iterator[Part]:
        """Of the first session, in which the interrupt comes, up to a step after its end. What is done between two of
        them is not interrupted."""

    @abstractmethod
    def undone(self) -> str:
        """What the first session was to do and did not, though nothing interrupted it."""

    @abstractmethod
    def between_sessions(self) -> None:
        """Once the first session has ended."""

    @abstractmethod
    def within_second(self) -> None:
        """As soon as the second session has begun."""

    @abstractmethod
    def undone_by_second(self, report: Report) -> str:
        """As `undone`, of the second session."""

    def grow(self) -> None:
        """The model, annotated."""
        self.training.grow()
        self._annotation = sentinel.annotate(self.training.model, self.training.optimizer)

    def leave(self) -> None:
        """Values are copied, and the model is gone."""
        if self._annotation is not None:
            self._annotation.remove()
        self.training.leave()

    def end_profile(self) -> None:
        """A step that was cut before its first layer ended has no profile: that is said, and the session has ended."""
        if not sentinel.active():
            return
        try:
            sentinel.end_profile()
        except UsageError as error:
            if 0 in self.training.losses or "has no layer" not in str(error) or sentinel.active():
                raise

    def step(self, name: str, number: int) -> Part:
        """A training step, as a part of this name."""
        return Part(name, lambda: self.training.step(number), number)


def live(make: Callable[[], Life], target: Place | None) -> Outcome:
    """A life in this process, which must be a fresh one, with an interrupt at `target`."""
    warnings.simplefilter("ignore")
    life, interrupter, outcome = make(), Interrupter(target), Outcome()
    around = Surroundings(life.folder)
    seen = _interrupted(life, interrupter, outcome)
    outcome.raised, outcome.places = interrupter.raised, list(interrupter.places)
    if not interrupter.raised and (undone := life.undone()):
        outcome.wrong.append(undone)
    outcome.wrong += hooks_left(life.training)
    life.between_sessions()
    outcome.wrong += around.left()
    outcome.wrong += _second_session(life)
    life.leave()
    outcome.wrong += around.left()
    outcome.wrong += _unlike_stock(life.training, seen)
    outcome.wrong = list(dict.fromkeys(outcome.wrong))  # what stays is found twice
    return outcome


def stop() -> None:
    """Where a session runs, it ends."""
    if sentinel.active():
        sentinel.stop()


def _interrupted(life: Life, interrupter: Interrupter, outcome: Outcome) -> Interrupted | None:
    """The first session. What was there once the interrupt had come; None where there was no model, or none came."""
    training, begun, seen = life.training, 0, None
    for part in life.parts():
        try:
            with interrupter.within(part.name):
                part.call()
        except KeyboardInterrupt:
            outcome.session_went_on = sentinel.active()
            whole = part.step in training.losses
            outcome.cut_step = None if whole else part.step
            if hasattr(training, "model"):
                seen = Interrupted(begun + whole, outcome.cut_step is not None, bits_of(training.values()))
        begun += part.step is not None
    stop()  # where the interrupt came before it had begun, the session went on whole
    return seen


def _second_session(life: Life) -> list[str]:
    try:
        sentinel.start_profile(**life.asked)
        life.within_second()
        first = life.shape.steps + 1
        life.training.step(first)
        sentinel.end_profile()
        for i in range(first + 1, life.shape.steps + MORE_STEPS):
            life.training.step(i)
        sentinel.stop()
        report = sentinel.report()
        report.text()
        undone = life.undone_by_second(report)
        return [f"the second session {undone}"] if undone else []
    except Exception as error:
        return [f"the second session: {type(error).__name__}: {error}"]


def _unlike_stock(training: Training, seen: Interrupted | None) -> list[str]:
    """What differs from stock training, whose step was cut where ours was."""
    stock, found = Training(training.shape), []
    stock.grow()
    for i in range(training.shape.steps + MORE_STEPS):
        at = seen if seen is not None and seen.step == i else None
        if at is not None and at.cut:
            found += _within_a_slice(stock.optimizer, i, stock.cut_step(i, at.bits))
        if at is not None and bits_of(stock.values()) != at.bits:
            found.append("as the interrupt had come, parameters differed from stock's")
        if at is None or not at.cut:
            stock.step(i)
    if stock.losses != training.losses:
        found.append("losses differ from stock's")
    if bits_of(stock.values()) != bits_of(training.kept):
        found.append("parameters differ from stock's")
    return found


def _within_a_slice(optimizer: Optimizer, step: int, stepped: set[int]) -> list[str]:
    """A step that was cut has stepped whole slices, the first ones: what is wrong with it otherwise."""
    whole: set[int] = set()
    for parts in ([], *slices.slices(optimizer)):
        whole |= {n for _, start, end in parts for n in range(start, end)}
        if stepped == whole:
            return []
    return [f"step {step} was cut within a slice: parameters {sorted(stepped)} have stepped"]
