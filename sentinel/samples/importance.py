"""Importance: epochs of those samples that a model still gets wrong, by the loss that each had last.

An epoch that selects delivers a sample with probability u ** beta, where u in (0, 1] is its rank by last loss over the
number of samples; warm-up epochs and every `reuse_factor`-th one deliver all (Selective-Backprop's rule, as iCache has
it). Samples whose loss is not known count as the most important ones. All chance comes from the epoch's seed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import UsageError
from sentinel.samples.chunk_slice import samples_by_chunk
from sentinel.samples.exact import stage_exact
from sentinel.samples.layout import Layout
from sentinel.samples.room import Room
from sentinel.samples.staging import BEFORE, DIRECT, Staging

_LEAST = 0.3
"""Of the samples that were drawn, the share that `substitute` replaces: those of least importance."""


@dataclass(frozen=True)
class Importance:
    """Which epochs select samples, and how. Raises UsageError for a wrong value.

    `beta`: an epoch that selects delivers 1 / (1 + beta) of the samples in the mean; 0 delivers all. `warm_up`: the
    first epochs, which deliver all. `reuse_factor`: every n-th epoch delivers all, too; 0: none. `unbiased`: weights
    are 1 / probability. `substitute`: replace the least important 30 % of the drawn samples by samples that lie side by
    side in the files; this costs accuracy (docs/data.md)."""

    beta: float = 1 / 3
    warm_up: int = 3
    reuse_factor: int = 3
    unbiased: bool = False
    substitute: bool = False

    def __post_init__(self) -> None:
        for name in ("beta", "warm_up", "reuse_factor"):
            value = getattr(self, name)
            whole = isinstance(value, int) or (name == "beta" and isinstance(value, float))
            if isinstance(value, bool) or not whole or not 0 <= value < float("inf"):
                raise UsageError(f"Importance({name}={value!r}) has no meaning", "give a number of at least 0")
        if self.unbiased and self.substitute:
            raise UsageError(
                "Importance(unbiased=True, substitute=True) has no meaning: a substitute was not drawn",
                "give one of them",
            )

    def selects(self, epoch: int) -> bool:
        """Whether this epoch leaves samples out."""
        return epoch >= self.warm_up and (self.reuse_factor == 0 or epoch % self.reuse_factor != 0)


@dataclass(frozen=True, eq=False)
class Selection:
    """What all ranks together deliver in an epoch. `samples`: (k,) in the order of delivery. `weights`: (k,) 1 /
    probability, or ones. `substituted`: (k,) whether the sample stands for another one that was drawn."""

    samples: NDArray[np.int64]
    weights: NDArray[np.float64]
    substituted: NDArray[np.bool_]

    def of(self, at: NDArray[np.int64]) -> Selection:
        """Those at positions `at`."""
        return Selection(self.samples[at], self.weights[at], self.substituted[at])


def select(
    layout: Layout,
    importance: Importance,
    epoch: int,
    seed: int,
    permutation: NDArray[np.int64],
    losses: NDArray[np.float16],
) -> Selection:
    """The samples of an epoch, in the order of `permutation` (n,). `seed`: the epoch's. `losses`: (n,) the last loss of
    each, NaN where none is known; where no loss is known all are delivered. Equal losses are ranked by chance."""
    n = len(permutation)
    whole = Selection(permutation, np.ones(n), np.zeros(n, np.bool_))
    if not importance.selects(epoch) or bool(np.isnan(losses).all()):
        return whole
    rank = _ranks(losses[permutation])
    probability = ((rank + 1) / n) ** importance.beta
    drawn = np.flatnonzero(np.random.Generator(np.random.PCG64(seed)).random(n) < probability)
    samples = permutation[drawn]
    least = np.zeros(len(drawn), np.bool_)
    if importance.substitute:
        least[np.argsort(rank[drawn])[: int(_LEAST * len(drawn))]] = True
        samples = samples.copy()
        samples[least] = samples_by_chunk(layout, permutation)[0][: int(least.sum())]
    weights = 1 / probability[drawn] if importance.unbiased else np.ones(len(drawn))
    return Selection(samples, weights, least & (samples != permutation[drawn]))


def chances(losses: NDArray[np.float16], beta: float) -> NDArray[np.float64]:
    """(n,) with which probability an epoch that selects delivers samples of these last `losses` (n,)."""
    probability: NDArray[np.float64] = ((_ranks(losses) + 1) / len(losses)) ** beta
    return probability


def _ranks(losses: NDArray[np.float16]) -> NDArray[np.int64]:
    """(n,) from 0; of equal ones the later one is higher, NaN is the highest."""
    rank = np.empty(len(losses), np.int64)
    rank[np.argsort(losses, kind="stable")] = np.arange(len(losses))
    return rank


class OfOthers(NamedTuple):
    """Samples in the memory of other jobs. `held`: (n,) those that are there, or will be as their epoch ends; this job
    need not keep them. `there`: (n,) those of them that are there by now."""

    held: NDArray[np.bool_]
    there: NDArray[np.bool_]


def stage_selected(
    layout: Layout,
    room: Room,
    order: NDArray[np.int64],
    worth: NDArray[Any],
    following: NDArray[np.int64] | None,
    before: Staging | None,
    others: OfOthers | None = None,
) -> Staging:
    """The staging of a rank that delivers `order` (m,). `worth`: (n,) of each sample, NaN the most: its last loss, or
    what several jobs say. `following`: of which the next epoch's order is a part, in this order; None if that is not
    known. `before`: the staging of the epoch before, made by this function with the same layout and room, with the
    order that it was told would follow. `others`: what other jobs hold.

    Where samples are read one by one, a region of the room holds those of most worth over the end of the epoch. Where
    chunks are read, single samples that stay save none, so the room is used as in exact order.
    """
    if layout.n_chunks == layout.n_samples:
        return _stage_region(layout, room, order, worth, before, others)
    known = [] if following is None else [following]
    return stage_exact(layout, room, order, known, before)


def narrowed(before: Staging, following: NDArray[np.int64], order: NDArray[np.int64]) -> Staging:
    """`before`, planned for `following`, where of that only `order` is delivered, in the same order: its windows end at
    other positions then."""
    if before.windows is None:
        return before
    delivered = np.zeros(int(following.max(initial=-1)) + 1, np.bool_)
    delivered[order] = True
    position = np.concatenate([[0], delivered[following].cumsum()])
    m = len(following)
    stop = before.windows.stop
    stop = np.where(stop > m, stop, position[np.minimum(stop, m)])  # beyond: those that stay for good
    return replace(before, windows=replace(before.windows, stop=stop))


def _stage_region(
    layout: Layout,
    room: Room,
    order: NDArray[np.int64],
    worth: NDArray[Any],
    before: Staging | None,
    others: OfOthers | None,
) -> Staging:
    """Each read brings one sample. Those of the region stay; others of the epoch before leave once they were used, and
    give their room to those of the region that come, or stay where none comes; nothing leaves before its use. What
    other jobs hold is not for the region, and if they have it by now it is not read."""
    pages, m = room.pages(layout), len(order)
    largest = np.sort(pages)[::-1].cumsum()
    passing = min(room.lead + 1, int((largest <= room.n_pages).sum()))  # samples on their way, whichever they are
    room = replace(room, lead=passing - 1)
    region_pages = room.n_pages - int(largest[passing - 1])
    most = np.argsort(worth, kind="stable")[::-1]
    if others is not None:
        most = most[~others.held[most]]
    in_region = np.zeros(layout.n_samples, np.bool_)
    in_region[most[pages[most].cumsum() <= region_pages]] = True

    last = np.full(layout.n_samples, -1)
    last[order] = np.arange(m)  # of several the last one counts
    kept = np.zeros(0, np.int64) if before is None else before.stay_sample[before.kept]
    kept_until = np.where(in_region[kept], m, last[kept])
    stay_of = np.full(layout.n_samples, -1)
    stay_of[kept] = np.arange(len(kept))

    freed = np.zeros(m + 1, np.int64)
    leaves = (kept_until >= 0) & (kept_until < m)
    np.add.at(freed, kept_until[leaves], pages[kept[leaves]])
    room_at = region_pages - int(pages[kept[kept_until >= 0]].sum()) + freed.cumsum()
    taken = 0
    admitted = np.full(layout.n_samples, m)
    """Where a sample came to stay."""
    for position in np.flatnonzero(in_region[order] & (stay_of[order] < 0)).tolist():
        sample = order[position]
        if admitted[sample] == m and taken + pages[sample] <= room_at[position]:
            admitted[sample] = position
            taken += pages[sample]

    leaving = np.flatnonzero(kept_until < m)
    leaving = leaving[np.argsort(kept_until[leaving])][::-1]
    came = np.bincount(admitted, pages, m + 1).astype(np.int64)
    came[m] = 0  # those that did not come
    left, least, after = room_at - came.cumsum(), region_pages, m + 1
    for stay, position in zip(leaving.tolist(), np.maximum(kept_until[leaving], 0).tolist(), strict=True):
        least = min(least, int(left[position:after].min(initial=least)))
        after = position
        if pages[kept[stay]] <= least:  # nobody came in its place
            kept_until[stay] = m
            least -= int(pages[kept[stay]])

    at = np.arange(m)
    given = np.zeros(m, np.bool_) if others is None else others.there[order] & (stay_of[order] < 0)
    reads = np.flatnonzero((stay_of[order] < 0) & (at <= admitted[order]) & ~given)
    stay_at = stay_of[order]
    stay_at[reads] = len(kept) + np.arange(len(reads))
    stay_at[given] = DIRECT
    again = np.flatnonzero((stay_at < 0) & ~given)
    stay_at[again] = stay_at[admitted[order[again]]]
    brought = order[reads]
    return Staging(
        room,
        order,
        layout.chunk_of[brought].astype(np.int64),
        reads,
        np.concatenate([kept, brought]),
        np.concatenate([np.full(len(kept), BEFORE), np.arange(len(reads))]),
        np.concatenate([kept_until, np.where(admitted[brought] == reads, m, reads)]),
        stay_at,
    )
