"""From a layout, an order and a room to the staging of an epoch, and what that does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import UsageError
from sentinel.samples.chunk_slice import peak_pages
from sentinel.samples.exact import stage_exact
from sentinel.samples.feed import Feed
from sentinel.samples.joined_ranges import JoinedRanges
from sentinel.samples.layout import Layout
from sentinel.samples.order import Order
from sentinel.samples.redirect import stage_redirect
from sentinel.samples.room import Room
from sentinel.samples.source_costs import SourceCosts
from sentinel.samples.staging import BEFORE, DIRECT, Staging
from sentinel.samples.windowed import stage_windowed


@dataclass(frozen=True)
class Begun:
    """How an epoch was begun that a job now goes on with. `delivered`: samples that all ranks together have delivered.
    `world`, `room`: the number of ranks and the room of each, on which the order depends unless it is exact."""

    delivered: int
    world: int
    room: Room


@dataclass(frozen=True)
class Epoch:
    """What is known of an epoch. `permutation`: (n,) of all samples, torch's for this epoch (see Order). `following`:
    that of the next epoch, None if there is none or it is not to be looked at. `begun`: where the epoch is
    gone on with. `later`: the permutations after `following`, of which `epochs_ahead` tells how many are of use. `plan`
    goes through them once and keeps of each what this rank delivers: give an iterator that makes one after the other,
    and they are never held together."""

    permutation: NDArray[np.int64]
    following: NDArray[np.int64] | None = None
    begun: Begun | None = None
    later: Iterable[NDArray[np.int64]] = ()


def plan(layout: Layout, order: Order, room: Room, epoch: Epoch, before: Staging | None = None) -> Staging:
    """The staging of one rank's epoch. `before`: that of the epoch before, whose kept samples are in the arena still;
    None if the arena is empty.

    The same arguments give the same staging. The order of delivery does not depend on `before`. Raises UsageError for a
    permutation of another number of samples, and for a room that cannot hold a chunk.
    """
    _check(layout, epoch.permutation)
    room.checked(layout)
    following = _following(layout, order, epoch)
    if epoch.begun is not None:
        rest = _rest(layout, order, epoch.permutation, epoch.begun)
        return stage_exact(layout, room, rest, following, None)
    if order.kind == "windowed":
        return stage_windowed(layout, room, order, epoch.permutation)
    if order.kind == "redirect":
        return stage_redirect(layout, room, order, epoch.permutation)
    return stage_exact(layout, room, order.of_rank(epoch.permutation), following, before)


def epochs_ahead(layout: Layout, order: Order, room: Room) -> int:
    """How many epochs after the one that is planned are of use, at least 1: several where a rank has room for more than
    half of what it delivers in one."""
    if order.kind != "exact" or order.world == 1:
        return 1
    return min(-(-2 * room.nbytes * order.world // layout.nbytes), 2 * order.world) or 1


def _following(layout: Layout, order: Order, epoch: Epoch) -> list[NDArray[np.int64]]:
    """This rank's orders of the next epochs, where samples may be kept for them: others begin each epoch with none."""
    found: list[NDArray[np.int64]] = []
    for permutation in () if epoch.following is None else chain((epoch.following,), epoch.later):
        _check(layout, permutation)
        if order.kind == "exact":
            found.append(np.ascontiguousarray(order.of_rank(permutation)))  # a view would keep all of the permutation
    return found


def _check(layout: Layout, permutation: NDArray[np.int64]) -> None:
    if len(permutation) != layout.n_samples:
        raise UsageError(
            f"a permutation of {len(permutation)} for a data set of {layout.n_samples} samples",
            "permute all samples of the layout",
        )


def _rest(layout: Layout, order: Order, permutation: NDArray[np.int64], begun: Begun) -> NDArray[np.int64]:
    """What is left for this rank of an epoch in whose order any other room and number of ranks began."""
    if order.kind == "exact":
        return order.of_rank(permutation, begun.delivered)
    ranks = [replace(order, world=begun.world, rank=rank) for rank in range(begun.world)]
    fresh = Epoch(permutation)
    together = np.stack([plan(layout, rank, begun.room, fresh).order for rank in ranks], axis=1).ravel()
    return order.of_rank(together, begun.delivered)


def simulate(layout: Layout, staging: Staging, costs: SourceCosts | None = None, gap_bytes: int | None = None) -> Feed:
    """What carrying out `staging` counts, and with `costs` how long its reads take. `gap_bytes`: of each chunk only
    what stays is read, and gaps up to so long (see JoinedRanges); None if chunks are read whole."""
    room, m = staging.room, staging.n_positions
    direct = staging.stay_at == DIRECT
    direct_bytes = int(layout.alone_nbytes[staging.order[direct]].sum())
    ranges, read_bytes = len(staging.read_due), int(layout.chunk_nbytes[staging.read_chunk].sum())
    if gap_bytes is not None:
        ranges, read_bytes = _ranges(layout, staging, gap_bytes)
    due = np.append(staging.read_due, 0)[staging.stay_read]  # 0 for those of before the epoch: BEFORE is the last index
    pages = room.pages(layout)[staging.stay_sample]
    used = (staging.stay_until >= 0) | (staging.stay_read != BEFORE)
    feed = Feed(
        n_chunks=layout.n_chunks,
        samples=m,
        sample_bytes=int(layout.sample_nbytes[staging.order].sum()),
        hits=m - len(staging.read_due) - int(direct.sum()),
        source_reads=len(staging.read_due),
        source_ranges=ranges,
        source_bytes=read_bytes + direct_bytes,
        direct_reads=int(direct.sum()),
        direct_bytes=direct_bytes,
        peak_bytes=room.page_bytes * peak_pages(pages[used], due[used], staging.stay_until[used], room.lead),
    )
    if costs is not None:
        feed.wait_ns = round(costs.ns(ranges + feed.direct_reads, feed.source_bytes))
        feed.read_ns = round(costs.ns(ranges, read_bytes))
    return feed


def _ranges(layout: Layout, staging: Staging, gap_bytes: int) -> tuple[int, int]:
    """How many ranges are read, and their bytes."""
    brought = staging.stay_read != BEFORE
    samples = staging.stay_sample[brought]
    found = JoinedRanges.between(
        staging.stay_read[brought], layout.sample_offset[samples], layout.sample_nbytes[samples], gap_bytes
    )
    return len(found.begin), int(found.nbytes.sum())
