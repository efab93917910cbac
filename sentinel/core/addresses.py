"""The laws of a Plan about addresses: where segments, blocks and slots lie. Each raises PlanError, naming its rule.

6 isolation, 9 coverage, 10 sharing, 11 birth. `laws.check` calls them in an order that each may rely on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import PlanError
from sentinel.core.plan import Plan, ring_sum
from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES

_MOST_AREA = 1 << 62
"""Bytes times layers of a plan stay below this, so that sums of them fit in 64 bits."""
_MOST_TENSORS = 1 << 31


def check_segments(plan: Plan) -> None:
    """Segments are whole pages, each born in a tier that is there, and no two share a page."""
    if plan.extent_bytes * plan.n_layers >= _MOST_AREA:
        raise PlanError(f"a plan of {plan.extent_bytes} bytes and {plan.n_layers} layers is larger than any machine")
    end, before = 0, -1
    for index, segment in sorted(enumerate(plan.segments), key=lambda pair: pair[1].offset):
        if segment.nbytes <= 0 or segment.nbytes % PAGE_BYTES or segment.offset % PAGE_BYTES or segment.offset < 0:
            raise PlanError(f"segment {index} is not whole pages")
        if not 0 <= segment.tier < len(plan.tier_names):
            raise PlanError(f"segment {index} is born in a tier that is not there")
        if segment.offset < end:
            raise PlanError(f"segments {before} and {index} share pages")
        end, before = segment.offset + segment.nbytes, index


def check_birth(plan: Plan) -> None:
    """All pages of a block are born in the block's tier, so that the plan knows where its bytes are."""
    segments = sorted(plan.segments, key=lambda segment: segment.offset)
    offset, nbytes, tier = _columns(3, ((s.offset, s.nbytes, s.tier) for s in segments))
    begin, room, wanted = _columns(3, ((b.offset, b.nbytes, b.tier) for b in plan.blocks))
    # neighbours of one tier are one range
    new = np.ones(len(segments), bool)
    new[1:] = (offset[1:] != offset[:-1] + nbytes[:-1]) | (tier[1:] != tier[:-1])
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(segments)) - 1
    at = np.searchsorted(offset[first], begin, side="right") - 1
    inside = at >= 0
    at = np.maximum(at, 0)
    if len(first):
        inside &= (begin + room <= (offset + nbytes)[last][at]) & (tier[first][at] == wanted)
    if not inside.all():
        raise PlanError("birth: not all its pages are born in its tier", block=int(np.argmin(inside)))


def check_isolation(plan: Plan) -> None:
    """No two blocks alive in the same layer share a page."""
    offset, nbytes, start, stop = _columns(4, ((b.offset, b.nbytes, b.start, b.stop) for b in plan.blocks))
    clash = first_clash(offset, nbytes, start, stop, plan.n_layers)
    if clash is not None:
        block, other, layer = clash
        raise PlanError(f"isolation: shares pages with block {other}", block=block, layer=layer)


def check_slots(plan: Plan) -> None:
    """Each tensor has one slot, each slot answers to one key or name, and blocks name tensors that have one."""
    keys: set[object] = set()
    tensors: set[int] = set()
    extent_bytes = plan.extent_bytes  # walks all segments: once, not per slot
    for slot in plan.slots:
        told_by: object = slot.key if slot.key is not None else slot.name
        if told_by in keys:
            raise PlanError(f"two slots answer to {told_by!r}")
        if slot.tensor in tensors or not 0 <= slot.tensor < _MOST_TENSORS:
            raise PlanError(f"slot {told_by!r} is of tensor {slot.tensor}, which has another slot or cannot be")
        keys.add(told_by)
        tensors.add(slot.tensor)
        if slot.offset < 0 or slot.nbytes <= 0 or slot.offset + slot.nbytes > extent_bytes:
            raise PlanError(f"slot {told_by!r} lies outside the arena")
        if slot.key is not None and not 0 <= slot.key[0] < plan.n_layers:
            raise PlanError(f"slot {told_by!r} is of a layer that is not there")
    for index, block in enumerate(plan.blocks):
        if len(set(block.tensors)) != len(block.tensors):
            raise PlanError("a block names a tensor twice", block=index)
        for tensor in block.tensors:
            if tensor not in tensors:
                raise PlanError(f"a block names tensor {tensor}, which has no slot", block=index)


