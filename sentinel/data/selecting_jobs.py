"""Jobs of one machine that select from the same files: each holds other samples than the rest, those of most worth to
all of them, and copies from the memory of others what they hold.

What a sample is worth is the number of reads in a second that holding it saves: to each job the probability of its
delivery by its rank, over how long an epoch takes there; to all, the sum. Each job says in its arena what samples are
worth to it and which it holds, and looks at that of the others as it plans an epoch. So nobody waits, and what is held
changes what is read, but never what is delivered.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from sentinel.data.sample_arena import EPOCH_NS, MOST_JOBS, OTHERS, SampleArena, arena_of
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

    def __init__(self, share: ShareName, arena: SampleArena) -> None:
        """`arena`: that of this job, with `worth`."""
        self._share, self._arena = share, arena
        self._others: dict[Address, tuple[int, SampleArena]] = {}
        """The slot and the arena of each other job."""
        self._began_ns = 0
        share.publish(arena.descriptor, arena.inode)

    def look(self, chances: NDArray[np.float64], kept: NDArray[np.int64]) -> tuple[NDArray[np.float32], OfOthers]:
        """(n,) what samples are worth to all jobs, and what others hold. `chances`: (n,) of delivery in this job.
        `kept`: (k,) the samples that it holds."""
        now, own = time.monotonic_ns(), self._arena
        own.counters[EPOCH_NS] = now - self._began_ns if self._began_ns else 0
        self._began_ns, mine = now, np.zeros(len(chances), np.bool_)
        mine[kept] = True
        self._say(chances, mine)
        self._open_others()
        mine_ns = int(own.counters[EPOCH_NS])
        worth = (own.worth & _MOST).astype(np.float32)
        held, there = np.zeros((2, len(mine)), np.bool_)
        for slot, arena in self._others.values():
            said, theirs_ns = arena.worth.copy(), int(arena.counters[EPOCH_NS])
            worth += (said & _MOST) * np.float32(mine_ns / theirs_ns if mine_ns and theirs_ns else 1)
            holds = said >= _HOLDS
            if slot > self._share.slot:
                holds &= ~mine  # of two that hold it this one goes on
            held |= holds
            there |= holds & (arena.entries != 0)
        return worth, OfOthers(held, there)

    def tell(self, chances: NDArray[np.float64], staging: Staging) -> None:
        """What this job will hold as the epoch ends, for which it does."""
        holds = np.zeros(len(chances), np.bool_)
        holds[staging.stay_sample[staging.kept]] = True
        self._say(chances, holds)

    def _say(self, chances: NDArray[np.float64], holds: NDArray[np.bool_]) -> None:
        self._arena.worth[:] = np.rint(chances * _MOST).astype(np.uint8) | np.where(holds, _HOLDS, np.uint8(0))

    def _open_others(self) -> None:
        """The arenas of those that run; workers are told where these are."""
        share, own = self._share, self._arena
        slots = {(job.pid, job.descriptor, job.inode): job.slot for job in share.others() if share.agrees(job)}
        self._others = {at: other for at, other in self._others.items() if at in slots}
        for at in slots.keys() - self._others.keys():
            if arena := arena_of(*at, own.shape, own.slot):
                self._others[at] = slots[at], arena
        told = np.zeros((MOST_JOBS, 3), np.uint64)
        for at, (slot, _) in self._others.items():
            told[slot] = at
        own.counters[OTHERS:] = told.reshape(-1)

    @property
    def said(self) -> str:
        """A sentence for the report."""
        unlike = [job.pid for job in self._share.others() if not self._share.agrees(job)]
        apart = f"; process {unlike[0]} shares nothing, with another order, memory or unit" if unlike else ""
        return f"share {self._share.name!r}: {len(self._others)} other jobs selected from these files{apart}"


class FromSelectingJobs(FromArena):
    """Samples of files: out of the arena of this job, or those of others, or read alone."""

    def __init__(self, files: SourceFiles, arena: SampleArena, source: Source) -> None:
        super().__init__(files, arena, source)
        self._others: dict[Address, SampleArena | None] = {}

    def _staged(self, arena: SampleArena, request: Request, nbytes: NDArray[np.int64], served: Served) -> Staged:
        """As FromArena; what was planned to be read alone is looked for in the memory of others."""
        raws, places = super()._staged(arena, request, nbytes, served)
        wanted = np.flatnonzero(request.direct)
        for other in self._opened() if len(wanted) else ():
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
        return Staged(raws, places)

    def _opened(self) -> list[SampleArena]:
        """The arenas of the others; of those that are not among them any more the memory is let go."""
        own = self._arena
        told = own.counters[OTHERS:].reshape(MOST_JOBS, 3).tolist()
        there = {(pid, descriptor, inode) for pid, descriptor, inode in told if pid}
        self._others = {at: arena for at, arena in self._others.items() if at in there}
        for at in there - self._others.keys():
            self._others[at] = arena_of(*at, own.shape, own.slot)
        return [arena for arena in self._others.values() if arena is not None]
