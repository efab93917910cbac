"""Columns of the report's tables. Nullable types throughout: what is unknown is <NA>, never 0 or -1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray


def whole(values: Any, known: Any = True) -> Any:
    """A nullable column of whole numbers; <NA> where `known` (one truth value, or one a row) is false."""
    data = np.array(values, np.int64)
    mask = ~np.broadcast_to(np.asarray(known, np.bool_), data.shape)
    return pd.arrays.IntegerArray(data, mask.copy())


def words(values: Iterable[str | None]) -> Any:
    """A nullable column of text; an empty text is unknown."""
    return pd.array([value or None for value in values], dtype="string")


def truths(values: Any) -> Any:
    """A nullable column of truth values."""
    return pd.array(np.array(values, np.bool_), dtype="boolean")


def records(frame: pd.DataFrame) -> list[Any]:
    """The rows of a table, each with an attribute a column; what is unknown is None."""
    return list(frame.astype(object).where(frame.notna(), None).itertuples(index=False))


def of_names(names: Sequence[str], index: NDArray[Any]) -> Any:
    """`names[i]` for each i of `index`; <NA> where i is negative."""
    table = np.array([*names, None], object)
    return pd.array(table[np.where(index < 0, len(names), index)], dtype="string")
