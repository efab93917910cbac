"""The ranks of a distributed job: who this one is, and whether all were given the same.

A rank that begins a loader writes what it was given into the store of torch.distributed; rank 0 compares, and writes
what came of it. This is no collective: the others would wait for ever for a rank that has a world of its own.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import torch

from sentinel.core.errors import UsageError
from sentinel.core.units import format_ns
from sentinel.system import progress
from sentinel.system.launched import launched

_ASKED, _OWN, _VERDICT = "sentinel.data/asked/", "sentinel.data/own/", "sentinel.data/verdict"
"""In the store. Each is written over by the next loader's, so they do not grow: what a rank waits with for all others,
the last loader of a world of its own that a rank began, and what rank 0 has found."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1e-3, 0.25


def world_and_rank(rank: int | None, world: int | None) -> tuple[int, int]:
    """(world, rank) as given, else as torch.distributed knows them, else (1, 0).

    Raises UsageError for one of them without the other, and where a launcher has started several ranks that
    torch.distributed does not join yet: each would deliver all samples.
    """
    if (rank is None) != (world is None):
        raise UsageError("rank= and world= go together", "give both or none")
    if rank is not None and world is not None:
        return world, rank
    if _distributed():
        return torch.distributed.get_world_size(), torch.distributed.get_rank()
    told = launched(os.environ)
    if told.size > 1:
        raise UsageError(
            f"this process was launched as rank {told.rank} of {told.size}, but torch.distributed is not initialized:"
            " each rank would deliver all samples",
            "call torch.distributed.init_process_group() first, or give rank= and world=",
        )
    return 1, 0


def check_joined(world: int) -> None:
    """Raises UsageError where torch.distributed does not join the `world` ranks."""
    if world != 1 and (not _distributed() or torch.distributed.get_world_size() != world):
        raise UsageError(
            f"{world} ranks must exchange their losses, but torch.distributed "
            + (f"joins {torch.distributed.get_world_size()}" if _distributed() else "is not initialized"),
            "call torch.distributed.init_process_group() for all of them first",
        )


def of_all_ranks(world: int, mine: Any) -> list[Any]:
    """What each rank gives, by rank. All ranks must call it. Raises what `check_joined` raises."""
    check_joined(world)
    if world == 1:
        return [mine]
    everybody: list[Any] = [None] * world
    torch.distributed.all_gather_object(everybody, mine)
    return everybody


def check_ranks_agree(world: int, said: dict[str, Any], given: bool = True) -> None:
    """Raises UsageError, on every rank, for the first name whose value is not the same on all of them.

    `said`: JSON values by name. `given`: the user named rank and world. All ranks of torch.distributed must call it
    with their number as `world`, and wait for one another as long as its collectives do. Who has another world has a
    loader of its own, for which nobody answers: it is not waited for, but it is an error where others wait for this
    rank to deliver the same data set. A world of 1 that was given is none: who waits says so. Does nothing where
    torch.distributed is not initialized.
    """
    if not _distributed():
        return
    size = torch.distributed.get_world_size()
    if world != size and not given:
        raise UsageError(
            f"the loader was made for {world} {'rank' if world == 1 else 'ranks'}, torch.distributed joins {size}",
            "make it after torch.distributed.init_process_group(), or give rank= and world=",
        )
    store = _store()
    if store is None:
        if world == size > 1:
            _compare(of_all_ranks(world, said))
    elif world != size:
        _Meeting(store, size).keep_away(world, said)
    elif size > 1:
        _Meeting(store, size).meet(said)


