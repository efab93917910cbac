"""Sentences on orders, and on reading each sample alone, that would read less than the order in use."""

from __future__ import annotations

from dataclasses import replace

from sentinel.core.errors import UsageError
from sentinel.data.unit_choice import UnitChoice
from sentinel.samples import KINDS, Feed, Layout, Order, Room, part_of, staging_ns, steady_feed

_CLEARLY = 0.95
"""What reads more than this share of what the order in use reads is not told."""


def others_read_less(layout: Layout, room: Room, order: Order, choice: UnitChoice) -> list[str]:
    """What a user of `order`, in this room and in chunks of `layout`, should know; by epochs from the second on,
    predicted from part of the data set, which takes some tenths of a second at most."""
    part = part_of(layout, order.world)
    room_bytes = max(int(room.nbytes * (part.nbytes / layout.nbytes)), 1)
    feeds: dict[str, Feed] = {}
    for kind in KINDS:
        try:
            gap_bytes = choice.gap_bytes if kind == order.kind else None
            feeds[kind] = steady_feed(part, room_bytes, replace(order, kind=kind), choice.staged, gap_bytes)
        except UsageError:
            continue  # the room is too little for it
    own = feeds.get(order.kind)
    if own is None:
        return []
    less = [kind for kind, feed in feeds.items() if feed.reads_per_chunk < _CLEARLY * own.reads_per_chunk]
    found = []
    if choice.gap_bytes is not None:  # a read of this order is not one of a whole chunk
        found = [
            f"by what reads cost here, order={kind!r} would read for {feed.wait_ns / own.wait_ns:.2f} of the time that"
            " this order reads; `sentinel data plan` tells how well each mixes samples"
            for kind, feed in feeds.items()
            if feed.wait_ns < _CLEARLY * own.wait_ns
        ]
    elif less:
        said = " and ".join(
            f"order={kind!r} would read a chunk {feeds[kind].reads_per_chunk:.2f} times" for kind in less
        )
        found.append(
            f"with this memory {said} an epoch, this order reads one {own.reads_per_chunk:.2f} times;"
            " `sentinel data plan` tells how well each mixes samples"
        )
    alone = _alone_is_cheaper(part, own, choice)
    return [*found, alone] if alone else found


def _alone_is_cheaper(part: Layout, own: Feed, choice: UnitChoice) -> str:
    """Why reading each sample alone would be as good; "" where it would not, or nothing is known of it."""
    remedy = 'a plain DataLoader, or unit="auto" in exact order, reads each sample alone'
    if choice.cached:
        return f"all files were in the page cache when the loader was made, where reading ahead saves nothing: {remedy}"
    if choice.staged is None or choice.alone is None:
        return ""
    alone_ns = choice.alone.ns(own.samples, own.samples / part.n_samples * int(part.alone_nbytes.sum()))
    staged_ns = own.wait_ns + staging_ns(own)
    if alone_ns > staged_ns:
        return ""
    return (
        f"by what reads cost here this order takes {staged_ns / max(alone_ns, 1):.1f} times as long as none: {remedy}"
    )
