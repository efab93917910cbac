"""Lifetimes of a recorded step's tensors on the circle of the step. Pure."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import UsageError
from sentinel.core.trace import BORN, FREED, TICK, Role, Trace

PREVIOUS = " (previous step)"
"""Ends the name of a gradient that was born before the step, where one of the same name is born in it."""

_STAY: tuple[Role, ...] = ("param", "buffer", "optimizer")
"""What is born in a step with one of these roles and survives it will not be born again."""


@dataclass(frozen=True)
class Entity:
    """One tensor of the step that repeats: `members` are the tensors of the trace that are it, the one that was
    born in the step first. Layers [start, stop) and births [born, died) are unrolled, at most one period long."""

    members: tuple[int, ...]
    start: int
    stop: int
    born: int
    died: int
    persistent: bool = False
    plannable: bool = True  # False: nothing tells its next birth


@dataclass(frozen=True)
class Circle:
    """The stretches and births of a trace, in its own order. Stretch i is layer (first + i) modulo `length`; the last
    stretch, after the last tick, is the same layer as the first. `origin`: births before layer 0 begins."""

    length: int
    first: int
    births: int
    origin: int
    stretch: NDArray[np.int64]  # of each event
    births_before: NDArray[np.int64]  # of each event

    @classmethod
    def of(cls, trace: Trace) -> Circle:
        """Raises UsageError unless the trace is one round of its ring."""
        kinds = trace.events["kind"]
        ticks = np.flatnonzero(kinds == TICK)
        length = len(trace.layers)
        ended = trace.events["layer"][ticks]
        if length == 0 or len(ticks) != length or (ended != (ended[0] + np.arange(length)) % length).any():
            raise UsageError(
                f"a trace with {len(ticks)} ticks is not one round of its {length} layers", "record one whole step"
            )
        born = (kinds == BORN).astype(np.int64)
        before = born.cumsum() - born
        first = int(ended[0])
        opens = ticks[length - first - 1]  # this tick ends the ring's last layer
        stretch = (kinds == TICK).cumsum() - (kinds == TICK)
        return cls(length, first, int(born.sum()), int(before[opens]), stretch.astype(np.int64), before)

    @property
    def n_events(self) -> int:
        """Length of the circle; at least 1."""
        return max(self.births, 1)

    def entity(self, members: tuple[int, ...], born_at: int, died_at: int, opens: int, closes: int) -> Entity:
        """Alive in stretches [opens, closes], from birth `born_at` until before birth `died_at`, counted through."""
        start = (self.first + opens) % self.length
        born = (born_at - self.origin) % self.n_events
        layers = min(closes - opens + 1, self.length)
        events = min(max(died_at - born_at, 1), self.n_events)
        return Entity(members, start, start + layers, born, born + events)


def entities(trace: Trace, circle: Circle) -> list[Entity]:
    """The tensors of the step that repeats; those of no bytes are left out."""
    born = _where(trace, BORN)
    freed = _where(trace, FREED)
    passed_on, likes = _join(trace, born, freed)
    whole = circle.length
    found = []
    for index, tensor in enumerate(trace.tensors):
        at, end = born.get(index), freed.get(index)
        if tensor.nbytes <= 0 or index in passed_on:
            continue
        if at is None and end is None:
            found.append(Entity((index,), 0, whole, 0, circle.n_events, persistent=True))
        elif (
            at is None and end is not None
        ):  # freed here and never allocated again: it is older than the steps that repeat
            gone = circle.entity((index,), 0, int(circle.births_before[end]), 0, int(circle.stretch[end]))
            found.append(Entity((index,), gone.start, gone.stop, gone.born, gone.died, plannable=False))
        elif at is not None and end is not None:
            counts = int(circle.births_before[at]), int(circle.births_before[end])
            found.append(circle.entity((index,), *counts, int(circle.stretch[at]), int(circle.stretch[end])))
        elif tensor.role in _STAY:
            found.append(Entity((index,), 0, whole, 0, circle.n_events, persistent=True))
        elif at is not None:
            # Alive at the end: it dies where its like did, one period later.
            like = likes.get(index)
            last = freed[like] if like is not None else at
            died_at = int(circle.births_before[last]) + circle.births
            closes = int(circle.stretch[last]) + whole
            members = (index,) if like is None else (index, like)
            counts = int(circle.births_before[at]), died_at
            found.append(circle.entity(members, *counts, int(circle.stretch[at]), closes))
    return found


def _where(trace: Trace, kind: int) -> dict[int, int]:
    """Tensor -> its event of that kind."""
    at = np.flatnonzero(trace.events["kind"] == kind)
    return dict(zip(trace.events["tensor"][at].tolist(), at.tolist(), strict=True))


def _join(trace: Trace, born: dict[int, int], freed: dict[int, int]) -> tuple[set[int], dict[int, int]]:
    """Which tensors are the end of another, one step earlier; and that other one -> its end.

    By name first, then by size, the first to die with the first to be born.
    """
    tensors = trace.tensors
    begun = [i for i in sorted(born, key=born.__getitem__) if i not in freed and tensors[i].role not in _STAY]
    ended = [i for i in sorted(freed, key=freed.__getitem__) if i not in born]
    likes: dict[int, int] = {}
    by_name = {tensors[i].name.removesuffix(PREVIOUS): i for i in ended}
    for index in begun:
        like = by_name.pop(tensors[index].name, None)
        if like is not None and tensors[like].nbytes == tensors[index].nbytes:
            likes[index] = like
    taken = set(likes.values())
    by_size: dict[int, deque[int]] = defaultdict(deque)
    for index in ended:
        if index not in taken and tensors[index].role not in _STAY:
            by_size[tensors[index].nbytes].append(index)
    for index in begun:
        if index not in likes and by_size[tensors[index].nbytes]:
            likes[index] = by_size[tensors[index].nbytes].popleft()
    return set(likes.values()), likes
