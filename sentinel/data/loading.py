"""Loader: batches of a data set in torch's order, from a torch DataLoader whose workers are fed by one reader."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from sentinel.core.errors import FormatError, UsageError
from sentinel.core.rules import holding
from sentinel.core.units import plain
from sentinel.data.batch_room import NO_ROOM, NOT_SENT, NoRoom, can_never_hold, too_little_room
from sentinel.data.batching import Batching, pinned, requests_of
from sentinel.data.delivery_counts import DeliveryCounts, EpochCounts
from sentinel.data.feed_report import FeedReport
from sentinel.data.feeding import EpochOrder, Feeding
from sentinel.data.hit_places import named
from sentinel.data.loader_workers import (
    OF_LOST_WORKERS,
    WorkersLoader,
    begin_worker,
    end_workers,
    ends_training,
    exit_codes,
    is_of_lost_worker,
    keep_signals_from,
    next_batch,
    watched,
)
from sentinel.data.ranks import check_ranks_agree
from sentinel.data.room_here import memory_for_unit
from sentinel.data.served_samples import Served
from sentinel.data.small_tensors import ROOM_BYTES
from sentinel.data.spawned_workers import context_of
from sentinel.data.staged_samples import Failed, Request, StagedSamples, collated
from sentinel.samples import Begun, Order, Room, ShuffleQuality, shuffle_quality
from sentinel.system.progress import say
from sentinel.system.topology import topology

MOST_RESTARTS = 3
"""Of workers that were killed, in one iteration."""
STATE_VERSION = 1
EPOCHS = 1 << 62
"""More than torch's generators have seeds for, with a seed of the job."""


