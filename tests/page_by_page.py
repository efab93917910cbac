"""Attribution page by page, as slow as it is plain: the oracle of that by runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core import attribution
from sentinel.core.extents import RANGE_DTYPE, cut_extents
from sentinel.core.lifetimes import Circle, Entity, entities
from sentinel.core.page_ranges import _MOST_BINS, LEAST_PAGES, _grow
from sentinel.core.page_runs import pages_of_runs
from sentinel.core.page_touches import RANGED_PAGES, complete
from sentinel.core.profile import ACCESS_DTYPE, Profile
from sentinel.core.trace import LEAST_GRANULES, PAGE_RUN_DTYPE, Quality, Trace
from sentinel.core.units import PAGE_BYTES


def attribute(trace: Trace) -> Profile:
    """The profile of `trace`, which has page touches: all else of it is as without them."""
    without = replace(trace, pages=np.zeros(0, PAGE_RUN_DTYPE))
    plain = attribution.attribute(without)
    circle = Circle.of(trace)
    found = entities(trace, circle)
    used = set(zip(plain.accesses["extent"].tolist(), plain.accesses["layer"].tolist(), strict=True))
    rows, touches = attribute_pages(trace, found, used)
    watched = np.array([all(trace.tensors[member].managed for member in entity.members) for entity in found], bool)
    accesses = _with_pages(plain.accesses, rows, touches, plain.tensors, watched, circle.length)
    own = plain.tensors["persistent"] & plain.tensors["managed"]
    if complete(trace.quality):
        attribution._bound_by_pages(accesses, own[accesses["extent"]])
    pages_of = np.where(own, -(-plain.tensors["nbytes"] // PAGE_BYTES), 0)
    by_layer = np.bincount(rows["layer"], minlength=circle.length)
    layer_ns = attribution._plain_ns(trace, by_layer)
    whole = replace(
        plain,
        accesses=accesses,
        notes=(*plain.notes, *_page_notes(len(rows), touches)),
        layer_ns=layer_ns,
        step_ns_plain=int(layer_ns.sum()),
    )
    return cut_extents(whole, ranges(rows, touches, pages_of, trace.quality))


@dataclass(frozen=True)
class Touches:
    """`owner`: of each row of `trace.pages`, the entity, -1 unknown. `page`: its page within the tensor.

    A page that was touched in a layer faults no more in it, whoever has it next, and what was not touched rests until
    the layer ends: so a touch is the first tenant's (of those that operators used there, if there are). `passed_on`:
    rows whose later tenants were all born and freed in that layer. `shared`: the other rows with several tenants: what
    one that lives on touched goes unseen, or the first one was used by no operator. `unseen`: (entity, layer) of
    tenants on pages whose touches are another's.
    """

    owner: NDArray[np.int64]
    page: NDArray[np.int64]
    shared: int
    passed_on: int
    unseen: NDArray[np.int64]

    @property
    def unknown(self) -> int:
        """Touches of pages where no tensor lived."""
        return int((self.owner < 0).sum())


def attribute_pages(
    trace: Trace, entities: Sequence[Entity], used: set[tuple[int, int]]
) -> tuple[NDArray[Any], Touches]:
    """The rows of `trace.pages` by (layer, page), and whose they are. `used`: (entity, layer) seen by operators."""
    rows = pages_of_runs(trace.pages)
    claims = _claims(trace, entities, used)
    none = np.zeros((0, 2), np.int64)
    owner, page = np.full(len(rows), -1, np.int64), np.zeros(len(rows), np.int64)
    if not len(rows) or not len(claims):
        return rows, Touches(owner, page, 0, 0, none)
    span = np.int64(max(int(rows["page"].max()), int(claims[:, _STOP].max())) + 2)
    keys = rows["layer"] * span + rows["page"]
    low = np.searchsorted(keys, claims[:, _LAYER] * span + claims[:, _FIRST])
    high = np.searchsorted(keys, claims[:, _LAYER] * span + claims[:, _STOP])
    spans = [(slice(int(low[at]), int(high[at])), claims[at].tolist()) for at in np.flatnonzero(high > low)]
    opened, closed = (np.bincount(ends, minlength=len(rows) + 1)[: len(rows)] for ends in (low, high))
    several = np.cumsum(opened - closed) > 1
    for here, claim in spans:
        owner[here], page[here] = claim[_ENTITY], rows["page"][here] - claim[_FIRST]
    contested = [(here, claim) for here, claim in spans if several[here].any()]
    shared = _settle(contested, rows["page"], owner, page)
    unseen = [(claim[_ENTITY], claim[_LAYER]) for here, claim in contested if (owner[here] != claim[_ENTITY]).any()]
    passed_on = int(several.sum()) - shared
    return rows, Touches(owner, page, shared, passed_on, np.array(unseen, np.int64).reshape(-1, 2))


def _settle(
    contested: Sequence[tuple[slice, list[int]]], pages: NDArray[Any], owner: NDArray[Any], page: NDArray[Any]
) -> int:
    """Gives rows that operators' tensors claim to the first of these; how many rows count as `shared`.

    `contested`: claims with rows that others claim too, the last tenant first; `owner` is each row's first one.
    """
    named, lasts, shared = (np.zeros(len(owner), bool) for _ in range(3))
    for here, claim in contested:
        is_used = bool(claim[_USED])
        shared[here] |= lasts[here] | (named[here] & (not is_used))
        lasts[here] |= bool(claim[_OUTLIVES])
        if is_used:
            owner[here], page[here] = claim[_ENTITY], pages[here] - claim[_FIRST]
        named[here] |= is_used
    return int(shared.sum())


_ENTITY, _LAYER, _FIRST, _STOP, _USED, _OUTLIVES = range(6)


def _claims(trace: Trace, entities: Sequence[Entity], used: set[tuple[int, int]]) -> NDArray[np.int64]:
    """(k, 6) of every tensor in every layer of its life, the last to come there first: its entity, the layer, its
    first and stop page, whether operators used it in the layer, and whether it outlives it."""
    length = len(trace.layers)
    claims: list[tuple[int, int, int, int, int, bool, bool]] = []
    for index, entity in enumerate(entities):
        outlives = entity.stop - entity.start > 1
        for member in entity.members:
            tensor = trace.tensors[member]
            if tensor.address:
                first, stop = tensor.address // PAGE_BYTES, -(-(tensor.address + tensor.nbytes) // PAGE_BYTES)
                for layer in range(entity.start, entity.stop):
                    came, at = entity.born if layer == entity.start else -1, layer % length
                    claims.append((came, index, at, first, stop, (index, at) in used, outlives))
    claims.sort(key=lambda claim: claim[:2], reverse=True)
    return np.array([claim[1:] for claim in claims], np.int64).reshape(len(claims), 6)


def ranges(rows: NDArray[Any], touches: Touches, pages_of: NDArray[np.int64], quality: Quality) -> NDArray[Any]:
    """The ranges of tensors whose pages are not all alike, by layer; dtype RANGE_DTYPE.

    `pages_of`: (n,) of each entity whose parts are to be told apart, 0 of the others. One that is touched evenly
    has no rows.
    """
    mine = (touches.owner >= 0) & (pages_of[touches.owner] >= RANGED_PAGES)
    rows, owner, page = rows[mine], touches.owner[mine], touches.page[mine]
    order = np.lexsort((page, rows["layer"], owner))
    rows, owner, page = rows[order], owner[order], page[order]
    found = [np.zeros(0, RANGE_DTYPE)]
    together = max(quality.granularity_bytes // PAGE_BYTES, 1)
    large = quality.large_granularity_bytes // PAGE_BYTES
    for entity in np.unique(owner).tolist():
        low, high = np.searchsorted(owner, [entity, entity + 1])
        n_pages = int(pages_of[entity])
        at_once = max(together, large) if n_pages >= LEAST_GRANULES * large else together
        found.append(_ranges_of(entity, rows[low:high], page[low:high], n_pages, at_once))
    return np.concatenate(found)


def _ranges_of(entity: int, rows: NDArray[Any], page: NDArray[np.int64], n_pages: int, together: int) -> NDArray[Any]:
    """Of one tensor; its touches by layer and page."""
    n_layers = int((np.diff(rows["layer"]) != 0).sum()) + 1
    if len(page) == n_layers * n_pages:  # all of it in each layer
        return np.zeros(0, RANGE_DTYPE)
    cuts = cut_pages(page, rows["layer"].astype(np.int64), n_pages, together)
    if len(cuts) == 2:
        return np.zeros(0, RANGE_DTYPE)
    place_in = np.searchsorted(cuts, page, "right") - 1
    key, place = np.unique(rows["layer"].astype(np.int64) * len(cuts) + place_in, return_inverse=True)
    out = np.zeros(len(key), RANGE_DTYPE)
    out["tensor"], out["layer"] = entity, key // len(cuts)
    out["first_page"], out["stop_page"] = cuts[key % len(cuts)], cuts[key % len(cuts) + 1]
    out["pages_touched"] = np.bincount(place, minlength=len(key))
    written = np.bincount(place, rows["writes"] > 0, len(key)).astype(np.int64)
    blind = np.bincount(place, rows["writes"] < 0, len(key)) > 0
    out["pages_written"] = np.where(blind, -1, written)
    return out


def cut_pages(page: NDArray[np.int64], layer: NDArray[np.int64], n_pages: int, together: int = 1) -> NDArray[np.int64]:
    """(ranges + 1,) page indexes, from 0 to `n_pages`, at which ranges of like density begin and end.

    `page`, `layer`: (touches,) of each touch of a page of the tensor in a layer, no pair twice. `together`: pages that
    the tracker sees as one; they are one observation.
    """
    width = LEAST_PAGES * max(-(-n_pages // (LEAST_PAGES * _MOST_BINS)), 1)
    n_bins = max(n_pages // width, 1)  # the last one is wider: no range is smaller than `width`
    ends = np.append(np.arange(n_bins) * width, n_pages)
    bins = [np.minimum(pages // width, n_bins - 1) for pages in _patterns(page, layer)]
    touched = np.array([np.append(0, np.bincount(of, minlength=n_bins)) for of in bins]).reshape(-1, n_bins + 1)
    cuts = _grow(touched.cumsum(axis=1) / together, ends / together)
    return ends[cuts].astype(np.int64)


def _patterns(page: NDArray[np.int64], layer: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The pages touched in each layer. Layers that touch the same pages (a lookup, and the update of what was looked
    up) are one observation, not several: counted twice, chance would look like structure."""
    order = np.lexsort((page, layer))
    page, layer = page[order], layer[order]
    of_layers = np.split(page, np.flatnonzero(np.diff(layer)) + 1)
    return list({pages.tobytes(): pages for pages in of_layers}.values())


