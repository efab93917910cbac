from __future__ import annotations

from collections.abc import Iterator

import pytest

import sentinel


@pytest.fixture(autouse=True)
def _end_sessions() -> Iterator[None]:
    """No test leaves a session to the next."""
    yield
    if sentinel.active():
        sentinel.stop()
