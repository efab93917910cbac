"""A sink that notes every tick."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sentinel.core.trace import Phase
from sentinel.runtime import RUNTIME


class Notes:
    """`seen`: (name, phase) of each tick; `boundaries`: how many ticks came before each."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Phase]] = []
        self.boundaries: list[int] = []

    def tick(self, name: str, phase: Phase, source: str) -> None:
        assert source in ("add_layer", "annotate")
        self.seen.append((name, phase))

    def step_boundary(self) -> None:
        self.boundaries.append(len(self.seen))

    def take(self) -> list[tuple[str, Phase]]:
        """What was seen since the last call."""
        seen, self.seen, self.boundaries = self.seen, [], []
        return seen


@contextmanager
def noted() -> Iterator[Notes]:
    """Ticks go to the Notes that it gives."""
    notes = Notes()
    RUNTIME.sink = notes
    try:
        yield notes
    finally:
        RUNTIME.sink = None
