"""Requests of an epoch's batches, and that only who waits for a batch learns of a worker that is lost."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from torch.utils.data import DataLoader  # noqa: E402

from sentinel.core.errors import UsageError  # noqa: E402
from sentinel.data.batching import Batching, requests_of  # noqa: E402
from sentinel.data.feeding import EpochOrder  # noqa: E402
from sentinel.data.loader_workers import is_lost, keep_signals_from, next_batch  # noqa: E402
from tests.processes import LONGEST_S  # noqa: E402


def test_an_epoch_is_cut_in_batches() -> None:
    samples = np.arange(10)[::-1]
    order = EpochOrder(samples, samples % 2 == 0, samples == 3)
    whole, dropped = (requests_of(order, Batching(4, drop_last=drop_last)) for drop_last in (False, True))
    assert [request.position for request in whole] == [0, 4, 8]
    assert np.concatenate([request.samples for request in whole]).tolist() == samples.tolist()
    assert np.concatenate([request.direct for request in whole]).tolist() == (samples == 3).tolist()
    assert [len(request.first) for request in dropped] == [4, 4]
    assert requests_of(EpochOrder.of_nothing(), Batching(4)) == []


def test_what_cannot_be_sent_to_workers_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="transform= cannot be sent to workers that are started by spawn"):
        Batching(1, workers=1, transform=lambda sample: sample, multiprocessing_context="spawn")
    assert Batching(1, workers=1, transform=lambda sample: sample, multiprocessing_context="fork").workers == 1


def test_who_waits_for_a_worker_that_was_killed_is_told() -> None:
    batches = iter(DataLoader(list(range(8)), batch_size=2, num_workers=1, multiprocessing_context="fork"))
    keep_signals_from(batches)
    assert next_batch(batches).tolist() == [0, 1]
    assert not is_lost(batches, 0)
    (worker,) = batches._workers
    os.kill(worker.pid, signal.SIGKILL)  # here torch would raise an error
    worker.join(LONGEST_S)
    assert is_lost(batches, 0)
    with pytest.raises(RuntimeError, match="worker"):
        next_batch(batches)
    batches._shutdown_workers()
    assert next_batch(iter([1])) == 1, "without workers none is lost"
