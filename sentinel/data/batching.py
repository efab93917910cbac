"""Batching: how samples become batches, as torch's DataLoader has it."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np
import torch

from sentinel.core.errors import UsageError
from sentinel.core.units import plain
from sentinel.data.feeding import EpochOrder
from sentinel.data.staged_samples import Request, Transform


@dataclass(frozen=True)
class Batching:
    """How samples become batches, as torch's DataLoader has it."""

    batch_size: int
    workers: int = 0
    transform: Transform | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    drop_last: bool = False
    prefetch_factor: int = 2
    pin_memory: bool = False
    multiprocessing_context: str | BaseContext | None = None

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("workers", 0), ("prefetch_factor", 1)):
            object.__setattr__(self, name, checked_count(name, getattr(self, name), least))
        for name in ("transform", "collate_fn"):
            check_function(name, getattr(self, name))
        if not isinstance(self.drop_last, int | np.bool_) or self.drop_last not in (False, True):
            raise UsageError(f"drop_last={self.drop_last!r} is neither True nor False", "give one of them")
        asked, known = self.multiprocessing_context, multiprocessing.get_all_start_methods()
        if not isinstance(asked, BaseContext) and asked not in (None, *known):
            raise UsageError(f"there is no multiprocessing_context={asked!r}", f"choose one of {', '.join(known)}")
        named = asked if asked is None or isinstance(asked, str) else asked.get_start_method()
        chosen = named or multiprocessing.get_start_method(allow_none=True)
        method = chosen or known[0]  # asking for the default would fix it
        if self.workers and method != "fork":
            for name in ("transform", "collate_fn"):
                _check_pickled(getattr(self, name), name, method)


def check_function(name: str, given: object) -> None:
    """Raises UsageError for what is neither a function nor None."""
    if not callable(given) and given is not None:
        raise UsageError(f"{name}={given!r} cannot be called", "give a function, or leave it out")


def checked_count(name: str, value: object, least: int) -> int:
    """`value`, one of Python's numbers. Raises UsageError for what is no number of at least `least`."""
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name}={value!r} is not a number of at least {least}", f"give {name}={least} or more")
    return value


def requests_of(planned: EpochOrder, asked: Batching) -> list[Request]:
    """The batches of an epoch, or of its rest, in their order."""
    size, m = asked.batch_size, len(planned.samples)
    stop = m // size * size if asked.drop_last else m
    cuts = [slice(begin, min(begin + size, stop)) for begin in range(0, stop, size)]
    held = planned.held
    requests = [
        Request(
            cut.start,
            planned.samples[cut],
            planned.first[cut],
            planned.direct[cut],
            None if held is None else held.cut(cut),
        )
        for cut in cuts
    ]
    if held is None:
        return requests
    followed = zip_longest(requests, requests[max(asked.workers, 1) :])  # torch asks its workers in turn
    return [request._replace(following=following) for request, following in followed]


def pinned(batch: Any) -> Any:
    """The batch in memory that an accelerator copies from, where there is one. Not in torch's thread: that would wait
    for ever for the rest of a batch whose sender was killed."""
    return torch.utils.data._utils.pin_memory.pin_memory(batch) if torch.accelerator.is_available() else batch


def _check_pickled(given: Any, name: str, method: str) -> None:
    try:
        pickle.dumps(given)
    except Exception as error:
        raise UsageError(
            f"{name}= cannot be sent to workers that are started by {method} ({error})",
            'define it in a module, not as a lambda, or give multiprocessing_context="fork"',
        ) from error
