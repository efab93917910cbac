"""Feeding where jobs of one machine share: one of them reads an epoch, and others copy from its memory."""

from __future__ import annotations

import time
import weakref
from typing import NamedTuple

import numpy as np

from sentinel.core.errors import UsageError
from sentinel.data.chunk_reader import APART_S, ChunkReader
from sentinel.data.data_index import DataFiles
from sentinel.data.feeding import EpochOrder, FileFeeding, permutation
from sentinel.data.sample_arena import (
    DONE,
    EPOCH,
    HOST_FD,
    HOST_INODE,
    HOST_PID,
    JOINED,
    RUNNING,
    WANTED,
    ArenaShape,
    SampleArena,
    arena_of,
)
from sentinel.data.share_names import Job, ShareName
from sentinel.data.source_files import SourceFiles
from sentinel.data.unit_choice import UnitChoice
from sentinel.samples import Begun, Feed, Layout, Order
from sentinel.tiers.arena_place import ArenaPlace

_SOON = 64
"""A job joins another one in the first 64th part of an epoch. What it missed it reads sample by sample."""


_LOOKING = 1 << 63
"""Beside the epoch that a job wants: it has not decided who reads it."""
_LOOKS = 2
"""How often a job looks who reads an epoch, where another one decided at the same moment."""


class _Host(NamedTuple):
    """The job that reads an epoch for this one, and its arena."""

    job: Job
    arena: SampleArena
    order: Order
    epoch: int


