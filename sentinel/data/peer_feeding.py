"""Feeding several ranks by one plan over the memory of all of them, which servers hold."""

from __future__ import annotations

import weakref
from threading import Event

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import UsageError
from sentinel.core.rules import holding
from sentinel.core.units import PAGE_BYTES, format_bytes
from sentinel.data.data_index import DataFiles
from sentinel.data.feeding import SINGLE_SAMPLES, EpochOrder, FedSamples, Feeding, has_single_samples, permutation
from sentinel.data.peer_exchange import ChunkProvider, Progress, job_of, note_of, unlike
from sentinel.data.peer_samples import FromPeers
from sentinel.data.peers import Peer, RankHash, late_counts, rows
from sentinel.data.ranks import check_ranks_agree
from sentinel.data.room_here import cut_within
from sentinel.data.sample_arena import RUNNING, ArenaShape, SampleArena, page_bytes_for
from sentinel.data.source_files import SourceFiles
from sentinel.data.staged_samples import Held
from sentinel.samples import PLANS_VERSION, Begun, Epoch, Feed, Layout, Order, Room, WorldPlan, plan_world
from sentinel.system.progress import say

_LEAD, _MOST_LEAD = 16, 4096
"""Chunks are read so long before their first use as a 16th of what all ranks hold takes, and samples of each rank at
most: twice as long as without peers, for samples go to a server and from there."""


