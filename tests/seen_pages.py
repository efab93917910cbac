"""Which pages the witness saw move: counted by what tests ask for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from sentinel.migration.sightings import REASONS, Sightings


def pages(seen: Sightings, *, reason: str | None = None, to_node: int | None = None, own: bool | None = None) -> int:
    """How many pages moved, with the given reason, destination and author, if given."""
    chosen = seen.moves["moved"].copy()
    if reason is not None:
        chosen &= seen.moves["reason"] == REASONS.index(reason)
    if to_node is not None:
        chosen &= seen.moves["to_node"] == to_node
    if own is not None:
        chosen &= seen.moves["own"] == own
    return int(seen.moves["n_pages"][chosen].sum())


def pages_by_reason(seen: Sightings) -> dict[str, int]:
    """Reason -> pages that moved; reasons with none are left out."""
    counts = {reason: seen.pages(reason) for reason in REASONS}
    return {reason: pages for reason, pages in counts.items() if pages}


def within(seen: Sightings, ranges: Iterable[tuple[int, int]]) -> Sightings:
    """The same for the moves that lie in `ranges` of (address, nbytes) only."""
    kept = np.zeros(len(seen.moves), bool)
    for address, nbytes in ranges:
        kept |= (seen.moves["address"] >= address) & (seen.moves["address"] < address + nbytes)
    return replace(seen, moves=seen.moves[kept])