class Loader(IterableDataset[Any]):
    """Made by `sentinel.data.loader`. Each iteration over it is an epoch. For one thread.

    It is an IterableDataset of batches: torchdata's `StatefulDataLoader(loader, batch_size=None)` keeps its state. Give
    that no workers, because the loader has its own.
    """

    def __init__(
        self, feeding: Feeding, order: Order, batching: Batching, unit: int = 0, ranks_given: bool = True
    ) -> None:
        """`unit`: samples read at once, on which orders other than exact depend. `ranks_given`: the user named rank
        and world."""
        self._feeding, self._order, self._batching, self._unit = feeding, order, batching, unit
        self._ranks_given = ranks_given
        self._process = os.getpid()
        self._epoch, self._delivered = 0, 0
        self._base: Begun | None = None
        self._iteration = 0
        self._batches: list[Request] = []
        """The requests that are next, as torch asks its batch samplers for them: one list for all iterations."""
        self._agreed = False
        self._asked = False
        """Whether workers may be at batches of an iteration that was left."""
        self._workers: WorkersLoader | None = None
        self._number = 0
        """The epoch that `_now` counts."""
        self._mixed: EpochOrder | ShuffleQuality | None = None
        """How it is mixed, or, until that is asked for, its order."""
        of_rank = order.per_rank(feeding.samples.n)
        self._total, self._now = DeliveryCounts(feeding.counts(), of_rank), EpochCounts(feeding.counts(), of_rank)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._process = os.getpid()

    # --- batches ---

    def __iter__(self) -> Iterator[Any]:
        """The batches of an epoch, or of the rest of the one that `load_state_dict` told. Raises UsageError in a worker
        of another DataLoader, each of which would deliver all of them, and in a forked child."""
        if get_worker_info() is not None:
            raise UsageError(
                "a loader is iterated over in a worker of a DataLoader, and each worker would deliver every sample",
                "give num_workers=0 to the DataLoader, and workers= to the loader",
            )
        check_process(self._process, "this loader")
        if not self._agreed:
            self._check_ranks()
        self._drain()
        if self._delivered:  # the last iteration was left
            self._next_epoch()
        self._iteration += 1
        self._number = self._epoch
        base = self._base
        if base is not None and not self._order.per_rank(max(self._length(base.world) - base.delivered, 0)):
            planned = EpochOrder.of_nothing()
        else:
            planned = self._feeding.begin(self._order, self._epoch, self._base)
        self._delivered, self._mixed = 0, planned
        self._now = EpochCounts(self._feeding.counts(), self._order.per_rank(self._feeding.samples.n))
        self._asked = False
        return self._deliver(self._iteration, planned)

    def _length(self, world: int) -> int:
        """Samples of an epoch that was begun by so many ranks, with those that are delivered twice. In exact order
        these come last, and other ranks need not deliver them."""
        n, order = self._feeding.samples.n, self._order
        return n if order.kind == "exact" else replace(order, world=world, rank=0).per_rank(n) * world

    def _check_ranks(self) -> None:
        """Raises UsageError, on every rank, unless all begin with the same order at the same place."""
        order, state = self._order, self.state_dict()
        said = {name: state[name] for name in ("seed", "order", "drop_last", "epoch", "delivered")}
        said |= {"data set": state["data"], "batch_size": self._batching.batch_size}
        said["world of the state"] = state["world"]
        if order.kind != "exact":
            said |= {"memory": self._feeding.samples.room.nbytes, "unit": self._unit, "room": state["room"]}
        check_ranks_agree(order.world, said, self._ranks_given)
        self._agreed = True

    def _deliver(self, iteration: int, planned: EpochOrder) -> Iterator[Any]:
        requests = requests_of(planned, self._batching)
        restarts = done = 0
        batches: Any = None
        if not requests and iteration == self._iteration:
            self._feeding.give_up()  # as where drop_last leaves all out: else jobs that share would wait for this one
        while done < len(requests):
            check_process(self._process, "this loader")
            if iteration != self._iteration:
                raise UsageError(
                    "this iteration has ended: another one began, or set_epoch(), load_state_dict() or close() was"
                    " called",
                    "iterate over the loader again",
                )
            self._feeding.tend(self._delivered, self._under_way)
            try:
                if batches is None:
                    batches = self._worked(requests[done:])
                batch, served = next_batch(batches)
            except BaseException as error:
                starting = batches is None
                if starting and self._workers is not None:
                    batches = self._workers.begun  # one was lost as it started, or since the last epoch
                if not is_of_lost_worker(error, batches, starting=starting):
                    if starting or ends_training(error):  # half of a message may be left unread
                        self._give_workers_up()
                    raise
                self._check_sent(batches, restarts == MOST_RESTARTS)
                if restarts == MOST_RESTARTS:
                    self._give_workers_up()
                    raise
                restarts += 1
                self._stop_lost(batches, "a worker of the loader was lost", restarts)
                batches = None
                continue
            if isinstance(batch, NoRoom):
                if restarts == MOST_RESTARTS or can_never_hold(batch.nbytes * self._asked_ahead):
                    raise self._too_little_room(batches, "a batch found no room in shared memory", batch.nbytes)
                restarts += 1
                self._stop_lost(batches, "a batch found no room in /dev/shm", restarts)
                batches = None
                continue
            if isinstance(batch, Failed):
                raise FormatError(*batch)
            asked = requests[done].samples
            done += 1
            self._asked = done < len(requests)
            if not self._asked:
                self._feeding.finish()  # before this batch counts as received: it may wait, and be interrupted
            self._delivered += served.samples
            nbytes = int(self._feeding.samples.nbytes[asked].sum())
            for counted in (self._total, self._now):
                counted.add(served, len(asked), nbytes)
            yield pinned(batch) if self._batching.pin_memory else batch
        if iteration == self._iteration:
            self._next_epoch()

    def _stop_lost(self, batches: Any, why: str, restarts: int) -> None:
        """They are to start again, for so many times now."""
        say(
            f"{why}: all start again, at sample {self._delivered} of the epoch ({restarts} of {MOST_RESTARTS} times)",
            wrong=True,
        )
        self._stop_workers(batches)

    def _check_sent(self, batches: Any, last: bool) -> None:
        """Raises UsageError where a worker ended since its batch can never be sent; of one that found no room for it
        in /dev/shm, which others may have taken for a while, only if it was the `last` that is tried."""
        codes = exit_codes(batches)
        if NOT_SENT in codes:
            raise UsageError(
                "a worker of the loader cannot send a batch (its error stands above)",
                "let transform= and collate_fn= give what can be pickled",
            )
        if last and NO_ROOM in codes:
            raise self._too_little_room(batches, "a batch found no room in shared memory")
        if last and -signal.SIGBUS in codes:
            ends = "as where /dev/shm is full, or a mapped file is cut short"
            raise self._too_little_room(batches, f"a worker of the loader was ended by SIGBUS, {ends}")

    def _too_little_room(self, batches: Any, what: str, nbytes: int = 0) -> UsageError:
        self._stop_workers(batches)
        asked = self._batching
        return too_little_room(what, nbytes, asked.workers, asked.prefetch_factor)

    def _worked(self, requests: list[Request]) -> Iterator[Any]:
        """(batch, how it was got) of each request, in order. Workers are made before the reader's threads are."""
        self._feeding.pause()
        self._batches[:], self._asked = requests, True
        if self._workers is None:
            self._workers = self._dataloader()
        batches = iter(self._workers)
        keep_signals_from(batches)
        self._feeding.start()
        return batches

    @property
    def _under_way(self) -> int:
        """Samples that workers may have been asked for, beyond those that were delivered."""
        return self._batching.batch_size * self._asked_ahead

    @property
    def _asked_ahead(self) -> int:
        """Batches that workers may have been asked for at once."""
        return self._batching.prefetch_factor * self._batching.workers

    def _dataloader(self) -> WorkersLoader:
        asked = self._batching
        several: dict[str, Any] = {}
        room = ROOM_BYTES // max(self._asked_ahead, 1)
        if asked.workers:
            several = {
                "persistent_workers": True,
                "prefetch_factor": asked.prefetch_factor,
                "multiprocessing_context": context_of(asked.multiprocessing_context),
                "worker_init_fn": begin_worker,
            }
        return WorkersLoader(
            StagedSamples(self._feeding.samples.source, asked.transform),
            batch_sampler=self._batches,  # type: ignore[arg-type]  # yields a Request in place of a list
            num_workers=asked.workers,
            collate_fn=partial(collated, collate_fn=asked.collate_fn, room=room),  # of what StagedSamples gives
            generator=torch.Generator().manual_seed(self._workers_seed()),  # torch's own would be drawn from
            **several,
        )

    def _workers_seed(self) -> int:
        """Of the random numbers that `transform` draws: unlike on each rank, and after each start of workers."""
        said = (self._order.seed % 2**64, self._order.rank, self._epoch, self._delivered)
        return int(np.random.SeedSequence(said).generate_state(1, np.uint64)[0] >> np.uint64(1))

    def _drain(self) -> None:
        """No worker is at a batch of an iteration that was left: these would use the room of the next one."""
        if not self._asked:
            return
        self._feeding.give_up()
        if self._workers is not None and self._batching.workers:
            self._batches.clear()
            batches = self._workers._iterator
            try:
                with watched(batches):
                    iter(self._workers)  # torch waits until they are done with what they were asked
            except BaseException as error:
                self._give_workers_up()  # answers that are still to come would be taken for those of the next iteration
                if ends_training(error) or not isinstance(error, OF_LOST_WORKERS):
                    raise
        self._asked = False

    def _give_workers_up(self) -> None:
        """They end; the next iteration has others."""
        batches = None if self._workers is None else self._workers.begun
        self._workers = None
        if batches is not None:
            self._stop_workers(batches)

    def _stop_workers(self, batches: Any) -> None:
        self._feeding.pause()
        self._workers = None
        end_workers(batches)

    def _next_epoch(self) -> None:
        self._epoch += 1
        self._base, self._delivered = None, 0

    def __len__(self) -> int:
        """Batches of an epoch from its begin."""
        whole = self._order.per_rank(self._feeding.samples.n)
        return (
            whole // self._batching.batch_size if self._batching.drop_last else -(-whole // self._batching.batch_size)
        )

    def close(self) -> None:
        """Ends workers and the reader, and frees the memory; otherwise that is when the loader is not used any more.
        The next iteration begins with others. With `share=`, memory and name go with the last use of the loader only,
        and so does a file on a disk (`where=`): `del` it. In a forked child, to which nothing of it belongs, it ends
        nothing."""
        self._iteration += 1
        if os.getpid() != self._process:
            self._workers = None
            return
        self._feeding.give_up()
        self._give_workers_up()  # else they live on for as long as somebody has the iteration, as a traceback may
        self._feeding.close()

    # --- where it is ---

    @property
    def epoch(self) -> int:
        """The epoch that is under way, or that the next iteration will be."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch, from its begin, or from where `load_state_dict` says for the same epoch."""
        epoch = plain(epoch)
        if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 <= epoch < EPOCHS:
            raise UsageError(f"there is no epoch {epoch!r}", "give a number of at least 0, below 2**62")
        if epoch != self._epoch or self._delivered:
            self._iteration += 1
            self._epoch = epoch
            self._base, self._delivered = None, 0

    def state_dict(self) -> dict[str, Any]:
        """Where training is, in less than 1 KB of JSON values: what it received, not what workers have fetched."""
        order, room = self._order, self._feeding.samples.room
        begun = self._base or Begun(0, order.world, room)
        return {
            "version": STATE_VERSION,
            "data": self._feeding.samples.digest,
            "order": order.kind,
            "seed": order.seed,
            "drop_last": order.drop_last,
            "unit": self._unit,
            "epoch": self._epoch,
            "delivered": begun.delivered + self._delivered * order.world,
            "world": begun.world,
            "room": [begun.room.nbytes, begun.room.page_bytes, begun.room.lead],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration is the rest of the epoch that `state` tells of, in the same order, whatever the number of
        workers, ranks or bytes of memory. Raises UsageError for the state of another data set, order or version."""
        order = self._order
        if not isinstance(state, dict) or state.get("version") != STATE_VERSION:
            raise UsageError("this is not the state of a loader of this version", "give what state_dict() returned")
        if state.get("data") != self._feeding.samples.digest:
            raise UsageError("the state is of another data set", "give the files that it was made with")
        same = {"order": order.kind, "seed": order.seed, "drop_last": order.drop_last}
        if order.kind != "exact":
            same["unit"] = self._unit
        for name, mine in same.items():
            if (theirs := state.get(name)) != mine:
                remedy = f"make it with {name}={theirs!r}"
                if name == "unit" and type(theirs) is int and theirs > self._unit > 0:  # as many as suit the memory
                    remedy += f" and at least memory={memory_for_unit(self._feeding.samples.nbytes, theirs)}"
                raise UsageError(f"the state has {name}={theirs!r}, the loader {mine!r}", remedy)
        epoch, delivered, world, room = (state.get(name) for name in ("epoch", "delivered", "world", "room"))
        whole = (epoch, delivered, world, *(room if isinstance(room, list) and len(room) == 3 else (None,)))
        damaged = UsageError("the state is damaged", "give what state_dict() returned")
        if not all(type(number) is int and 0 <= number < EPOCHS for number in whole) or not state["world"]:
            raise damaged
        try:
            base = Begun(state["delivered"], state["world"], Room(*state["room"])) if delivered else None
        except UsageError as error:
            raise damaged from error
        self._iteration += 1
        self._agreed = False
        self._epoch, self._delivered, self._base = state["epoch"], 0, base

    def report(self) -> FeedReport:
        """What was delivered so far, and what was read for it."""
        feeding, counts, predicted = self._feeding, self._feeding.counts(), self._feeding.predicted()
        whole = predicted is not None and predicted.samples == self._now.served.samples
        host = topology()
        return FeedReport(
            self._total.fed(counts),
            self._now.fed(counts),
            self._number,
            predicted if whole else None,
            feeding.node_pages(),
            feeding.caveats() + _said(self._total.served),
            self._mixing(),
            self._now.log(counts, feeding.last_reads()),
            {place: named(place, host) for place in self._total.served.by_place},
        ).checked()

    def _mixing(self) -> ShuffleQuality | None:
        """How well the order of the epoch that was begun last mixes samples; None where that cannot be told."""
        chunks, mixed = self._feeding.samples.neighbourhoods, self._mixed
        if isinstance(mixed, EpochOrder):
            known = chunks is not None and len(mixed.samples)
            mixed = shuffle_quality(chunks, mixed.samples, self._batching.batch_size) if chunks and known else None
            self._mixed = mixed
        return mixed


def check_process(made_in: int, what: str) -> None:
    """Raises UsageError in a forked child: its memory is that of the process that made `what`, which may read on."""
    if os.getpid() != made_in:
        raise UsageError(f"{what} belongs to process {made_in}, which made it", "make one in this process")


def _said(served: Served) -> list[str]:
    """What a reader of the report should know of direct reads."""
    damaged = f"{served.damaged} samples in memory were not as the reader wrote them, and were read alone"
    return holding(
        (served.of_jobs, f"{served.of_jobs} of the hits came from the memory of other jobs"),
        (served.late, f"{served.late} samples were not in memory in time, and were read alone"),
        (served.damaged, f"{damaged}: another process wrote there, or the memory is faulty"),
    )
