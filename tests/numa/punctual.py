"""Migrations that are never late: what is elsewhere is so for another reason than that this machine was slow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sentinel.core.step_follower import Position
from sentinel.session.applying import Applying


@contextmanager
def punctual() -> Iterator[None]:
    """Meanwhile a layer ends, for all that listens to ticks, once what the engine has under way has ended.

    But for what waits for room that nothing under way will free.
    """
    tick = Applying.tick

    def tick_in_time(self: Applying, at: Position) -> bool:
        let_land(self)
        return tick(self, at)

    Applying.tick = tick_in_time  # type: ignore[method-assign]
    try:
        yield
    finally:
        Applying.tick = tick  # type: ignore[method-assign]


def let_land(applying: Applying) -> None:
    """Wait until the engine has nothing under way."""
    engine = applying.current.engine
    if engine is not None:
        for move in engine._moves.all():
            engine._mover.wait(move.job)