class SharedFeeding(FileFeeding):
    """Samples of files, which other jobs of the same name may read for this one, and this one for others."""

    def __init__(
        self,
        data: DataFiles,
        layout: Layout,
        shape: ArenaShape,
        lead: int,
        in_flight: int,
        choice: UnitChoice,
        place: ArenaPlace,
        share: ShareName,
    ) -> None:
        """As FileFeeding. `share`: the name."""
        self._share = share
        super().__init__(data, layout, shape, lead, in_flight, choice, place)
        share.publish(self._arena.descriptor, self._arena.inode)
        weakref.finalize(self, share.close)
        self._host: _Host | None = None
        self._hosted, self._parted = 0, 0
        """Epochs that another job read for this one, and how many of them it did not read to their end."""

    def _reads(
        self, shape: ArenaShape, files: SourceFiles, in_flight: int, place: ArenaPlace
    ) -> tuple[SampleArena, ChunkReader]:
        """The memory, of which pages are reserved once this job reads, and who fills it."""
        arena = SampleArena(shape, slot=self._share.slot, reserved=False, place=place)
        return arena, ChunkReader(arena, files, in_flight=in_flight, alive=self._share.alive)

    def begin(self, order: Order, epoch: int, begun: Begun | None) -> EpochOrder:
        """Join a job that reads the epoch, or plan it and read for others."""
        try:
            return self._joined_or_planned(order, epoch, begun)
        except BaseException:
            self._arena.counters[WANTED] = 0  # nobody waits for what does not come
            raise

    def _joined_or_planned(self, order: Order, epoch: int, begun: Begun | None) -> EpochOrder:
        before, self._host = self._host, None
        told, leads = self._arena.counters, self._has_guests(epoch)
        for _ in range(_LOOKS if begun is None else 0):
            told[WANTED] = np.uint64(_LOOKING | epoch + 1)
            if self._joined(order, epoch, before, leads=leads):
                return self._as_guest(order, epoch)
            told[HOST_PID], told[WANTED] = 0, epoch + 1
            if not self._comes_after(epoch, leads=leads):
                break
        told[HOST_PID], told[WANTED] = 0, 0 if begun else epoch + 1
        try:
            self._arena.reserve()
        except UsageError:
            if not self._hosted:
                raise
            told[WANTED] = 0
            return self._without_memory(order, epoch, begun)
        return self._begun(order, epoch, begun, 0 if begun else epoch + 1)

    def _has_guests(self, epoch: int) -> bool:
        """Whether this job read the epoch before for others too: they wait for it, so it waits for none of them."""
        told = self._arena.counters
        guests = told[JOINED : JOINED + self._arena.shape.jobs] == epoch
        guests[self._arena.slot] = False
        return epoch > 0 and int(told[EPOCH]) == epoch and bool(guests.any())

    def _joined(self, order: Order, epoch: int, before: _Host | None, *, leads: bool) -> bool:
        """Whether another job reads this epoch for this one. `before`: the one that read the last epoch, for which it
        waits; also for one that plans this epoch, and, unless it `leads`, of those that look as this one does, for
        those with lower slots.
        """
        share, began, m = self._share, time.monotonic(), order.per_rank(self._layout.n_samples)
        while True:
            waits = False
            for job in share.others():
                if not share.agrees(job):
                    continue
                same = before is not None and before.job == job
                arena = before.arena if before and same else self._opened(job)
                if arena is None:
                    continue
                told = arena.counters
                invited = int(told[JOINED + share.slot]) == epoch + 1
                soon = invited or int(arena.taken_by[job.slot].sum(dtype=np.int64)) <= m // _SOON
                if int(told[EPOCH]) == epoch + 1 and told[RUNNING] and soon:
                    if not invited:
                        arena.taken[:] = 0
                        told[JOINED + share.slot] = epoch + 1
                    self._host = _Host(job, arena, order, epoch)
                    return True
                waits |= _plans(arena, epoch) or (not leads and job.slot < share.slot and _looks(arena, epoch))
                waits |= same and int(told[EPOCH]) in (0, epoch) and bool(told[RUNNING])  # 0 while it plans
            if not waits or time.monotonic() - began > APART_S:
                return False
            time.sleep(1e-3)

    def _comes_after(self, epoch: int, *, leads: bool) -> bool:
        """Whether this job, which has just said that it plans this epoch, leaves it to one with a lower slot: neither
        had seen the other."""
        share = self._share
        jobs = [job for job in share.others() if job.slot < share.slot and share.agrees(job)]
        arenas = [arena for job in jobs if (arena := self._opened(job)) is not None]
        return any(_plans(arena, epoch) or (not leads and _looks(arena, epoch)) for arena in arenas)

    def _opened(self, job: Job) -> SampleArena | None:
        return arena_of(job.pid, job.descriptor, job.inode, self._arena.shape, self._arena.slot)

    def _as_guest(self, order: Order, epoch: int) -> EpochOrder:
        """The order of an epoch that another job reads: what this one has of its own goes."""
        host, own = self._host, self._arena
        assert host is not None
        self._hosted += 1
        planned = self._without_memory(order, epoch, None)
        own.counters[WANTED] = epoch + 1
        own.counters[HOST_FD], own.counters[HOST_INODE] = host.job.descriptor, host.job.inode
        own.counters[HOST_PID] = host.job.pid
        return planned

    def _without_memory(self, order: Order, epoch: int, begun: Begun | None) -> EpochOrder:
        """The order of an epoch for which nothing is read here. Where nobody else does, as when others took the memory
        that a guest gave back, each sample is read alone."""
        own = self._arena
        self._reader.leave()
        own.counters[RUNNING] = own.counters[EPOCH] = 0
        own.taken[:] = 0
        own.clear()
        own.let_go()
        self._done = self._now = None
        samples = order.of_rank(permutation(self.samples.n, order, epoch), 0 if begun is None else begun.delivered)
        none = np.zeros(len(samples), np.bool_)
        return EpochOrder(samples, none, none)

    def tend(self, delivered: int, ahead: int) -> None:
        """Where another job reads for this one: whether it still does. If not, the rest is planned and read here."""
        host, own, share = self._host, self._arena, self._share
        if host is None:
            return
        m, told = host.order.per_rank(self.samples.n), host.arena.counters
        joined = int(told[JOINED + share.slot]) == host.epoch + 1
        all_read = joined and int(told[DONE]) >= m and int(told[EPOCH]) in (0, host.epoch + 1)  # 0: it was closed
        if all_read or m <= delivered + ahead:
            return
        if host.arena.serves(host.epoch + 1) and own.counters[HOST_PID] and share.alive(host.job.slot):
            return
        self._host = None
        self._parted += 1
        told[JOINED + share.slot] = 0
        try:
            own.reserve()
        except UsageError:
            return  # each sample of this epoch is read alone
        order, at = host.order, delivered + ahead
        begun = Begun(at * order.world, order.world, self.samples.room)
        samples = order.of_rank(permutation(self.samples.n, order, host.epoch))
        staging = self._planned(order, host.epoch, begun, None).after(samples[:at])
        self._now = order, host.epoch, staging
        self._reader.begin(staging, goes_on=False, copied=at)
        own.counters[WANTED] = own.counters[HOST_PID] = 0
        self._reader.start()

    def start(self) -> None:
        """Read, unless another job does, or nobody."""
        if self._now is not None:
            super().start()

    def give_up(self) -> None:
        """Nobody waits for the reader any more, nor for this job's copies."""
        self._arena.counters[WANTED] = 0  # first: the reader may take a minute to end
        super().give_up()
        if self._host is not None:
            self._host.arena.counters[JOINED + self._arena.slot] = 0
            self._host = None

    def finish(self) -> None:
        """All was delivered, or will not be."""
        if self._host is None:
            super().finish()
            return
        arena = self._host.arena
        if not arena.taken.all() and int(arena.counters[EPOCH]) == self._host.epoch + 1:
            arena.taken[:] = 1  # those of the end that make no batch; else its reader may be at the next epoch

    def predicted(self) -> Feed | None:
        """What the plan of the epoch that was begun last says; None where another job read some of it."""
        return None if self._hosted else super().predicted()

    def caveats(self) -> list[str]:
        """Sentences to read before the counts."""
        found = super().caveats()
        found.insert(len(self._why), self._said_of_share())
        return found

    def _said_of_share(self) -> str:
        """What was shared, and with whom nothing could be."""
        said = f"share {self._share.name!r}: another job read {self._hosted} epochs for this one"
        if self._parted:
            said += (
                f", {self._parted} of them not to their end: jobs at different places of an epoch read for themselves"
            )
        return said + self._share.unlike


def _looks(arena: SampleArena, epoch: int) -> bool:
    """Whether its job has not decided yet who reads this epoch for it."""
    return int(arena.counters[WANTED]) == _LOOKING | epoch + 1


def _plans(arena: SampleArena, epoch: int) -> bool:
    """Whether its job is about to read this epoch, for itself and others."""
    told = arena.counters
    return int(told[WANTED]) == epoch + 1 != int(told[EPOCH]) and not told[HOST_PID]
