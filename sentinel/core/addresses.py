"""The laws of a Plan about addresses: where segments, blocks and slots lie. Each raises PlanError, naming its rule.

6 isolation, 9 coverage, 10 sharing, 11 birth. `laws.check` calls them in an order that each may rely on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import PlanError
from sentinel.core.plan import Plan, ring_sum
from sentinel.core.profile import Profile, allocation_keys
from sentinel.core.units import PAGE_BYTES, format_bytes

_MOST_AREA = 1 << 62
"""Bytes times layers of a plan stay below this, so that sums of them fit in 64 bits."""
_MOST_TENSORS = 1 << 31


def check_segments(plan: Plan) -> None:
    """Segments are whole pages, each born in a tier that is there, and no two share a page."""
    if plan.extent_bytes * plan.n_layers >= _MOST_AREA:
        raise PlanError(
            f"a plan of {format_bytes(plan.extent_bytes)} and {plan.n_layers} layers is larger than any machine"
        )
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
    offset, nbytes, tier = np.array([(s.offset, s.nbytes, s.tier) for s in segments], np.int64).reshape(-1, 3).T
    blocks = plan.block_columns
    begin, room, wanted = blocks.offset, blocks.nbytes, blocks.tier
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
    blocks = plan.block_columns
    clash = first_clash(blocks.offset, blocks.nbytes, blocks.start, blocks.stop, plan.n_layers)
    if clash is not None:
        block, other, layer = clash
        raise PlanError(f"isolation: shares pages with block {other}", block=block, layer=layer)


def check_slots(plan: Plan) -> None:
    """Each tensor has one slot, each slot answers to one key or name, and blocks name tensors that have one."""
    keys = [slot.key if slot.key is not None else slot.name for slot in plan.slots]
    if len(set(keys)) < len(keys):
        twice = next(key for key, times in Counter(keys).items() if times > 1)
        raise PlanError(f"two slots answer to {twice!r}")
    slots, blocks = plan.slot_columns, plan.block_columns
    order = np.argsort(slots.tensor, kind="stable")
    again = np.zeros(len(slots), bool)
    again[order[1:]] = slots.tensor[order][1:] == slots.tensor[order][:-1]
    again |= (slots.tensor < 0) | (slots.tensor >= _MOST_TENSORS)
    if again.any():
        at = int(again.argmax())
        raise PlanError(f"slot {keys[at]!r} is of tensor {slots.tensor[at]}, which has another slot or cannot be")
    outside = (slots.offset < 0) | (slots.nbytes <= 0) | (slots.offset + slots.nbytes > plan.extent_bytes)
    if outside.any():
        raise PlanError(f"slot {keys[int(outside.argmax())]!r} lies outside the arena")
    gone = ~slots.persistent & ((slots.layer < 0) | (slots.layer >= plan.n_layers))
    if gone.any():
        raise PlanError(f"slot {keys[int(gone.argmax())]!r} is of a layer that is not there")
    homeless = ~np.isin(blocks.tensors, slots.tensor)
    if homeless.any():
        at = int(homeless.argmax())
        raise PlanError(f"a block names tensor {blocks.tensors[at]}, which has no slot", block=int(blocks.owner[at]))
    named = np.sort(blocks.owner * _MOST_TENSORS + blocks.tensors)
    twice_named = named[1:] == named[:-1]
    if twice_named.any():
        raise PlanError("a block names a tensor twice", block=int(named[twice_named.argmax()] // _MOST_TENSORS))


def check_profile(plan: Plan, profile: Profile) -> None:
    """All managed tensors of `profile` have slots, each with room for its tensor; no slot is of a tensor it has not."""
    if plan.n_layers != profile.n_layers:
        raise PlanError(f"a plan of {plan.n_layers} layers is not of a profile of {profile.n_layers}")
    rows = profile.tensors
    slots = plan.slot_columns
    if len(slots) and slots.tensor.max() >= len(rows):
        tensor = slots.tensor[slots.tensor >= len(rows)][0]
        raise PlanError(f"a slot is of tensor {tensor}, which the profile does not have")
    needed = np.flatnonzero(rows["managed"][slots.tensor])  # one of a tensor that is not managed does no harm
    of = rows[slots.tensor[needed]]
    mine = [plan.slots[at] for at in needed.tolist()]
    names = [profile.names[tensor] for tensor in slots.tensor[needed].tolist()]
    answers = [slot.name if slot.key is None else slot.key for slot in mine]
    wanted = [name if key is None else key for name, key in zip(names, allocation_keys(of), strict=True)]
    if answers != wanted:
        at = next(at for at, (one, other) in enumerate(zip(answers, wanted, strict=True)) if one != other)
        raise PlanError(f"the slot of {names[at]} answers to {answers[at]!r}, not to {wanted[at]!r}")
    small = slots.nbytes[needed] < of["nbytes"]
    if small.any():
        at = int(small.argmax())
        raise PlanError(f"the slot of {names[at]} has {mine[at].nbytes} bytes, the tensor {of['nbytes'][at]}")
    without = rows["managed"].copy()
    without[slots.tensor] = False
    if without.any():
        raise PlanError(f"coverage: {profile.names[int(without.argmax())]} has no slot")


def check_coverage(plan: Plan, profile: Profile | None) -> None:
    """Blocks that name a tensor hold all bytes of its slot through its whole life.

    Without a profile a transient is known to live in the layer of its birth only. Relies on isolation: blocks
    alive together are disjoint, so a slot is covered if what they hold of it adds up, bytes times layers, to all of it.
    """
    if not plan.slots:
        return
    slots, blocks, length = plan.slot_columns, plan.block_columns, plan.n_layers
    order = np.argsort(slots.tensor)
    tensor, offset, nbytes = slots.tensor[order], slots.offset[order], slots.nbytes[order]
    if profile is not None:
        start = profile.tensors["start"][tensor].astype(np.int64)
        width = profile.tensors["stop"][tensor] - start
    else:
        lasting = slots.persistent[order]
        start, width = np.where(lasting, 0, slots.layer[order]), np.where(lasting, length, 1)
    block, slot = blocks.owner, np.searchsorted(tensor, blocks.tensors)
    low = np.maximum(blocks.offset[block], offset[slot])
    high = np.minimum((blocks.offset + blocks.nbytes)[block], (offset + nbytes)[slot])
    held = np.maximum(high - low, 0)
    covered = np.zeros(len(slots), np.int64)
    for turn in (-length, 0, length):
        first = np.maximum(blocks.start[block], start[slot] + turn)
        after = np.minimum(blocks.stop[block], (start + width)[slot] + turn)
        np.add.at(covered, slot, held * np.maximum(after - first, 0))
    short = covered < nbytes * width
    if not short.any():
        return
    missing = int(np.argmax(short))
    mine = block[slot == missing]
    by_layer = ring_sum(mine * 0, blocks.start[mine], blocks.stop[mine], held[slot == missing], 1, length)[0]
    life = (int(start[missing]) + np.arange(int(width[missing]))) % length
    layer = int(life[np.argmax(by_layer[life] < nbytes[missing])])
    whose = plan.slots[order[missing]].key or plan.slots[order[missing]].name
    raise PlanError(
        f"coverage: blocks hold {by_layer[layer]} of the {nbytes[missing]} bytes of slot {whose!r}", layer=layer
    )


def check_sharing(plan: Plan, profile: Profile | None) -> None:
    """Tensors that are alive together share no byte.

    With a profile these are those alive between the same two events. Without one, persistent tensors share with none.
    """
    if not plan.slots:
        return
    slots = plan.slot_columns
    order = np.argsort(slots.offset, kind="stable")
    offset, nbytes = slots.offset[order], slots.nbytes[order]
    clash: tuple[int, int] | None = None
    if profile is not None:
        rows, circle = profile.tensors[slots.tensor[order]], max(profile.n_events, 1)
        born = np.where(rows["persistent"], 0, rows["born_event"] % circle)
        life = np.where(rows["persistent"], circle, rows["died_event"] - rows["born_event"])
        found = first_clash(offset, nbytes, born, born + life, circle)
        clash = found[:2] if found is not None else None
    else:
        clash = _first_overlap(offset, offset + nbytes, slots.persistent[order])
    if clash is not None:
        one, other = (plan.slots[order[i]].key or plan.slots[order[i]].name for i in clash)
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
    births and deaths of those whose addresses others have too: what is alive is kept by address, where overlap shows
    between neighbours. So many rows that take turns at the same addresses cost no more than any other.
    """
    chosen = _contested(offset, nbytes)  # by address, which is how they are called from here on
    low, high, start, stop = offset[chosen], (offset + nbytes)[chosen], start[chosen], stop[chosen]
    wraps = np.flatnonzero(stop > length)
    row = np.concatenate([np.arange(len(chosen)), wraps])
    begin = np.concatenate([start, np.zeros(len(wraps), np.int64)])
    end = np.concatenate([np.minimum(stop, length), stop[wraps] - length])
    time, who = np.concatenate([begin, end]), np.concatenate([row, row])
    birth = np.arange(len(who)) < len(row)
    order = np.lexsort((who, birth, time))  # at one time the dead go before any is born
    order = order[: np.searchsorted(time[order], length)]  # then only deaths are left
    lows, highs = low.tolist(), high.tolist()
    alive: list[int] = []
    for at, born, index in zip(time[order].tolist(), birth[order].tolist(), who[order].tolist(), strict=True):
        place = bisect_left(alive, index)
        if not born:
            del alive[place]
            continue
        if place and highs[alive[place - 1]] > lows[index]:
            return int(chosen[index]), int(chosen[alive[place - 1]]), at
        if place < len(alive) and lows[alive[place]] < highs[index]:
            return int(chosen[index]), int(chosen[alive[place]]), at
        alive.insert(place, index)
    return None


def _contested(offset: NDArray[np.int64], nbytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows that share an address with another, whenever that is; by address."""
    order = np.argsort(offset, kind="stable")
    low, high = offset[order], (offset + nbytes)[order]
    shares = low[1:] < np.maximum.accumulate(high)[:-1]  # with one before it
    found = np.zeros(len(order), bool)
    found[1:] |= shares
    found[:-1] |= shares
    return order[found]