def _with_pages(
    accesses: NDArray[Any],
    rows: NDArray[Any],
    touches: Touches,
    tensors: NDArray[Any],
    watched: NDArray[np.bool_],
    length: int,
) -> NDArray[Any]:
    """`accesses` with the pages touched; what only the page tracker saw gets rows of its own."""
    known = touches.owner >= 0
    rows, owner = rows[known], touches.owner[known]
    key, inverse = np.unique(owner * length + rows["layer"], return_inverse=True)
    touched = np.bincount(inverse, minlength=len(key))
    written, read = (np.bincount(inverse, rows[c] > 0, len(key)).astype(np.int64) for c in ("writes", "reads"))
    blind = np.bincount(inverse, rows["writes"] < 0, minlength=len(key)) > 0
    present = accesses["extent"].astype(np.int64) * length + accesses["layer"]
    fresh = ~np.isin(key, present)
    more = np.zeros(int(fresh.sum()), ACCESS_DTYPE)
    more["extent"], more["layer"] = key[fresh] // length, key[fresh] % length
    more["reads"] = more["writes"] = -1
    nbytes = tensors["nbytes"][more["extent"]]
    more["touched_bytes"] = np.minimum(touched[fresh] * PAGE_BYTES, nbytes)
    seen_read = np.where(blind, touched, read)[fresh]
    more["read_bytes"] = np.minimum(seen_read * PAGE_BYTES, nbytes)
    more["written_bytes"] = np.minimum(np.where(blind, 0, written)[fresh] * PAGE_BYTES, nbytes)
    merged = np.concatenate([accesses, more])
    merged = merged[np.lexsort((merged["layer"], merged["extent"]))]
    at = np.searchsorted(merged["extent"].astype(np.int64) * length + merged["layer"], key)
    # In a layer that a tracker watched, a tensor without a touched page was touched in none.
    merged["pages_touched"] = merged["pages_written"] = 0
    merged["pages_touched"][at] = touched
    merged["pages_written"][at] = np.where(blind, -1, written)
    # None of its own does not say that it touched none, where nobody watched or its pages had been touched before.
    hidden = ~watched[merged["extent"]]
    hidden |= np.isin(merged["extent"].astype(np.int64) * length + merged["layer"], touches.unseen @ [length, 1])
    hidden &= merged["pages_touched"] == 0
    merged["pages_touched"][hidden] = merged["pages_written"][hidden] = -1
    return merged


def _page_notes(total: int, touches: Touches) -> list[str]:
    notes = []
    if touches.unknown:
        notes.append(f"{touches.unknown} of {total} page touches belong to no known tensor")
    if touches.shared:
        notes.append(
            f"{touches.shared} of {total} page touches could be of several tensors that shared a page in that layer"
        )
    if touches.passed_on:
        notes.append(
            f"{touches.passed_on} of {total} page touches were of pages that went on to tensors born and freed in that"
            " layer: which pages these touched is not known"
        )
    return notes