class PeerFeeding(Feeding):
    """Samples that all ranks keep together: each rank reads the chunks that are its own, and has samples in its own
    memory only on their way."""

    def __init__(
        self,
        data: DataFiles,
        layout: Layout,
        rooms: tuple[ArenaShape, Room],
        order: Order,
        peers: list[Peer],
        in_flight: int,
    ) -> None:
        """`layout`: that of `data`, cut in chunks. `rooms`: `rooms_within`. `peers`: of each machine, in the order of
        ranks. `in_flight`: how many chunks are read at once."""
        shape, room = rooms
        room, digest = room.checked(layout), data.layout.digest
        self._layout, self._in_flight, self._board = layout, in_flight, SampleArena(shape)
        note = note_of(
            plans_version=PLANS_VERSION,
            world=order.world,
            memory=room.nbytes // order.world,
            chunks=layout.n_chunks,
            peers=len(peers),
        )
        peers = [peers[rank * len(peers) // order.world] for rank in range(order.world)]
        board = rows(order.world)
        self._ranks = [
            RankHash(peer, job_of(digest, order.seed, rank), note, row)
            for rank, (peer, row) in enumerate(zip(peers, board, strict=True))
        ]
        self._late, self._late_before = late_counts(board), np.zeros(order.world, np.int64)
        """(world,) How often each rank has been late, and had been when its server was asked."""
        self._unlike: dict[int, str] = {}
        """Rank -> in what it was given something else."""
        files = SourceFiles(layout, data.root, data.source)
        self._progress, self._stopping = Progress(self._board), Event()
        own = self._ranks[order.rank]
        self._provider = ChunkProvider(files, self._board, own, order.rank, self._progress, self._stopping)
        self._source = FromPeers(files, self._board, self._ranks, data.source, self._provider.token)
        self.samples = FedSamples(digest, layout.sample_nbytes, room, self._source, data.layout)
        self._planned: tuple[Order, int, WorldPlan] | None = None
        self._finished = self._agreed = False
        self._ended = weakref.finalize(self, self._stopping.set)  # threads end with the job's last use of it

    def begin(self, order: Order, epoch: int, begun: Begun | None) -> EpochOrder:
        """Plan an epoch of all ranks, from what the one before kept if that was delivered to its end. Raises UsageError
        where ranks were given unlike peers or memory."""
        if not self._agreed:
            self._provider.forget()  # on all ranks before any of them takes a sample
            if len(self._ranks) > 1:
                self._source.introduce()
            said = {"peers": [rank.peer.address for rank in self._ranks], "memory": self.samples.room.nbytes}
            check_ranks_agree(order.world, {"version of plans": PLANS_VERSION, **said})
            self._agreed = True
        self.pause()
        done, n = self._planned, self._layout.n_samples
        before = None
        if begun is None and self._finished and done is not None and done[:2] == (order, epoch - 1):
            before = done[2]
        now, following = permutation(n, order, epoch), permutation(n, order, epoch + 1)
        plan = plan_world(self._layout, order, self.samples.room, epoch, Epoch(now, following, begun), before)
        share = plan.share(self._layout, order.rank)
        self._planned, self._finished = (order, epoch, plan), False
        self._board.taken[:] = 0
        self._board.counters[RUNNING] = 1
        self._progress.begin(len(share.order))
        self._provider.begin(plan, share.reads, before)
        mine = self._ranks[order.rank].peer
        elsewhere = np.array([rank.peer is not mine for rank in self._ranks], np.bool_)
        held = Held(share.reader, share.name, share.last, elsewhere[share.reader])
        return EpochOrder(share.order, share.first, share.direct, held)

    def start(self) -> None:
        """Read, in threads of this process."""
        self._stopping.clear()
        self._provider.start(self._in_flight)

    def tend(self, delivered: int, ahead: int) -> None:  # noqa: ARG002 -- what all feedings are told
        """The server keeps what this rank has put, as long as batches are delivered. Of ranks that were late it is
        asked whether they were given the same."""
        self._provider.keep()
        for number in np.flatnonzero(self._late > self._late_before).tolist():
            rank = self._ranks[number]
            if rank.peer.left_alone:
                continue
            found, known = unlike(rank), self._unlike.pop(number, "")
            self._late_before[number] = rank.late
            if found:
                self._unlike[number] = found
                if found != known:
                    say(self._of_unlike(number), wrong=True)

    def _of_unlike(self, rank: int) -> str:
        there = f"the peer {self._ranks[rank].peer.address} has those of a rank {rank} that was given"
        remedy = "give all ranks the same, and the same version of Sentinel"
        return f"samples of rank {rank} do not come: {there} {self._unlike[rank]}; {remedy}"

    def pause(self) -> None:
        """No thread reads."""
        self._stopping.set()
        self._board.wake()
        self._provider.finish()

    def give_up(self) -> None:
        """Nobody waits for this rank's samples any more."""
        self._board.counters[RUNNING] = 0
        self.pause()
        self._provider.leave()
        self._source.hang_up()

    def finish(self) -> None:
        """All was delivered: what other ranks and the next epoch need is read to its end."""
        self._board.taken[:] = 1
        self._board.wake()
        self._provider.finish()
        self._source.settle()
        self._finished = True

    def counts(self) -> Feed:
        """What this rank has read since the loader was made. Samples have no memory here."""
        return self._provider.log.counts.feed(self._layout.n_chunks)

    def last_reads(self) -> NDArray[np.void]:
        """(rows,) of READ, the last ones of this rank."""
        return self._provider.log.last

    def caveats(self) -> list[str]:
        """Sentences to read before the counts."""
        provider, late = self._provider, int(self._late.sum())
        not_provided = f"{provider.failed} chunks were not provided to other ranks (the last: {provider.failure})"
        full = "start it with more memory; what a job that was killed has left there goes after an hour"
        found = holding(
            (has_single_samples(self.samples.layout or self._layout), SINGLE_SAMPLES), (provider.failed, not_provided)
        )
        for peer in dict.fromkeys(rank.peer for rank in self._ranks):
            silences, refusals, named = peer.silences, peer.refusals, f"the peer {peer.address}"
            found += holding(
                (silences, f"{named} did not answer {silences} times, and was skipped for a while"),
                (refusals, f"{named} refused {refusals} times: where it is full, {full}"),
            )
        found += [self._of_unlike(rank) for rank in sorted(self._unlike)]
        return found + holding((late, f"samples of other ranks came too late {late} times, and were read alone"))


def rooms_within(memory_bytes: int, layout: Layout, world: int) -> tuple[ArenaShape, Room]:
    """The tables of a rank, and the room of all `world` ranks in servers, where each rank has `memory_bytes` for both.
    Raises UsageError where that is too little."""
    page = page_bytes_for(layout.sample_nbytes)
    shape = ArenaShape(layout.n_samples, 0, page)
    if 2 * shape.nbytes > memory_bytes:
        least = 2 * shape.nbytes + PAGE_BYTES + int(layout.sample_nbytes.max())
        raise UsageError(
            f"memory={format_bytes(memory_bytes)} is too little to keep samples with peers",
            f"give at least {format_bytes(least)}",
        )
    pages = world * (memory_bytes - shape.nbytes) // page
    held = pages * page * layout.n_samples // max(layout.nbytes, 1)
    lead = max(2 * world, min(held // _LEAD, _MOST_LEAD * world))
    return shape, Room(pages * page, page, lead)


def cut_for_peers(layout: Layout, room: Room, unit: int) -> tuple[Layout, int]:
    """The layout in chunks that suit the room of all ranks, and the samples of one. Raises what `cut_within` raises."""
    return cut_within(layout, ArenaShape(layout.n_samples, room.n_pages, room.page_bytes), unit)
