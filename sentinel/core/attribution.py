"""Trace -> Profile: each tensor's lifetime on the circle of the step, and its accesses by layer. Pure.

A recorded step is cut out of an endless row of equal ones, so its ends are joined: what is still alive at
the end and was born in the step dies where its like, born a step earlier, died in this one (gradients: at
zero_grad); without such a like it lives a whole period. What was alive before and after is persistent.

Layer 0 is the stretch after the ring's last tick and the one before its first; a recording may begin
anywhere in the ring. Positions on the circle count births, from the start of layer 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.extents import RANGE_DTYPE, cut_extents
from sentinel.core.lifetimes import Circle, Entity, entities
from sentinel.core.page_touches import PageTouches, Touches, complete
from sentinel.core.plan import ring_sum
from sentinel.core.profile import ACCESS_DTYPE, TENSOR_DTYPE, Profile
from sentinel.core.rules import holding
from sentinel.core.trace import OP, READ, ROLES, WRITE, Trace
from sentinel.core.units import PAGE_BYTES

_PAGE_WEIGHT = 7
"""Observing a page touch takes about as long as recording 7 operators."""
_LEAST_SHARE = 0.05
"""Of a layer's time that is left, whatever the tracker is thought to have taken."""


def attribute(trace: Trace, *, step_ns_plain: int | None = None) -> Profile:
    """The digest of one recorded step. `step_ns_plain`: wall time of a step that ran stock, if one was measured.

    Raises UsageError if the trace is not one round of its ring.
    """
    circle = Circle.of(trace)
    found = entities(trace, circle)
    tensors = _tensors(trace, found)
    owner = np.full(len(trace.tensors) + 1, -1, np.int64)  # the last one: of events without a tensor
    for index, entity in enumerate(found):
        owner[list(entity.members)] = index
    accesses, unknown = _accesses(trace, owner, tensors)
    notes = [f"{unknown} operator accesses belong to no known tensor"] if unknown else []
    ranges, page_touches = np.zeros(0, RANGE_DTYPE), np.zeros(len(trace.layers), np.int64)
    if len(trace.pages):
        used = np.stack([accesses["extent"], accesses["layer"]], axis=1).astype(np.int64)
        pages = PageTouches(trace, found, used)
        touches = pages.summed()
        page_touches = touches.layers
        watched = np.array([all(trace.tensors[i].managed for i in e.members) for e in found], bool)
        accesses = _with_pages(accesses, touches, tensors, watched, circle.length)
        own = tensors["persistent"] & tensors["managed"]  # their pages are theirs alone, and the same in each step
        if complete(trace.quality):
            _bound_by_pages(accesses, own[accesses["extent"]])
        ranges = pages.ranges(touches, np.where(own, -(-tensors["nbytes"] // PAGE_BYTES), 0), trace.quality)
        notes += _page_notes(touches)
    layer_ns = _plain_ns(trace, page_touches)
    live, unmanaged = _peaks(tensors, circle.n_events)
    whole = Profile(
        layers=trace.layers,
        layer_ns=layer_ns,
        flops=_flops(trace),
        names=_unique([trace.tensors[e.members[0]].name for e in found]),
        tensors=tensors,
        accesses=accesses,
        n_events=circle.n_events,
        quality=trace.quality,
        unmanaged_peak_bytes=unmanaged,
        live_peak_bytes=live,
        step_ns_profiled=int(trace.layer_ns.sum()),
        step_ns_plain=int(layer_ns.sum()) if step_ns_plain is None else step_ns_plain,
        step_ns_is_measured=step_ns_plain is not None,
        provisional=_state_was_born(trace, found),
        sharing=trace.sharing,
        notes=tuple(notes),
        sources=_sources(trace, found),
    )
    return cut_extents(whole, ranges)


def _sources(trace: Trace, found: Sequence[Entity]) -> tuple[str, ...]:
    lines = tuple(next((trace.tensors[i].source for i in e.members if trace.tensors[i].source), "") for e in found)
    return lines if any(lines) else ()


def _tensors(trace: Trace, found: Sequence[Entity]) -> NDArray[Any]:
    rows = np.zeros(len(found), TENSOR_DTYPE)
    for row, entity in zip(rows, found, strict=True):
        tensor = trace.tensors[entity.members[0]]
        key = None if entity.persistent else tensor.key
        row["role"], row["nbytes"] = ROLES.index(tensor.role), tensor.nbytes
        row["start"], row["stop"], row["persistent"] = entity.start, entity.stop, entity.persistent
        row["managed"] = tensor.managed and (entity.persistent or (entity.plannable and key is not None))
        row["key_layer"], row["key_ordinal"] = key if key is not None and entity.plannable else (-1, -1)
        row["born_event"], row["died_event"] = entity.born, entity.died
    return rows


def _accesses(trace: Trace, owner: NDArray[np.int64], tensors: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """One row a tensor and layer, and how many accesses were of no known tensor."""
    kinds = trace.events["kind"]
    events = trace.events[(kinds == READ) | (kinds == WRITE)]
    whose = owner[events["tensor"]]
    unknown = int((whose < 0).sum())
    events, whose = events[whose >= 0], whose[whose >= 0]
    length = len(trace.layers)
    key, inverse = np.unique(whose * length + events["layer"], return_inverse=True)
    rows = np.zeros(len(key), ACCESS_DTYPE)
    rows["extent"], rows["layer"] = key // length, key % length
    rows["pages_touched"] = rows["pages_written"] = -1
    for kind, count, nbytes in ((READ, "reads", "read_bytes"), (WRITE, "writes", "written_bytes")):
        of_kind = events["kind"] == kind
        np.add.at(rows[count], inverse[of_kind], 1)
        np.add.at(rows[nbytes], inverse[of_kind], events["nbytes"][of_kind])
    distinct = _union_bytes(inverse, events["offset"], events["nbytes"], len(key))
    whole: NDArray[np.int64] = tensors["nbytes"][rows["extent"]]
    rows["touched_bytes"] = np.minimum(distinct, whole)
    return rows, unknown


def _union_bytes(group: NDArray[Any], offset: NDArray[Any], nbytes: NDArray[Any], groups: int) -> NDArray[np.int64]:
    """(groups,) bytes in the union of the ranges [offset, offset + nbytes) of each group."""
    total = np.zeros(groups, np.int64)
    if not len(group):
        return total
    apart = np.int64(int((offset + nbytes).max()) + 1)
    begin = group * apart + offset
    order = np.argsort(begin, kind="stable")
    begin, end, group = begin[order], (begin + nbytes)[order], group[order]
    reached = np.concatenate([[np.int64(0)], np.maximum.accumulate(end)[:-1]])
    np.add.at(total, group, np.maximum(end - np.maximum(begin, reached), 0))
    return total


def _with_pages(
    accesses: NDArray[Any], touches: Touches, tensors: NDArray[Any], watched: NDArray[np.bool_], length: int
) -> NDArray[Any]:
    """`accesses` with the pages touched; what only the page tracker saw gets rows of its own.

    `watched`: (n,) of each tensor, whether it lies in memory that page trackers watch.
    """
    rows = touches.rows
    key = rows["tensor"] * length + rows["layer"]
    touched, written, blind = rows["pages"], rows["written"], rows["blind"]
    present = accesses["extent"].astype(np.int64) * length + accesses["layer"]
    fresh = ~np.isin(key, present)
    more = np.zeros(int(fresh.sum()), ACCESS_DTYPE)
    more["extent"], more["layer"] = key[fresh] // length, key[fresh] % length
    more["reads"] = more["writes"] = -1
    nbytes = tensors["nbytes"][more["extent"]]
    more["touched_bytes"] = np.minimum(touched[fresh] * PAGE_BYTES, nbytes)
    seen_read = np.where(blind, touched, rows["read"])[fresh]
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


def _bound_by_pages(accesses: NDArray[Any], own: NDArray[np.bool_]) -> None:
    """An operator that spans a whole table has touched no more of it than the pages that were: in place.

    `own`: rows of tensors that share no page with another. Each operator is charged with all pages of the layer.
    """
    seen = own & (accesses["pages_touched"] > 0)
    touched = accesses["pages_touched"].astype(np.int64) * PAGE_BYTES
    written = np.where(accesses["pages_written"] < 0, touched, accesses["pages_written"].astype(np.int64) * PAGE_BYTES)
    for column, most in (
        ("touched_bytes", touched),
        ("read_bytes", touched * np.maximum(accesses["reads"], 1)),
        ("written_bytes", written * np.maximum(accesses["writes"], 1)),
    ):
        accesses[column][seen] = np.minimum(accesses[column], most)[seen]


def _page_notes(touches: Touches) -> list[str]:
    of = f"of {touches.total} page touches"
    return holding(
        (touches.unknown, f"{touches.unknown} {of} belong to no known tensor"),
        (
            touches.shared,
            f"{touches.shared} {of} could be of several tensors that shared a page in that layer",
        ),
        (
            touches.passed_on,
            (
                f"{touches.passed_on} {of} were of pages that went on to tensors born and freed in that layer: which"
                " pages these touched is not known"
            ),
        ),
    )


def _plain_ns(trace: Trace, page_touches: NDArray[np.int64]) -> NDArray[np.int64]:
    """(L,) time of each layer less the tracker's own: as it told for each, else spread by what it saw in each."""
    length = len(trace.layers)
    if len(trace.quality.layer_overhead_ns) == length:
        return _left(trace.layer_ns, np.array(trace.quality.layer_overhead_ns, np.float64))
    weight = np.bincount(trace.events["layer"][trace.events["kind"] == OP], minlength=length).astype(np.float64)
    weight += _PAGE_WEIGHT * page_touches
    if not weight.any():
        weight[:] = trace.layer_ns
    return _left(trace.layer_ns, trace.quality.overhead_ns * weight / max(float(weight.sum()), 1.0))


def _left(layer_ns: NDArray[np.int64], taken: NDArray[np.float64]) -> NDArray[np.int64]:
    left: NDArray[np.int64] = np.maximum(layer_ns - taken, layer_ns * _LEAST_SHARE).astype(np.int64)
    return left


def _flops(trace: Trace) -> NDArray[np.int64]:
    """(L,) floating-point operations, -1 where none is known."""
    calls = trace.events[trace.events["kind"] == OP]
    known = calls[calls["nbytes"] >= 0]
    total = np.zeros(len(trace.layers), np.int64)
    np.add.at(total, known["layer"], known["nbytes"])
    blind = np.bincount(calls["layer"], minlength=len(total)) > 0
    blind &= np.bincount(known["layer"], minlength=len(total)) == 0
    total[blind if len(calls) else slice(None)] = -1
    return total


def _peaks(tensors: NDArray[Any], n_events: int) -> tuple[int, int]:
    """Most bytes alive at one place of the circle: managed, and not managed."""
    by_owner = ring_sum(
        (~tensors["managed"]).astype(np.int64),
        tensors["born_event"],
        tensors["died_event"],
        tensors["nbytes"],
        2,
        n_events,
    )
    return int(by_owner[0].max()), int(by_owner[1].max())


def _state_was_born(trace: Trace, found: Sequence[Entity]) -> bool:
    return any(
        entity.persistent
        and trace.tensors[entity.members[0]].role == "optimizer"
        and trace.tensors[entity.members[0]].key is not None
        for entity in found
    )


def _unique(names: Sequence[str]) -> tuple[str, ...]:
    used: Counter[str] = Counter()
    found = []
    for name in names:
        used[name] += 1
        found.append(name if used[name] == 1 else f"{name}~{used[name]}")
    return tuple(found)
