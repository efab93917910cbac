"""Alike: tensors whose names differ only in numbers, such as those of the blocks of one network."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

_NUMBER = re.compile(r"(?<![^./:])\d+(?![^./:#~])")
"""A number that is a part of a name by itself: of `h.3.mlp/mul#2` the 3, which counts blocks; the 2 tells operators of
one block apart."""


@dataclass(frozen=True, eq=False)
class Alike:
    """`of`: (n,) the group of each tensor. `names`: of each group, its tensor's name where it has one only, else with
    `*` for the numbers in which they differ. `counts`: tensors in each group."""

    of: NDArray[np.int64]
    names: tuple[str, ...]
    counts: NDArray[np.int64]

    def label(self, group: int, some: int | None = None, first: str = "") -> str:
        """Its name, and how many tensors it stands for where that is not one. `some`: of these, those that are meant;
        `first`: the name of the one where that is one."""
        count = int(self.counts[group])
        if some == 1 and first:
            return first
        if count == 1 or some in (None, count):
            return self.names[group] if count == 1 else f"{self.names[group]} ×{count}"
        return f"{self.names[group]} ×{some} of {count}"


def alike(names: Sequence[str]) -> Alike:
    """The groups of `names`, numbered by their first tensors."""
    groups: dict[str, int] = {}
    first: list[str] = []
    of = np.zeros(len(names), np.int64)
    for index, name in enumerate(names):
        pattern = _NUMBER.sub("*", name)
        group = groups.setdefault(pattern, len(groups))
        if group == len(first):
            first.append(name)
        of[index] = group
    counts = np.bincount(of, minlength=len(groups))
    shown = tuple(
        name if counts[i] == 1 else pattern for i, (pattern, name) in enumerate(zip(groups, first, strict=True))
    )
    return Alike(of, shown, counts)


def by_alike(frame: pd.DataFrame, names: Sequence[str], groups: Alike) -> pd.DataFrame:
    """`frame`, which has a row for each of some tensors, with a row for those that are alike, in the order of the first
    of each: `key`, the number of the group; `label`; sums of its numbers, <NA> where these are; else what the first one
    has. `names`: those of all tensors."""
    key = frame["tensor"].map(dict(zip(names, groups.of.tolist(), strict=True)))
    rows = frame.groupby(key, sort=False)
    counts, numbers = rows.size(), frame.select_dtypes("number").columns.tolist()
    found = frame.assign(key=key).drop_duplicates("key").set_index("key")
    found[numbers] = rows[numbers].sum(min_count=1)
    each = zip(found.index.tolist(), counts.tolist(), found["tensor"].tolist(), strict=True)
    found["label"] = [groups.label(group, count, first) for group, count, first in each]
    return found.reset_index()
