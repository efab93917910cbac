"""Which tensor a touched page belongs to. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.lifetimes import Entity
from sentinel.core.profile import RANGE_DTYPE
from sentinel.core.trace import Trace
from sentinel.core.units import PAGE_BYTES

RANGED_PAGES = 64
"""Tensors of at least so many pages tell their parts apart, where a layer touched only some of them."""


@dataclass(frozen=True)
class Touches:
    """`owner`: of each row of `trace.pages`, the entity, -1 unknown. `page`: its page within the tensor.

    `shared`: rows that several tensors of one layer could claim; the one that operators used then has it.
    """

    owner: NDArray[np.int64]
    page: NDArray[np.int64]
    shared: int

    @property
    def unknown(self) -> int:
        """Touches of pages where no tensor lived."""
        return int((self.owner < 0).sum())


def attribute_pages(
    trace: Trace, entities: Sequence[Entity], used: set[tuple[int, int]]
) -> tuple[NDArray[Any], Touches]:
    """The rows of `trace.pages` by (layer, page), and whose they are. `used`: (entity, layer) seen by operators."""
    order = np.lexsort((trace.pages["page"], trace.pages["layer"]))
    rows = trace.pages[order]
    claims = _claims(trace, entities, used)
    owner, page = np.full(len(rows), -1, np.int64), np.zeros(len(rows), np.int64)
    if not len(rows) or not len(claims):
        return rows, Touches(owner, page, 0)
    span = np.int64(max(int(rows["page"].max()), int(claims[:, 3].max())) + 2)
    keys = rows["layer"] * span + rows["page"]
    low = np.searchsorted(keys, claims[:, 1] * span + claims[:, 2])
    high = np.searchsorted(keys, claims[:, 1] * span + claims[:, 3])
    claimed = np.zeros(len(rows), np.int64)
    for at in np.flatnonzero(high > low).tolist():  # in ascending order of right: the last claim holds
        begin, end = int(low[at]), int(high[at])
        owner[begin:end] = claims[at, 0]
        page[begin:end] = rows["page"][begin:end] - claims[at, 2]
        claimed[begin:end] += 1
    return rows, Touches(owner, page, int((claimed > 1).sum()))


def _claims(trace: Trace, entities: Sequence[Entity], used: set[tuple[int, int]]) -> NDArray[np.int64]:
    """(k, 4) entity, layer, first and stop page of every tensor in every layer of its life, weakest claim first."""
    length = len(trace.layers)
    claims: list[tuple[bool, int, int, int, int, int]] = []
    for index, entity in enumerate(entities):
        for member in entity.members:
            tensor = trace.tensors[member]
            if tensor.address:
                first, stop = tensor.address // PAGE_BYTES, -(-(tensor.address + tensor.nbytes) // PAGE_BYTES)
                for layer in range(entity.start, entity.stop):
                    at = layer % length
                    claims.append(((index, at) in used, entity.born, index, at, first, stop))
    claims.sort()
    return np.array([claim[2:] for claim in claims], np.int64).reshape(len(claims), 4)


def ranges(rows: NDArray[Any], touches: Touches, pages_of: NDArray[np.int64]) -> NDArray[Any]:
    """Runs of pages of large tensors in the layers that touched only part of them. `pages_of`: of each entity."""
    mine = touches.owner >= 0
    mine &= pages_of[touches.owner] >= RANGED_PAGES
    rows, owner, page = rows[mine], touches.owner[mine], touches.page[mine]
    if not len(rows):
        return np.zeros(0, RANGE_DTYPE)
    order = np.lexsort((page, rows["layer"], owner))
    rows, owner, page = rows[order], owner[order], page[order]
    same = (np.diff(owner) == 0) & (np.diff(rows["layer"]) == 0)
    group = np.concatenate([[0], (~same).cumsum()])
    partial = (np.bincount(group) < pages_of[owner[np.flatnonzero(np.concatenate([[True], ~same]))]])[group]
    run = same & (np.diff(page) == 1) & (np.diff(rows["reads"]) == 0) & (np.diff(rows["writes"]) == 0)
    begins = np.flatnonzero(np.concatenate([[True], ~run]))
    ends = np.concatenate([begins[1:], [len(rows)]]) - 1
    found = np.zeros(len(begins), RANGE_DTYPE)
    found["tensor"], found["layer"] = owner[begins], rows["layer"][begins]
    found["first_page"], found["stop_page"] = page[begins], page[ends] + 1
    found["reads"], found["writes"] = rows["reads"][begins], rows["writes"][begins]
    kept: NDArray[Any] = found[partial[begins]]
    return kept