class _Meeting:
    """The next meeting of all ranks, as this one comes there or stays away."""

    def __init__(self, store: Any, size: int) -> None:
        self._store, self._size, self._rank = store, size, torch.distributed.get_rank()
        last = self._read(_VERDICT)
        self._number = 1 + last.get("number", 0)
        """Of the meeting."""
        come = self._read(f"{_ASKED}{self._rank}").get("number", 0)
        self._missed = last["wrong"] if self._rank in last.get("missing", ()) and come < last["number"] else None
        """Why the last meeting ended before this rank came to it, which was waited for there and has not been told."""
        self._data_set: object = None

    def meet(self, said: dict[str, Any]) -> None:
        """Returns once all ranks have come, and said the same. Raises UsageError otherwise."""
        self._data_set = said.get("data set")
        if self._missed:
            self._number -= 1
        self._write(f"{_ASKED}{self._rank}", said=said)
        if self._missed:
            wrong = self._missed
        elif self._rank:
            wrong = self._awaited(_VERDICT, 0).get("wrong")
        else:
            wrong = self._found()
            self._write_verdict(wrong)
        if wrong:
            raise UsageError(*wrong)

    def _found(self) -> tuple[str, str] | None:
        """What is wrong, and what to do; None if all ranks say the same."""
        try:
            _compare([self._awaited(f"{_ASKED}{rank}", rank).get("said", {}) for rank in range(self._size)])
        except UsageError as error:
            return error.what, error.remedy
        return None

    def _awaited(self, key: str, rank: int) -> dict[str, Any]:
        """What `rank` has written there for this meeting. Raises UsageError if it does not come."""
        began, limit_s = time.monotonic(), self._store.timeout.total_seconds()
        pause, told = _FIRST_PAUSE_S, False
        while True:
            found = self._read(key)
            if found.get("number", 0) >= self._number:
                return found
            away = self._away(rank)
            if away is not None and self._is_apart(rank):
                raise _unlike((self._rank, self._size), (rank, away))
            waited_s = time.monotonic() - began
            elsewhere = f", but one of world={away} of the same data set" if away else ""
            if waited_s > limit_s:
                raise UsageError(
                    f"rank {rank} has not begun its loader for all {self._size} ranks within {format_ns(limit_s * 1e9)}"
                    + elsewhere,
                    "make the same loaders on all ranks",
                )
            if away and not told and waited_s > progress.QUIET_SECONDS:
                told = True
                progress.say(
                    f"rank {self._rank} waits for rank {rank}, which has not begun its loader for all"
                    f" {self._size} ranks{elsewhere}"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def keep_away(self, world: int, said: dict[str, Any]) -> None:
        """This rank begins a loader of another `world`. Raises UsageError where others wait for it."""
        self._data_set = said.get("data set")
        if self._data_set is None:
            return
        self._write(f"{_OWN}{self._rank}", world=world, data_set=self._data_set)
        if world == 1:
            return
        for rank in range(1, self._size) if not self._rank else [0]:  # all meet rank 0
            waits = self._read(f"{_ASKED}{rank}")
            here = waits.get("number") == self._number and waits["said"].get("data set") == self._data_set
            if here and self._away(rank) != world:
                wrong = _unlike((rank, self._size), (self._rank, world))
                if not self._rank:
                    self._write_verdict((wrong.what, wrong.remedy))
                raise wrong

    def _away(self, rank: int) -> int | None:
        """The world of the loader of this data set that `rank` has begun by itself since the last meeting."""
        found = self._read(f"{_OWN}{rank}")
        own = found.get("number") == self._number and found["data_set"] == self._data_set
        return int(found["world"]) if own else None

    def _is_apart(self, rank: int) -> bool:
        """Whether it is not waited for: its loader has a world of some ranks, and this rank has begun no such one."""
        return self._away(rank) not in (None, 1, self._away(self._rank))

    def _write_verdict(self, wrong: tuple[str, str] | None) -> None:
        """By rank 0. `missing`: the ranks that it waited for, and that have not come when the meeting ends with an
        error. They raise that error when they come: nobody is there any more."""
        ranks = range(1, self._size) if wrong else ()
        missing = [
            rank
            for rank in ranks
            if self._read(f"{_ASKED}{rank}").get("number", 0) < self._number and not self._is_apart(rank)
        ]
        self._write(_VERDICT, wrong=wrong, missing=missing)

    def _read(self, key: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._store.get(key)) if self._store.check([key]) else {}
        return found

    def _write(self, key: str, **values: Any) -> None:
        self._store.set(key, json.dumps({"number": self._number, **values}))


def _compare(everybody: list[dict[str, Any]]) -> None:
    for name, first in everybody[0].items():
        for rank, theirs in enumerate(everybody):
            if theirs.get(name) != first:
                raise UsageError(
                    f"ranks differ in {name}: rank 0 has {first!r}, rank {rank} has {theirs.get(name)!r}",
                    "give all ranks the same",
                )


def _unlike(*worlds: tuple[int, int]) -> UsageError:
    """Of two ranks with their worlds."""
    said = ", ".join(f"rank {rank} has {world}" for rank, world in sorted(worlds))
    return UsageError(
        f"ranks differ in world: {said}",
        "give all ranks the same, or call torch.distributed.barrier() after what some of them do by themselves",
    )


def _store() -> Any:
    """What all ranks can write to and read; None where the backend has none, as MPI's."""
    return torch.distributed.distributed_c10d._get_default_store()


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
