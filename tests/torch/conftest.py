from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

import sentinel


@pytest.fixture(autouse=True, scope="session")
def _one_thread_calls_mkl_first() -> None:
    """Else stock training, which is compared with, may compute a root with 12 bits: docs/decisions/0120."""
    with contextlib.suppress(ImportError):
        import torch

        torch.ones(1).sqrt()


@pytest.fixture(autouse=True)
def _end_sessions() -> Iterator[None]:
    """No test leaves a session to the next."""
    yield
    if sentinel.active():
        sentinel.stop()
