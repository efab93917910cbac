"""In which memory samples lay that were in memory for an earlier read: by its tier, on which node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import SentinelError
from sentinel.core.units import PAGE_BYTES
from sentinel.data.sample_arena import SampleArena
from sentinel.system.numa import nodes_of
from sentinel.system.sysfs import numbers, text
from sentinel.system.topology import Topology

UNTOLD, IN_FILE, IN_SERVER = -1, -2, -3
"""Places that are no node: where the kernel does not tell, a file on a disk, a server of this machine."""
_WORDS = {UNTOLD: "where the kernel does not tell", IN_FILE: "file on a disk", IN_SERVER: "server on this machine"}
_WITH_MEMORY = Path("/sys/devices/system/node/has_memory")


class HitsByPlace(dict[int, tuple[int, int]]):
    """Place, a NUMA node or one of the numbers above -> hits from there, and their bytes."""

    def __add__(self, other: HitsByPlace) -> HitsByPlace:
        found = HitsByPlace(self)
        for place, (samples, nbytes) in other.items():
            before = found.get(place, (0, 0))
            found[place] = before[0] + samples, before[1] + nbytes
        return found

    @classmethod
    def of(cls, places: NDArray[np.int64], nbytes: NDArray[np.int64]) -> HitsByPlace:
        """Of samples that lay at `places` (k,) and have `nbytes` (k,)."""
        found = cls()
        for place in np.unique(places).tolist():
            here = places == place
            found[place] = int(here.sum()), int(nbytes[here].sum())
        return found


class ArenaNodes:
    """On which node samples of an arena are: that of all its memory where it has one, or where the host has no other;
    else the kernel is asked."""

    def __init__(self) -> None:
        found = numbers(text(_WITH_MEMORY))
        self._only = found[0] if len(found) == 1 else None

    def of(self, arena: SampleArena, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """(k,) places of `samples`, which are in the arena, and were read by this process: that of the first page of
        each."""
        known = IN_FILE if arena.place.folder else arena.node if arena.node is not None else self._only
        if known is not None:
            return np.full(len(samples), known, np.int64)
        at = arena.pages.ctypes.data + arena.first_pages(samples) * arena.shape.page_bytes
        try:
            nodes = nodes_of((at // PAGE_BYTES * PAGE_BYTES).astype(np.uint64))
        except SentinelError:
            return np.full(len(samples), UNTOLD, np.int64)
        return np.maximum(nodes, UNTOLD).astype(np.int64)


def named(place: int, host: Topology) -> str:
    """A place in words."""
    if place in _WORDS:
        return _WORDS[place]
    if not host.slower:
        return f"node {place}"
    return f"node {place}, {'fast' if place == host.fast else 'slower'}"
