from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import sentinel
from sentinel.profiler.pages import native_touch
from sentinel.system.disks import disk_of
from tests.data_files import shards
from tests.unlucky import compiled

AHEAD_BYTES = 64 << 20
"""Prepared by each watch of a test beyond what is used. Without it a quarter of a GiB is allocated, which takes longer
than most tests train."""


@pytest.fixture(autouse=True, scope="session")
def _workers_are_forked() -> None:
    """As by default until Python 3.13. From 3.14 on they are children of a server, which is told how they end: tests of
    such workers ask for one."""
    with contextlib.suppress(RuntimeError):  # somebody else has said how
        multiprocessing.set_start_method("fork")


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


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """An empty folder on a disk, which has to be as empty afterwards: in the checkout, where pytest's is in memory."""
    place = tmp_path if not disk_of(tmp_path).in_memory else Path(__file__).parent
    if disk_of(place).in_memory:
        pytest.skip("needs a disk: a checkout or TMPDIR that is not in memory")
    with tempfile.TemporaryDirectory(dir=place) as made:
        yield Path(made)
        assert not os.listdir(made)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes of data sets are kept for this test alone, and no reader is given up, however busy the host is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sentinel.data.staged_samples.PATIENCE_S", 600.0)


@pytest.fixture
def tars(tmp_path: Path, own_cache: None) -> list[str]:
    """Shards of 600 samples."""
    return shards(tmp_path, [200, 150, 250])


@pytest.fixture
def name(tmp_path: Path) -> Iterator[str]:
    """For jobs that share."""
    from sentinel.data.share_names import path_of

    found = f"test-{os.getpid()}-{abs(hash(str(tmp_path)))}"
    yield found
    gc.collect()
    assert not os.path.exists(path_of(found)), "the last job takes the name away"


@pytest.fixture(scope="session")
def unlucky_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For tests.unlucky.Unlucky."""
    return compiled(tmp_path_factory.mktemp("unlucky"))
