"""One staging over the rooms of all ranks: which rank reads which chunk, and what each rank takes from where."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.samples.epoch_plan import Epoch
from sentinel.samples.exact import stage_exact
from sentinel.samples.layout import Layout
from sentinel.samples.order import Order
from sentinel.samples.room import Room
from sentinel.samples.staging import DIRECT, Staging

PLANS_VERSION = 1
"""Of what is planned for ranks that keep samples together: each finds those of others by a plan of its own, so all must
plan alike. To be raised with each change of a staging in exact order."""
NAME = np.dtype([("sample", ">u8"), ("epoch", ">u4"), ("read", ">u4")])
"""What a stay is called among ranks: its sample, and the read that brought it, by its number in its epoch."""
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


@dataclass(frozen=True, eq=False)
class RankShare:
    """What one rank does of a WorldPlan. Columns of (m,) by position of this rank.

    `order`: the samples that it delivers. `reads`: the reads of the world's staging that are this rank's.
    """

    order: NDArray[np.int64]
    direct: NDArray[np.bool_]
    """(m,) Whether the sample is read alone."""
    reads: NDArray[np.int64]
    reader: NDArray[np.int64]
    """(m,) The rank that reads the sample's chunk."""
    name: NDArray[np.void]
    """(m,) NAME of the stay; of no meaning where the sample is read alone."""
    first: NDArray[np.bool_]
    """(m,) Whether a chunk is read for it."""
    last: NDArray[np.bool_]
    """(m,) Whether nobody needs its stay afterwards."""


@dataclass(frozen=True, eq=False)
class WorldPlan:
    """`staging`: of all ranks' samples, in turn: position p is delivered by rank p % world. `epoch`: its number.
    `reader`: (n_chunks,) the rank that reads each chunk. `names`: (n_stays,) NAME of each stay."""

    staging: Staging
    world: int
    epoch: int
    reader: NDArray[np.int64]
    names: NDArray[np.void]

    def share(self, layout: Layout, rank: int) -> RankShare:
        """That of `rank`."""
        whole = self.staging
        order, stay = whole.order[rank :: self.world], whole.stay_at[rank :: self.world]
        first = np.zeros(whole.n_positions, np.bool_)
        first[whole.read_due[whole.read_due < whole.n_positions]] = True
        names = np.zeros(len(self.names) + 1, NAME)  # DIRECT is the last index
        names[:-1] = self.names
        return RankShare(
            order,
            stay == DIRECT,
            np.flatnonzero(self.reader[whole.read_chunk] == rank),
            self.reader[layout.chunk_of[order]],
            names[stay],
            first[rank :: self.world],
            np.append(whole.stay_until, DIRECT)[stay] == np.arange(rank, whole.n_positions, self.world),
        )

    def not_kept(self, layout: Layout, rank: int) -> NDArray[np.void]:
        """(k,) NAMEs of stays of the chunks that `rank` reads, which nobody needs after the epoch."""
        over = self.reader[layout.chunk_of[self.staging.stay_sample]] == rank
        over[self.staging.kept] = False
        found: NDArray[np.void] = self.names[over]
        return found


def plan_world(
    layout: Layout, order: Order, room: Room, number: int, epoch: Epoch, before: WorldPlan | None = None
) -> WorldPlan:
    """The plan of all ranks of `order` for the epoch `number`, in exact order. `room`: of all of them together;
    `before`: their plan of the epoch before, if that was carried out to its end. The same on every rank.

    Raises UsageError for a room that does not hold a chunk.
    """
    room.checked(layout)
    delivered = 0 if epoch.begun is None else epoch.begun.delivered
    following = [] if epoch.following is None else [order.of_all(epoch.following)]
    kept = np.zeros(0, NAME) if before is None else before.names[before.staging.kept]
    staging = stage_exact(
        layout,
        room,
        order.of_all(epoch.permutation, delivered),
        following,
        None if before is None else before.staging,
    )
    names = np.empty(len(staging.stay_sample), NAME)
    names[: len(kept)] = kept
    names["sample"][len(kept) :] = staging.stay_sample[len(kept) :]
    names["epoch"][len(kept) :] = number
    names["read"][len(kept) :] = staging.stay_read[len(kept) :]
    reader = readers(layout.n_chunks, order.world) if before is None else before.reader
    return WorldPlan(staging, order.world, number, reader, names)


def readers(n_chunks: int, world: int) -> NDArray[np.int64]:
    """(n_chunks,) The rank that reads each chunk: the one of most weight, where each pair of a chunk and a rank has a
    weight of its own (rendezvous hashing), so that no list of them is kept or sent. Of equal weights the first."""
    chunks = np.arange(1, n_chunks + 1, dtype=np.uint64) * _MIX[0]
    found, most = np.zeros(n_chunks, np.int64), np.zeros(n_chunks, np.uint64)
    for rank in range(world):
        weight = chunks ^ np.uint64((rank + 1) * int(_MIX[1]) % (1 << 64))
        for shift, factor in ((30, _MIX[1]), (27, _MIX[2])):
            weight = (weight ^ weight >> np.uint64(shift)) * factor
        weight ^= weight >> np.uint64(31)
        found[weight > most] = rank
        np.maximum(most, weight, out=most)
    return found