def check_profile(plan: Plan, profile: Profile) -> None:
    """All managed tensors of `profile` have slots, each with room for its tensor; no slot is of a tensor it has not."""
    if plan.n_layers != profile.n_layers:
        raise PlanError(f"a plan of {plan.n_layers} layers is not of a profile of {profile.n_layers}")
    rows = profile.tensors
    without = set(np.flatnonzero(rows["managed"]).tolist())
    for slot in plan.slots:
        if slot.tensor >= len(rows):
            raise PlanError(f"a slot is of tensor {slot.tensor}, which the profile does not have")
        if slot.tensor not in without:
            continue  # not managed: a slot does no harm
        without.remove(slot.tensor)
        row, name = rows[slot.tensor], profile.names[slot.tensor]
        key = None if row["persistent"] else (int(row["key_layer"]), int(row["key_ordinal"]))
        if slot.key != key or (key is None and slot.name != name):
            raise PlanError(f"the slot of {name} answers to {slot.key or slot.name!r}, not to {key or name!r}")
        if slot.nbytes < row["nbytes"]:
            raise PlanError(f"the slot of {name} has {slot.nbytes} bytes, the tensor {row['nbytes']}")
    if without:
        raise PlanError(f"coverage: {profile.names[min(without)]} has no slot")


def check_coverage(plan: Plan, profile: Profile | None) -> None:
    """Blocks that name a tensor hold all bytes of its slot through its whole life.

    Without a profile a transient is known to live in the layer of its birth only. Relies on isolation: blocks
    alive together are disjoint, so a slot is covered if what they hold of it adds up, bytes times layers, to all of it.
    """
    if not plan.slots:
        return
    slots = sorted(plan.slots, key=lambda slot: slot.tensor)
    tensor, offset, nbytes = _columns(3, ((slot.tensor, slot.offset, slot.nbytes) for slot in slots))
    length = plan.n_layers
    if profile is not None:
        start = profile.tensors["start"][tensor].astype(np.int64)
        width = profile.tensors["stop"][tensor] - start
    else:
        start, width = _columns(2, ((0, length) if slot.key is None else (slot.key[0], 1) for slot in slots))
    begin, room, born, dead = _columns(4, ((b.offset, b.nbytes, b.start, b.stop) for b in plan.blocks))
    block = np.repeat(np.arange(len(plan.blocks)), [len(block.tensors) for block in plan.blocks])
    named = np.fromiter((t for b in plan.blocks for t in b.tensors), np.int64, len(block))
    slot = np.searchsorted(tensor, named)
    low = np.maximum(begin[block], offset[slot])
    high = np.minimum((begin + room)[block], (offset + nbytes)[slot])
    held = np.maximum(high - low, 0)
    covered = np.zeros(len(slots), np.int64)
    for turn in (-length, 0, length):
        first = np.maximum(born[block], start[slot] + turn)
        after = np.minimum(dead[block], (start + width)[slot] + turn)
        np.add.at(covered, slot, held * np.maximum(after - first, 0))
    short = covered < nbytes * width
    if not short.any():
        return
    missing = int(np.argmax(short))
    mine = block[slot == missing]
    by_layer = ring_sum(mine * 0, born[mine], dead[mine], held[slot == missing], 1, length)[0]
    life = (int(start[missing]) + np.arange(int(width[missing]))) % length
    layer = int(life[np.argmax(by_layer[life] < nbytes[missing])])
    whose = slots[missing].key or slots[missing].name
    raise PlanError(
        f"coverage: blocks hold {by_layer[layer]} of the {nbytes[missing]} bytes of slot {whose!r}", layer=layer
    )


