"""Jobs of one machine that select from the same files: each holds other samples than the rest, those of most worth to
all of them, and copies from the memory of others what they hold.

What a sample is worth is the number of reads in a second that holding it saves: to each job the probability of its
delivery by its rank, over how long an epoch takes there; to all, the sum. Each job says in its arena what samples are
worth to it and which it holds, and looks at that of the others as it plans an epoch. So nobody waits, and what is held
changes what is read, but never what is delivered.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sentinel.core.units import counted
from sentinel.data.sample_arena import BEGAN_NS, EPOCH_NS, MOST_JOBS, OTHERS, RUNNING, SampleArena, arena_of
from sentinel.data.served_samples import Served
from sentinel.data.share_names import ShareName
from sentinel.data.source_files import SourceFiles
from sentinel.data.sources.source import Source
from sentinel.data.staged_samples import FromArena, Request, Staged
from sentinel.samples import OfOthers, Staging

Address = tuple[int, int, int]
"""Of an arena: its process, and its descriptor and inode there."""
_HOLDS, _MOST = np.uint8(128), 127
"""Of what a job says of a sample: the bit of those that it holds; what one is worth that each epoch delivers."""


class SelectingJobs:
    """What this job says to the others of a share, and sees of them. For one thread."""

    def __init__(self, share: ShareName, arena: SampleArena, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """`arena`: that of this job, with `worth`. `clock`: one for all jobs."""
        self._share, self._arena, self._clock = share, arena, clock
        self._n_others = 0
        share.publish(arena.descriptor, arena.inode)

    def look(
        self, chances: NDArray[np.float64], kept: NDArray[np.int64], *, whole: bool
    ) -> tuple[NDArray[np.float32], OfOthers]:
        """(n,) what samples are worth to all jobs, and what others hold, as an epoch begins. `chances`: (n,) of
        delivery in this job. `kept`: (k,) the samples that it holds. `whole`: the epoch before was delivered from its
        begin to its end."""
        now, own, mine = self._clock(), self._arena.counters, np.zeros(len(chances), np.bool_)
        if whole:
            own[EPOCH_NS] = now - int(own[BEGAN_NS])
        own[BEGAN_NS], mine[kept] = now, True
        self._say(chances, mine)
        own_ns, worth = int(own[EPOCH_NS]), (self._arena.worth & _MOST).astype(np.float32)
        held, there = np.zeros((2, len(mine)), np.bool_)
        for slot, arena in self._opened():  # for this look alone: workers would inherit what stays mapped
            told, said = arena.counters, arena.worth.copy()
            theirs_ns, so_far_ns = int(told[EPOCH_NS]), now - int(told[BEGAN_NS])
            has, holds = arena.entries != 0, said >= _HOLDS
            if not told[RUNNING] or so_far_ns > 2 * theirs_ns > 0:
                holds &= has  # it reads no more in this epoch
            if slot > self._share.slot:
                holds &= ~mine  # of two that hold it this one goes on
            held |= holds
            there |= holds & has
            pace = own_ns / max(theirs_ns, so_far_ns) if own_ns and theirs_ns else 1
            worth += (said & _MOST) * np.float32(pace)
        return worth, OfOthers(held, there)

    def tell(self, chances: NDArray[np.float64], staging: Staging) -> None:
        """What this job will hold as the epoch ends, for which it does."""
        holds = np.zeros(len(chances), np.bool_)
        holds[staging.stay_sample[staging.kept]] = True
        self._say(chances, holds)

    def _say(self, chances: NDArray[np.float64], holds: NDArray[np.bool_]) -> None:
        self._arena.worth[:] = np.rint(chances * _MOST).astype(np.uint8) | np.where(holds, _HOLDS, np.uint8(0))

    def _opened(self) -> list[tuple[int, SampleArena]]:
        """The slot and the arena of each other job that runs; workers are told where these are."""
        share, own = self._share, self._arena
        slots = {(job.pid, job.descriptor, job.inode): job.slot for job in share.others() if share.agrees(job)}
        found = {at: arena for at in slots if (arena := arena_of(*at, own.shape, own.slot))}
        told = np.zeros((MOST_JOBS, 3), np.uint64)
        for at in found:
            told[slots[at]] = at
        own.counters[OTHERS:], self._n_others = told.reshape(-1), len(found)
        return [(slots[at], arena) for at, arena in found.items()]

    @property
    def said(self) -> str:
        """A sentence for the report."""
        others = counted(self._n_others, "other job")
        return f"share {self._share.name!r}: {others} selected from these files{self._share.unlike}"


class FromSelectingJobs(FromArena):
    """Samples of files: out of the arena of this job, or those of others, or read alone."""

    def __init__(self, files: SourceFiles, arena: SampleArena, source: Source) -> None:
        super().__init__(files, arena, source)
        self._others: dict[Address, SampleArena | None] = {}

    def _staged(self, arena: SampleArena, request: Request, nbytes: NDArray[np.int64], served: Served) -> Staged:
        """As FromArena; what was planned to be read alone is looked for in the memory of others."""
        raws, places = super()._staged(arena, request, nbytes, served)
        wanted, others = np.flatnonzero(request.direct), self._opened()
        for other in others if len(wanted) else ():
            found = other.copy(request.samples[wanted], nbytes[wanted])
            there = np.array([isinstance(raw, memoryview) for raw in found], np.bool_)
            for number, raw in zip(wanted.tolist(), found, strict=True):
                if isinstance(raw, memoryview):
                    raws[number] = raw
            here, wanted = wanted[there], wanted[~there]
            if len(here):
                places[here] = self._nodes.of(other, request.samples[here])
                arena.take(request.position + here)
                served.of_jobs += len(here)
        served.gone += len(wanted)
        return Staged(raws, places)

    def _opened(self) -> list[SampleArena]:
        """The arenas of the others; the memory of those that have ended is let go with the next batch."""
        own = self._arena
        told = own.counters[OTHERS:].reshape(MOST_JOBS, 3).tolist()
        there = {(pid, descriptor, inode) for pid, descriptor, inode in told if pid}
        self._others = {at: arena for at, arena in self._others.items() if at in there}
        for at in there - self._others.keys():
            self._others[at] = arena_of(*at, own.shape, own.slot)
        return [arena for arena in self._others.values() if arena is not None]
