from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

import sentinel
from sentinel.profiler.pages import native_touch

AHEAD_BYTES = 64 << 20
"""Prepared by each watch of a test beyond what is used. Without it a quarter of a GiB is allocated, which takes longer
than most tests train."""


@pytest.fixture(autouse=True, scope="session")
def _one_thread_calls_mkl_first() -> None:
    """Else stock training, which is compared with, may compute a root with 12 bits: docs/decisions/0120."""
    with contextlib.suppress(ImportError):
        import torch

        torch.ones(1).sqrt()


@pytest.fixture(autouse=True)
def _little_prepared_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that leaves four times as much: docs/decisions/0152."""
    leave_room, most = native_touch.leave_room, 4 * AHEAD_BYTES

    def leave(nbytes: int | None) -> None:
        leave_room(most if nbytes is None else min(nbytes, most))

    monkeypatch.setattr(native_touch, "leave_room", leave)


@pytest.fixture(autouse=True)
def _end_sessions() -> Iterator[None]:
    """No test leaves a session to the next."""
    yield
    if sentinel.active():
        sentinel.stop()
