"""Feeding several ranks by one plan over the memory of all of them, which servers hold."""

from __future__ import annotations

import weakref
from threading import Event

import numpy as np

from sentinel.core.errors import UsageError
from sentinel.core.units import PAGE_BYTES, format_bytes
from sentinel.data.data_index import DataFiles
from sentinel.data.feeding import EpochOrder, FileFeeding, cut_within, permutation
from sentinel.data.peer_exchange import ChunkProvider, Progress, SampleFetcher
from sentinel.data.peers import Peer
from sentinel.data.ranks import check_ranks_agree
from sentinel.data.room_here import lead_for
from sentinel.data.sample_arena import ArenaShape, page_bytes_for, shape_within
from sentinel.data.source_files import SourceFiles
from sentinel.samples import DIRECT, Begun, Epoch, Feed, Layout, Order, Room, WorldPlan, plan_world

_SHARE = 64
"""Of a rank's memory, the part that its own samples are on their way to workers in."""
_LEAST, _MOST_GROUP, _GROUPS = 16, 64, 4
"""Samples in that part at least; samples that are asked for at once, at most; and how often they fit there."""


class PeerFeeding(FileFeeding):
    """Samples that all ranks keep together: each rank reads the chunks that are its own, and has in its own arena only
    what its workers need next."""

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
        super().__init__(data, layout, shape, room.lead, room=room)
        self._own = Room(shape.n_pages * shape.page_bytes, shape.page_bytes)
        self._in_flight, self._group = in_flight, group_within(layout, shape)
        self._peers = [peers[rank * len(peers) // order.world] for rank in range(order.world)]
        self._keys = [f"sentinel:{self._digest[-32:]}:{order.seed}:{rank}".encode() for rank in range(order.world)]
        progress, self._stopping = Progress(self._arena), Event()
        files, mine = SourceFiles(layout, data.root, data.source), self._peers[order.rank]
        self._provider = ChunkProvider(files, self._arena, mine, progress, self._stopping)
        self._fetcher = SampleFetcher(self._arena, layout.sample_nbytes, progress, self._stopping)
        self._reader.bring_by(self._fetcher.bring)
        self._progress = progress
        self._planned_world: tuple[Order, int, WorldPlan] | None = None
        self._finished = self._agreed = False
        self._ended = weakref.finalize(self, self._stopping.set)  # threads end with the job's last use of it

    def begin(self, order: Order, epoch: int, begun: Begun | None) -> EpochOrder:
        """Plan an epoch of all ranks, from what the one before kept if that was delivered to its end. Raises UsageError
        where ranks were given unlike peers or memory."""
        if not self._agreed:
            self._provider.forget(self._keys[order.rank])  # on all ranks before any of them takes a sample
            said = {"peers": [peer.address for peer in self._peers], "memory": self._room.nbytes}
            check_ranks_agree(order.world, said)
            self._agreed = True
        self.pause()
        done, n = self._planned_world, self._layout.n_samples
        before = None
        if begun is None and self._finished and done is not None and done[:2] == (order, epoch - 1):
            before = done[2]
        now, following = permutation(n, order, epoch), permutation(n, order, epoch + 1)
        plan = plan_world(self._layout, order, self._room, epoch, Epoch(now, following, begun), before)
        share = plan.share(self._layout, order.rank, self._own, self._group)
        self._planned_world, self._finished = (order, epoch, plan), False
        self._progress.n_positions = share.staging.n_positions
        self._reader.begin(share.staging, goes_on=False)
        self._fetcher.begin(share, self._group, self._peers, self._keys)
        self._provider.begin(plan, share.reads, self._keys[order.rank], before)
        elsewhere = np.array([peer is not self._peers[order.rank] for peer in self._peers], np.bool_)
        direct = share.staging.stay_at == DIRECT
        return EpochOrder(share.staging.order, share.first, direct, elsewhere[share.reader])

    def start(self) -> None:
        """Read and fetch, in threads of this process."""
        self._stopping.clear()
        self._provider.start(self._in_flight)
        self._reader.start()

    def pause(self) -> None:
        """No thread reads or fetches."""
        self._stopping.set()
        self._reader.pause()
        self._provider.finish()

    def give_up(self) -> None:
        """Nobody waits for this rank's samples any more."""
        self._stopping.set()
        super().give_up()
        self._provider.finish()

    def finish(self) -> None:
        """All was delivered: what other ranks and the next epoch need is read to its end."""
        super().finish()
        self._provider.finish()
        self._finished = self._reader.error is None

    def counts(self) -> Feed:
        """What this rank has read since the loader was made, and the most memory in use here."""
        provider = self._provider
        return Feed(
            kind="executed",
            n_chunks=self._layout.n_chunks,
            source_reads=provider.reads,
            source_bytes=provider.read_bytes,
            peak_bytes=self._reader.counts.peak_pages * self._arena.shape.page_bytes,
        )

    def predicted(self) -> Feed | None:
        """What a rank reads is not what it delivers: there is a plan of all ranks only."""
        return None

    def caveats(self) -> list[str]:
        """Sentences to read before the counts."""
        found, provider = super().caveats(), self._provider
        if provider.failed:
            found.append(f"{provider.failed} chunks were not provided to other ranks (the last: {provider.failure})")
        for peer in dict.fromkeys(self._peers):
            if peer.silences:
                found.append(
                    f"the peer {peer.address} did not answer {peer.silences} times, and was left alone for a while"
                )
            if peer.refusals:
                said = f"the peer {peer.address} refused {peer.refusals} times"
                found.append(f"{said}: where it is full, start it with more memory")
        if self._fetcher.late:
            found.append(f"samples of other ranks came too late {self._fetcher.late} times, and were read alone")
        return found


def rooms_within(memory_bytes: int, layout: Layout, world: int) -> tuple[ArenaShape, Room]:
    """The arena of a rank, and the room of all `world` ranks in servers, where each rank has `memory_bytes` for both.
    Raises UsageError where that is too little."""
    sizes = layout.sample_nbytes
    page = page_bytes_for(sizes)
    tables = ArenaShape(layout.n_samples, 0, page).nbytes + 2 * PAGE_BYTES
    own = tables + max(memory_bytes // _SHARE, _LEAST * -(-int(sizes.max()) // page) * (page + 4))
    if 2 * own > memory_bytes:
        raise UsageError(
            f"memory={format_bytes(memory_bytes)} is too little to keep samples with peers",
            f"give at least {format_bytes(2 * own)}",
        )
    shape = shape_within(own, sizes)
    pages = world * (memory_bytes - shape.nbytes) // page
    lead = max(lead_for(layout, ArenaShape(layout.n_samples, pages, page)), 2 * group_within(layout, shape) * world)
    return shape, Room(pages * page, page, lead)


def cut_for_peers(layout: Layout, room: Room, unit: int) -> tuple[Layout, int]:
    """The layout in chunks that suit the room of all ranks, and the samples of one. Raises what `cut_within` raises."""
    return cut_within(layout, ArenaShape(layout.n_samples, room.n_pages, room.page_bytes), unit)


def group_within(layout: Layout, shape: ArenaShape) -> int:
    """How many samples are asked for at once."""
    largest = -(-int(layout.sample_nbytes.max()) // shape.page_bytes)
    return max(1, min(_MOST_GROUP, shape.n_pages // (_GROUPS * largest)))
