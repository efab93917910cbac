"""Which tensor a touched page belongs to. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sentinel.core.extents import RANGE_DTYPE
from sentinel.core.lifetimes import Entity
from sentinel.core.page_ranges import cut_pages
from sentinel.core.page_runs import RunIndex, Runs, cut
from sentinel.core.trace import LEAST_GRANULES, SEEN_READ, SEEN_UNKNOWN, SEEN_WRITE, Quality, Trace
from sentinel.core.units import PAGE_BYTES

RANGED_PAGES = 64
"""The pages of a tensor that lives across steps are told apart if it has at least 64."""

TOUCHED_DTYPE = np.dtype(
    [
        ("tensor", "<i8"),
        ("layer", "<i8"),
        ("pages", "<i8"),  # touched
        ("read", "<i8"),  # seen read
        ("written", "<i8"),  # seen written
        ("blind", "|b1"),  # of some it is not known whether they were written
        ("contested", "|b1"),  # on some lived other tensors too
    ]
)


def complete(quality: Quality) -> bool:
    """Whether every touch of a page was seen, so that what was not seen was not touched."""
    return quality.counts == "touched layers" and quality.period == 1 and quality.lost == 0


class Owned(NamedTuple):
    """Runs of one layer, cut where tensors begin and end: of each, the entity that touched it (-1 unknown), its first
    page within that one, and what the counts of Touches say of it."""

    layer: int
    runs: Runs
    owner: NDArray[np.int64]
    within: NDArray[np.int64]
    several: NDArray[np.bool_]
    shared: NDArray[np.bool_]
    unseen: list[int]
    contested: list[int]


@dataclass(frozen=True)
class Touches:
    """Page touches summed up. `rows`: of TOUCHED_DTYPE, by tensor (an entity) and layer. `layers`: (L,) of each layer.

    A page that was touched in a layer faults no more in it, whoever has it next, and what was not touched rests until
    the layer ends: so a touch is the first tenant's (of those that operators used there, if there are). `passed_on`:
    touches of pages whose later tenants were all born and freed in that layer. `shared`: of the other pages with
    several tenants: what one that lives on touched goes unseen, or the first one was used by no operator. `unseen`:
    (entity, layer) of tenants on pages whose touches are another's. `unknown`: touches of pages where no tensor lived.
    """

    rows: NDArray[Any]
    layers: NDArray[np.int64]
    shared: int
    passed_on: int
    unknown: int
    unseen: NDArray[np.int64]

    @property
    def total(self) -> int:
        """Touches of pages, all together."""
        return int(self.layers.sum())


class PageTouches:
    """The page touches of `trace`, and whose they are. `used`: (m, 2) entity and layer seen by operators."""

    def __init__(self, trace: Trace, entities: Sequence[Entity], used: NDArray[np.int64]) -> None:
        self._length, self._n_entities = len(trace.layers), len(entities)
        self._runs = RunIndex(trace.pages, self._length)
        self._tenants = _Tenants(trace, entities, used)

    def owned(self) -> Iterator[Owned]:
        """All of them, some runs at a time, by layer and page."""
        for layer in range(self._length):
            if self._runs.touches[layer]:
                claims = self._tenants.claims(layer)
                for runs in self._runs.chunks(layer):
                    yield _owned(layer, runs, claims)

    def summed(self) -> Touches:
        """Sums by tensor and layer."""
        shared = passed_on = unknown = 0
        found = [np.zeros(0, TOUCHED_DTYPE)]
        unseen: set[tuple[int, int]] = set()
        sums = _Sums(self._n_entities)
        for part in self.owned():
            if part.layer != sums.layer:
                found.append(sums.take())
            sums.add(part)
            npages = part.runs.npages
            unknown += int(npages[part.owner < 0].sum())
            of_shared = int(npages[part.shared].sum())
            shared, passed_on = shared + of_shared, passed_on + int(npages[part.several].sum()) - of_shared
            unseen.update((entity, part.layer) for entity in part.unseen)
        found.append(sums.take())
        rows = np.concatenate(found)
        rows = rows[np.lexsort((rows["layer"], rows["tensor"]))]
        hidden = np.array(sorted(unseen), np.int64).reshape(-1, 2)
        return Touches(rows, self._runs.touches, shared, passed_on, unknown, hidden)

    def ranges(self, touches: Touches, pages_of: NDArray[np.int64], quality: Quality) -> NDArray[Any]:
        """The ranges of tensors whose pages are not all alike, by layer; dtype RANGE_DTYPE.

        `pages_of`: (n,) of each entity whose parts are to be told apart, 0 of the others. One that is touched evenly
        has no rows.
        """
        rows = touches.rows[pages_of[touches.rows["tensor"]] >= RANGED_PAGES]
        found = [np.zeros(0, RANGE_DTYPE)]
        together = max(quality.granularity_bytes // PAGE_BYTES, 1)
        large = quality.large_granularity_bytes // PAGE_BYTES
        claims = lru_cache(maxsize=4)(self._tenants.claims)
        cuts = np.flatnonzero(np.diff(rows["tensor"])) + 1
        for mine in np.split(rows, cuts) if len(rows) else ():
            entity = int(mine["tensor"][0])
            n_pages = int(pages_of[entity])
            if (mine["pages"] == n_pages).all():  # all of it in each layer
                continue
            layers = [
                (layer, self._of(entity, layer, claims(layer) if contested else None))
                for layer, contested in zip(mine["layer"].tolist(), mine["contested"].tolist(), strict=True)
            ]
            at_once = max(together, large) if n_pages >= LEAST_GRANULES * large else together
            found.append(_ranges_of(entity, layers, n_pages, at_once))
        return np.concatenate(found)

    def _of(self, entity: int, layer: int, claims: NDArray[np.int64] | None) -> Runs:
        """What `entity`, of one member, touched in `layer`, by its pages. `claims`: of that layer, None if nobody else
        was there."""
        first, stop = self._tenants.place(entity)
        runs = self._runs.window(layer, first, stop)
        if claims is None:
            return Runs(runs.page - first, runs.npages, runs.seen)
        part = _owned(layer, runs, claims)
        return part.runs._replace(page=part.within).of(part.owner == entity)


class _Sums:
    """By entity, in one layer."""

    def __init__(self, n_entities: int) -> None:
        self._n = n_entities
        self.layer = -1
        self._clear()

    def _clear(self) -> None:
        self._pages, self._read, self._written, self._blind = (np.zeros(self._n, np.int64) for _ in range(4))
        self._contested = np.zeros(self._n, bool)

    def add(self, part: Owned) -> None:
        self.layer = part.layer
        known = part.owner >= 0
        owner, npages, seen = part.owner[known], part.runs.npages[known], part.runs.seen[known]
        for total, some in (
            (self._pages, npages),
            (self._read, npages * ((seen & SEEN_READ) != 0)),
            (self._written, npages * ((seen & SEEN_WRITE) != 0)),
            (self._blind, npages * ((seen & SEEN_UNKNOWN) != 0)),
        ):
            total += np.bincount(owner, some, self._n).astype(np.int64)
        self._contested[part.contested] = True

    def take(self) -> NDArray[Any]:
        """Rows of TOUCHED_DTYPE, and begin again."""
        tensor = np.flatnonzero(self._pages)
        rows = np.zeros(len(tensor), TOUCHED_DTYPE)
        rows["tensor"], rows["layer"] = tensor, self.layer
        for name, column in (("pages", self._pages), ("read", self._read), ("written", self._written)):
            rows[name] = column[tensor]
        rows["blind"], rows["contested"] = self._blind[tensor] > 0, self._contested[tensor]
        self._clear()
        return rows


_ENTITY, _FIRST, _STOP, _USED, _OUTLIVES = range(5)


class _Tenants:
    """Which pages each tensor has, and when it lives there."""

    def __init__(self, trace: Trace, entities: Sequence[Entity], used: NDArray[np.int64]) -> None:
        self._length, self._n_entities = len(trace.layers), len(entities)
        rows = [
            (
                index,
                tensor.address // PAGE_BYTES,
                -(-(tensor.address + tensor.nbytes) // PAGE_BYTES),
                entity.start,
                entity.stop,
                entity.born,
            )
            for index, entity in enumerate(entities)
            for member in entity.members
            if (tensor := trace.tensors[member]).address
        ]
        columns = np.array(rows, np.int64).reshape(len(rows), 6).T
        self._entity, self._first, self._stop, self._start, self._end, self._born = columns
        used = used[np.argsort(used[:, 1], kind="stable")]
        self._used, self._bounds = used[:, 0], np.searchsorted(used[:, 1], np.arange(self._length + 1))

    def place(self, entity: int) -> tuple[int, int]:
        """First and stop page of `entity`, of its first member."""
        at = int(np.searchsorted(self._entity, entity))
        return int(self._first[at]), int(self._stop[at])

    def claims(self, layer: int) -> NDArray[np.int64]:
        """(k, 5) of every tensor that lives in `layer`, the last to come there first: its entity, its first and stop
        page, whether operators used it in the layer, and whether it outlives it."""
        lives = (layer - self._start) % self._length < self._end - self._start
        entity = self._entity[lives]
        came = np.where(self._start[lives] % self._length == layer, self._born[lives], -1)
        used = np.zeros(self._n_entities, bool)
        used[self._used[self._bounds[layer] : self._bounds[layer + 1]]] = True
        outlives = (self._end - self._start)[lives] > 1
        order = np.lexsort((-entity, -came))
        columns = (entity, self._first[lives], self._stop[lives], used[entity], outlives)
        return np.stack([column.astype(np.int64) for column in columns], axis=1)[order]


def _owned(layer: int, runs: Runs, claims: NDArray[np.int64]) -> Owned:
    """`runs` of `layer`, cut where one of `claims` begins or ends, and whose they are. See Touches."""
    if len(runs.page):
        claims = claims[(claims[:, _FIRST] < runs.stop[-1]) & (claims[:, _STOP] > runs.page[0])]
    runs, _ = cut(runs, np.unique(claims[:, [_FIRST, _STOP]]))
    count = len(runs.page)
    owner, within = np.full(count, -1, np.int64), np.zeros(count, np.int64)
    low, high = np.searchsorted(runs.page, claims[:, _FIRST]), np.searchsorted(runs.page, claims[:, _STOP])
    some = high > low
    claims, low, high = claims[some], low[some], high[some]
    opened, closed = (np.bincount(ends, minlength=count + 1)[:count] for ends in (low, high))
    several = np.cumsum(opened - closed) > 1
    upto = np.append(0, several.cumsum())
    is_contested = upto[high] > upto[low]
    contested = []
    for at, (begin, end, claim) in enumerate(zip(low.tolist(), high.tolist(), claims.tolist(), strict=True)):
        here = slice(begin, end)
        owner[here], within[here] = claim[_ENTITY], runs.page[here] - claim[_FIRST]
        if is_contested[at]:
            contested.append((here, claim))
    shared = _settle(contested, runs.page, owner, within)
    unseen = [claim[_ENTITY] for here, claim in contested if (owner[here] != claim[_ENTITY]).any()]
    return Owned(layer, runs, owner, within, several, shared, unseen, [claim[_ENTITY] for _, claim in contested])


def _settle(
    contested: Sequence[tuple[slice, list[int]]], pages: NDArray[Any], owner: NDArray[Any], within: NDArray[Any]
) -> NDArray[np.bool_]:
    """Gives runs that operators' tensors claim to the first of these; which runs count as `shared`.

    `contested`: claims with runs that others claim too, the last tenant first; `owner` is each run's first one.
    """
    named, lasts, shared = (np.zeros(len(owner), bool) for _ in range(3))
    for here, claim in contested:
        is_used = bool(claim[_USED])
        shared[here] |= lasts[here] | (named[here] & (not is_used))
        lasts[here] |= bool(claim[_OUTLIVES])
        if is_used:
            owner[here], within[here] = claim[_ENTITY], pages[here] - claim[_FIRST]
        named[here] |= is_used
    return shared


def _ranges_of(entity: int, layers: Sequence[tuple[int, Runs]], n_pages: int, together: int) -> NDArray[Any]:
    """Of one tensor, whose runs are by its own pages."""
    columns = [np.concatenate([getattr(runs, name) for _, runs in layers]) for name in ("page", "npages")]
    layer = np.repeat([layer for layer, _ in layers], [len(runs.page) for _, runs in layers])
    cuts = cut_pages(columns[0], layer, n_pages, together, npages=columns[1])
    if len(cuts) == 2:
        return np.zeros(0, RANGE_DTYPE)
    return np.concatenate([_by_range(entity, layer, runs, cuts) for layer, runs in layers])


def _by_range(entity: int, layer: int, runs: Runs, cuts: NDArray[np.int64]) -> NDArray[Any]:
    """The ranges between `cuts` that were touched in `layer`; dtype RANGE_DTYPE."""
    runs, _ = cut(runs, cuts[1:-1])
    place = np.searchsorted(cuts[1:-1], runs.page, "right")
    count = len(cuts) - 1
    touched, written, blind = (
        np.bincount(place, runs.npages * some, count).astype(np.int64)
        for some in (1, (runs.seen & SEEN_WRITE) != 0, (runs.seen & SEEN_UNKNOWN) != 0)
    )
    there = np.flatnonzero(touched)
    out = np.zeros(len(there), RANGE_DTYPE)
    out["tensor"], out["layer"] = entity, layer
    out["first_page"], out["stop_page"] = cuts[there], cuts[there + 1]
    out["pages_touched"] = touched[there]
    out["pages_written"] = np.where(blind > 0, -1, written)[there]
    return out
