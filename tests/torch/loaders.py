"""Loaders and samples of small data sets, and the order that torch itself would deliver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

import sentinel.data
from sentinel.data.data_index import DataFiles
from sentinel.data.loading import Loader
from sentinel.data.reading_thread import ReadingThread
from sentinel.data.source_files import SourceFiles
from tests.data_files import number_of

COUNT = 600


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        return index


def loader_of(source: Any, transform: Any = number_of, **options: Any) -> Loader:
    return sentinel.data.loader(source, transform, **{"batch_size": 32, "memory": "20%", "unit": 16, **options})


def sample_of(data: DataFiles, sample: int) -> Any:
    """Read alone, and decoded."""
    files = SourceFiles(data.layout, data.root, data.source)
    file = int(data.layout.chunk_file[data.layout.chunk_of[sample]])
    return data.source.decode(files.sample(sample).data, files.path_of_file(file))


def epoch_of(loader: Loader) -> list[int]:
    return [number for batch in loader for number in batch.tolist()]


def torchs(seed: int, epoch: int, n: int = COUNT) -> list[int]:
    """What torch's own DataLoader and RandomSampler deliver."""
    sampler = RandomSampler(range(n), generator=torch.Generator().manual_seed(seed + epoch))
    return [int(i) for batch in DataLoader(range(n), 32, sampler=sampler) for i in batch]  # type: ignore[arg-type]


@contextmanager
def no_thread_left_at(number: int) -> Iterator[list[ReadingThread]]:
    """As where a process may have no more threads: the start of that one, from 1 on, fails, and the block must raise
    that. The reading threads that were to begin until then."""
    real, begun = ReadingThread.start, []

    def start(thread: ReadingThread) -> None:
        begun.append(thread)
        if len(begun) == number:
            raise RuntimeError("can't start new thread")
        real(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReadingThread, "start", start)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            yield begun


def wait_for_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this host is, no server is given up for it."""
    monkeypatch.setattr("sentinel.data.staged_samples.PATIENCE_S", 600.0)
    for name in ("peer_samples.LATE_S", "peers.TIMEOUT_S", "peers._GREETING_S", "peer_exchange._PATIENT_S"):
        monkeypatch.setattr(f"sentinel.data.{name}", 300.0)
