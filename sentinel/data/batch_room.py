"""Room for batches in /dev/shm: torch's workers hand tensors over there, and containers often have 64 MiB of it."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import traceback
from collections.abc import Iterable, Mapping
from multiprocessing import queues
from typing import Any, NamedTuple

import torch

from sentinel.core.errors import UsageError
from sentinel.core.units import format_bytes

PLACE = "/dev/shm"
NOT_SENT, NO_ROOM = 73, 74
"""Exit codes of a worker that could not send a batch: it never can, or there was no room in /dev/shm."""
_REMEDY = (
    "give fewer workers= or prefetch_factor=1, smaller batches, or a larger /dev/shm (docker run --shm-size, ipc=host)"
)


class NoRoom(NamedTuple):
    """In place of a batch whose tensors, `nbytes` of them, found no room in /dev/shm."""

    nbytes: int


def found_no_room(error: BaseException) -> bool:
    """Whether this is torch's word for a full /dev/shm: it names shared memory, or the file, torch_..., that it is."""
    said = str(error)
    return f"({errno.ENOSPC})" in said and ("shared memory" in said or "/torch_" in said)


def no_room_for(items: Any) -> NoRoom:
    """What a worker sends in place of a batch of `items`."""
    return NoRoom(_nbytes_of(items))


def forget_names(workers: Iterable[int]) -> None:
    """Takes away what `workers`, numbers of processes that have ended, left in /dev/shm: torch leaves the names of
    tensors that found no room, and of those that a killed worker was at. Others have none, where tensors are handed
    over by descriptor."""
    if torch.multiprocessing.get_sharing_strategy() != "file_descriptor":
        return
    for worker in workers:
        for path in glob.glob(f"{PLACE}/torch_{worker}_*"):
            with contextlib.suppress(OSError):
                os.unlink(path)


def end_if_not_sent(kind: type) -> None:
    """Ends this worker where what it sends, a batch and an instance of `kind`, cannot be sent. torch's worker would go
    on, and who waits for the batch would wait for ever."""
    queue: Any = queues.Queue
    default = queue._on_queue_feeder_error

    def on_error(error: BaseException, sent: Any) -> None:
        got = sent[1] if isinstance(sent, tuple) and len(sent) == 2 else None
        if not (isinstance(got, tuple) and len(got) == 2 and isinstance(got[1], kind)):
            default(error, sent)  # a queue of the program's
            return
        full = found_no_room(error)
        with contextlib.suppress(Exception):
            if not full:
                traceback.print_exception(error)
        os._exit(NO_ROOM if full else NOT_SENT)

    queue._on_queue_feeder_error = staticmethod(on_error)


def too_little_room(what: str, nbytes: int, workers: int, prefetch_factor: int) -> UsageError:
    """`what` happened; `nbytes`: of a batch, 0 where that is unknown."""
    total, free = _room()
    there = f"/dev/shm has {format_bytes(total)}, {format_bytes(free)} of it free"
    ahead = workers * prefetch_factor
    each = f", a batch takes {format_bytes(nbytes)}, all {format_bytes(nbytes * ahead)}" if nbytes else ""
    asked = f"up to {ahead} batches lie there ({workers} workers, prefetch_factor={prefetch_factor}){each}"
    return UsageError(f"{what}: {there}; {asked}", _REMEDY)


def can_never_hold(nbytes: int) -> bool:
    """Whether /dev/shm is smaller than that, whoever else uses it."""
    return nbytes > _room()[0]


def _room() -> tuple[int, int]:
    """Bytes of /dev/shm, and those that are free."""
    told = os.statvfs(PLACE)
    return told.f_blocks * told.f_frsize, told.f_bavail * told.f_frsize


def _nbytes_of(batch: Any) -> int:
    if isinstance(batch, torch.Tensor):
        return batch.nbytes
    if isinstance(batch, Mapping):
        return sum(map(_nbytes_of, batch.values()))
    if isinstance(batch, Iterable) and not isinstance(batch, str | bytes):
        return sum(map(_nbytes_of, batch)) if isinstance(batch, list | tuple) else int(getattr(batch, "nbytes", 0))
    return 0