def check_sharing(plan: Plan, profile: Profile | None) -> None:
    """Tensors that are alive together share no byte.

    With a profile these are those alive between the same two events. Without one, persistent tensors share with none.
    """
    if not plan.slots:
        return
    slots = sorted(plan.slots, key=lambda slot: slot.offset)
    tensor, offset, nbytes = _columns(3, ((slot.tensor, slot.offset, slot.nbytes) for slot in slots))
    clash: tuple[int, int] | None = None
    if profile is not None:
        rows, circle = profile.tensors[tensor], max(profile.n_events, 1)
        born = np.where(rows["persistent"], 0, rows["born_event"] % circle)
        life = np.where(rows["persistent"], circle, rows["died_event"] - rows["born_event"])
        found = first_clash(offset, nbytes, born, born + life, circle)
        clash = found[:2] if found is not None else None
    else:
        lasting = np.fromiter((slot.key is None for slot in slots), bool, len(slots))
        clash = _first_overlap(offset, offset + nbytes, lasting)
    if clash is not None:
        one, other = (slots[i].key or slots[i].name for i in clash)
        raise PlanError(f"sharing: slots {other!r} and {one!r} share bytes while both are in use")


def _first_overlap(
    low: NDArray[np.int64], high: NDArray[np.int64], lasting: NDArray[np.bool_]
) -> tuple[int, int] | None:
    """Rows (one, other), ascending by `low`, that overlap, one of them `lasting`; None if there are none."""
    for mine, theirs in ((lasting, np.ones_like(lasting)), (np.ones_like(lasting), lasting)):
        reach = np.maximum.accumulate(np.where(theirs, high, 0))[:-1]  # of all rows before
        hit = np.flatnonzero(mine[1:] & (low[1:] < reach))
        if len(hit):
            one = int(hit[0]) + 1
            before = np.where(theirs[:one], high[:one], 0)
            return one, int(np.argmax(before))
    return None


def first_clash(
    offset: NDArray[np.int64],
    nbytes: NDArray[np.int64],
    start: NDArray[np.int64],
    stop: NDArray[np.int64],
    length: int,
) -> tuple[int, int, int] | None:
    """(row, other row, time): the first two that share a byte at one time of a ring of `length`; None if none do.

    Rows are [offset, offset + nbytes) at times [start, stop), `start` in the ring, `stop` unrolled. A sweep over
    births and deaths: what is alive is kept by address, where overlap shows between neighbours. So many rows that
    take turns at the same addresses cost no more than any other.
    """
    wraps = np.flatnonzero(stop > length)
    row = np.concatenate([np.arange(len(offset)), wraps])
    begin = np.concatenate([start, np.zeros(len(wraps), np.int64)])
    end = np.concatenate([np.minimum(stop, length), stop[wraps] - length])
    time, who = np.concatenate([begin, end]), np.concatenate([row, row])
    birth = np.arange(len(who)) < len(row)
    order = np.lexsort((offset[who], birth, time))  # at one time the dead go before any is born
    lows, highs = offset.tolist(), (offset + nbytes).tolist()
    alive: list[tuple[int, int]] = []  # (offset, row), sorted
    for at, born, index in zip(time[order].tolist(), birth[order].tolist(), who[order].tolist(), strict=True):
        if at == length:
            break  # only deaths are left
        place = bisect_left(alive, (lows[index], index))
        if not born:
            del alive[place]
            continue
        for _, other in alive[max(place - 1, 0) : place + 1]:
            if lows[other] < highs[index] and lows[index] < highs[other]:
                return index, other, at
        alive.insert(place, (lows[index], index))
    return None


def _columns(n_columns: int, rows: Iterable[tuple[int, ...]]) -> NDArray[np.int64]:
    """(n_columns, rows), to be unpacked."""
    return np.array(list(rows), np.int64).reshape(-1, n_columns).T
