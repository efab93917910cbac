"""Workers of a torch DataLoader: they end with their trainer; and when one is lost, whoever waits for a batch is told,
and nobody else."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import parent_process
from multiprocessing.process import BaseProcess
from threading import Thread
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from sentinel.core.interrupts import is_interrupt
from sentinel.data.batch_room import end_if_not_sent, forget_names
from sentinel.data.served_samples import Served

OF_LOST_WORKERS = (RuntimeError, OSError, EOFError)
"""The first is torch's, the others say that the last batch of such a worker cannot be fetched any more."""
_TORCHS_HANDLER = "torch.utils.data._utils.signal_handling"
"""The module of torch's handler of SIGCHLD, which raises a RuntimeError."""
_END_S = 1.0
"""From the last sign of a worker that is killed until it has ended, at most."""
_ASKED_S = 5.0
"""How long somebody may have the lock by which workers are asked to end; torch waits for each of them as long."""
_LOOKS_S, _GRACE_S = 1.0, 10.0
"""From one look of a worker at its parent to the next; how long it may go on once its trainer has ended. By itself a
worker of torch looks each 5 s."""


class _Workers(_MultiProcessingDataLoaderIter):
    """torch's, whose workers a forked child of the trainer does not end: they are not its own."""

    trainer = 0

    def _shutdown_workers(self) -> None:
        if os.getpid() == self.trainer:
            super()._shutdown_workers()


class WorkersLoader(DataLoader[Any]):
    """torch's, whose workers are known before all of them are there. `begun`: the iteration that they were last started
    for, of which torch tells nobody if one of them is killed meanwhile."""

    begun: Any = None

    def _get_iterator(self) -> Any:
        if not self.num_workers:
            return super()._get_iterator()
        self.check_worker_number_rationality()
        self.begun = _Workers.__new__(_Workers)
        self.begun.trainer = os.getpid()
        self.begun.__init__(self)
        self.begun._workers_done_event = _EndOfWorkers(self.begun._workers_done_event)
        return self.begun


class _EndOfWorkers:
    """torch's event by which workers are asked to end, as the trainer has it. It alone sets it, so it need not ask the
    event whether it has: a worker that was killed may have kept the event's lock."""

    def __init__(self, event: Any) -> None:
        self._event, self._set = event, False

    def is_set(self) -> bool:
        """Whether `set` was called."""
        return self._set

    def set(self) -> None:
        """Asks the workers, if they can be asked."""
        self._set = True
        if self.can_be_set():
            self._event.set()

    def can_be_set(self) -> bool:
        """Whether nobody keeps the lock."""
        lock = self._event._cond
        free: bool = lock.acquire(timeout=_ASKED_S)
        if free:
            lock.release()
        return free


def begin_worker(_: int) -> None:
    """Runs first in a worker. torch's own look at whether the trainer lives fails where that was killed before a worker
    had started, or where a fork server is between them; and a worker that ends waits until its messages are read.

    Ctrl-C on a terminal comes to workers too. They leave it to the trainer, which ends them: one that it met as it took
    the lock of torch's event for the end would keep that, and the trainer and the other workers would wait for it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_if_not_sent(Served)
    if (trainer := parent_process()) is not None:
        Thread(target=_end_after, args=(trainer, os.getppid()), name="sentinel-end", daemon=True).start()


def _end_after(trainer: BaseProcess, parent: int) -> None:
    """Ends this worker some time after its trainer has ended, if it has not ended by itself: what it is at may be
    finished. By os._exit, so that no thread that waits for a lock or a pipe can hold the end up.

    With fork, siblings have each other's pipe from the trainer, so the parent is looked at too."""
    while trainer.is_alive() and os.getppid() == parent:
        trainer.join(_LOOKS_S)
    time.sleep(_GRACE_S)
    os._exit(1)


def is_lost(batches: Any, within_s: float | None = None) -> bool:
    """Whether a worker has ended by itself, or does so in that time, by default soon: its error is not the user's."""
    ends = select.poll()
    for worker in (workers := getattr(batches, "_workers", ())):
        ends.register(worker.sentinel, select.POLLIN)
    return bool(workers and ends.poll(1e3 * (_END_S if within_s is None else within_s)))


def ends_training(error: BaseException) -> bool:
    """Whether `error` is the script's, as `is_interrupt` says; torch has a handler too, for lost workers."""
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    of_torch = step is not None and step.tb_frame.f_globals.get("__name__") == _TORCHS_HANDLER
    return not (of_torch and isinstance(error, RuntimeError)) and is_interrupt(error)


def is_of_lost_worker(error: BaseException, batches: Any, *, starting: bool) -> bool:
    """Whether `error` comes of a worker that has ended by itself, be it as it started."""
    if ends_training(error) or not isinstance(error, OF_LOST_WORKERS):
        return False
    ended_before_it_was_sent_all = starting and hasattr(batches, "_workers") and isinstance(error, BrokenPipeError)
    return ended_before_it_was_sent_all or is_lost(batches)


def end_workers(batches: Any) -> None:
    """Ends all workers of `batches`, which may be half begun. They are asked to, unless one was killed as it had the
    lock by which they are: torch would wait for it for ever."""
    workers, end = getattr(batches, "_workers", []), getattr(batches, "_workers_done_event", None)
    if isinstance(end, _EndOfWorkers) and end.can_be_set():
        batches._shutdown_workers()
    else:
        keep_signals_from(batches)
        with suppress(ValueError):  # torch was interrupted before it noted that it had set them
            torch._C._remove_worker_pids(id(batches))
        for worker in workers:
            if worker.is_alive():  # a fork server's child that has ended may have given its number away
                worker.kill()
        for worker in workers:
            worker.join(_ASKED_S)
        batches._shutdown = True
    forget_names([worker.pid for worker in workers])


def exit_codes(batches: Any) -> set[int]:
    """Of workers that have ended; -7 is that of SIGBUS."""
    return {worker.exitcode for worker in getattr(batches, "_workers", ()) if worker.exitcode is not None}


def next_batch(batches: Any) -> Any:
    """The next of `batches`; RuntimeError if a worker is lost before it comes, be it in the middle of sending it."""
    with watched(batches):
        return next(batches)


@contextmanager
def watched(batches: Any) -> Iterator[None]:
    """What waits for workers in this block ends in a RuntimeError where one of them is lost, before or in it."""
    workers = getattr(batches, "_workers", ())
    if not workers:
        yield
        return
    torch._C._set_worker_pids(id(batches), tuple(worker.pid for worker in workers))
    try:
        if is_lost(batches, 0):
            raise RuntimeError("a worker of the loader was lost")
        yield
    finally:
        torch._C._remove_worker_pids(id(batches))


def keep_signals_from(batches: Any) -> None:
    """torch raises an error wherever the main thread is when a worker dies, most likely in a training step. Here it may
    only while a batch is waited for (`next_batch`): then the loader can start workers again."""
    if getattr(batches, "_worker_pids_set", False):
        torch._C._remove_worker_pids(id(batches))
        batches._worker_pids_set = False
