"""GranuleContents: between which operators the bytes of a granule are needed. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.core.granule_uses import BORN, DIED, READS, WRITES, GranuleUses


@dataclass(frozen=True)
class GranuleContents:
    """The accesses of a step that repeats, by granule, then by operator; each a row of the arrays.

    `needs`: whether bytes of before are needed; `writes`: whether they change. `previous`, `next`: the operator of the
    granule's access before and after, in a step before or after where it is below 0 or at least `operators`.
    `until`: the last operator that needs what the granule holds after the access, before all of it changes or part of
    it does; the access's own operator where none does. `written`: the operator that wrote what an access needs, in this
    step or one before; `NEVER` where it needs nothing, or what nobody in the step has written.
    """

    operators: int
    operator: NDArray[np.int64]
    granule: NDArray[np.int64]
    needs: NDArray[np.bool_]
    writes: NDArray[np.bool_]
    previous: NDArray[np.int64]
    next: NDArray[np.int64]
    next_needs: NDArray[np.bool_]
    until: NDArray[np.int64]
    written: NDArray[np.int64]


NEVER = -(1 << 62)
"""An operator before all steps."""


def granule_contents(uses: GranuleUses) -> GranuleContents:
    """What `uses` say of bytes: what was BORN, or accessed after it had DIED, needs none of before."""
    n, operator = uses.operators, uses.operator
    order = np.lexsort((operator, uses.granule))
    kind, granule, operator = uses.kind[order], uses.granule[order].astype(np.int64), operator[order]
    access = (kind & (READS | WRITES)) > 0
    row = np.flatnonzero(access)
    granule_of, operator_of, kind_of = granule[row], operator[row], kind[row]
    count = len(row)
    first = np.flatnonzero(np.diff(granule_of, prepend=-1))
    last = np.append(first[1:], count) - 1
    before, after = np.arange(count) - 1, np.arange(count) + 1
    if count:
        before[first], after[last] = last, first
    # Ends of life between an access and the next one are looked up in sums over all uses, around the granule's end too.
    fresh = _marked_between(kind, granule, row, before)
    needs = ((kind_of & READS) > 0) & ((kind_of & BORN) == 0) & ~fresh
    previous = operator_of[before] - n * (before >= np.arange(count))
    following = operator_of[after] + n * (after <= np.arange(count))
    writes = (kind_of & WRITES) > 0
    until, written = _spans(operator_of, needs, writes, first, n)
    return GranuleContents(
        operators=n,
        operator=operator_of,
        granule=granule_of,
        needs=needs,
        writes=writes,
        previous=previous,
        next=following,
        next_needs=needs[after] if count else needs,
        until=until,
        written=written,
    )


def _marked_between(
    kind: NDArray[np.uint8], granule: NDArray[np.int64], row: NDArray[np.int64], before: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Of each access whether the granule died from its access before on, or was born since, until just before it."""
    if not len(row):
        return np.zeros(0, np.bool_)
    died = np.concatenate([np.zeros(1, np.int64), np.cumsum((kind & DIED) > 0)])
    born = np.concatenate([np.zeros(1, np.int64), np.cumsum((kind & BORN) > 0)])
    start, stop = row[before], row
    found = died[stop] - died[start] + born[stop] - born[np.minimum(start + 1, len(kind))]
    around = start >= stop  # the access before is in the step before: to the granule's last use, and from its first one
    heads = np.flatnonzero(np.diff(granule, prepend=-1))
    tails = np.append(heads[1:], len(kind))
    which = np.searchsorted(heads, stop, "right") - 1
    head, tail = heads[which], tails[which]
    to_tail = died[tail] - died[start] + born[tail] - born[np.minimum(start + 1, tail)]
    from_head = died[stop] - died[head] + born[stop] - born[head]
    return np.asarray(np.where(around, to_tail + from_head, found) > 0)


def _spans(
    operator: NDArray[np.int64],
    needs: NDArray[np.bool_],
    writes: NDArray[np.bool_],
    first: NDArray[np.int64],
    n: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`until` and `written` of GranuleContents. Each granule's accesses are laid out for two steps."""
    count = len(operator)
    if not count:
        return operator, operator
    lengths = np.diff(np.append(first, count))
    group = np.repeat(np.arange(len(first)), lengths)
    begin = 2 * first[group]
    end = begin + 2 * lengths[group]
    place = np.arange(count) + first[group]  # twice as many rows in each granule before this one
    again = place + lengths[group]
    source, when = np.empty(2 * count, np.int64), np.empty(2 * count, np.int64)
    source[place] = source[again] = np.arange(count)
    when[place], when[again] = operator, operator + n
    # Where another content begins: an access that writes, or that needs nothing of before.
    begins = (writes | ~needs)[source]
    ahead = np.minimum.accumulate(np.where(begins, np.arange(2 * count), 2 * count)[::-1])[::-1]
    following = np.append(ahead, 2 * count)[place + 1]
    inside = following < end
    stop = np.where(inside, following, end - 1)
    needed = np.where(inside & ~needs[source[stop]], stop - 1, stop)  # what overwrites does not need it
    behind = np.maximum.accumulate(np.where(begins, np.arange(2 * count), -1))
    before = behind[np.maximum(again - 1, 0)]
    known = needs & (before >= begin) & writes[source[np.maximum(before, 0)]]
    return when[np.maximum(needed, place)], np.where(known, when[np.maximum(before, 0)] - n, NEVER)
