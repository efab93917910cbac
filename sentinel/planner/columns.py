"""Columns: timelines of units that were the cheapest at some prices. The master chooses how much of each happens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sentinel.planner.episodes import Choice, Episodes, episodes_of
from sentinel.planner.workload import Workload


class Columns:
    """A growing table. Column c is a timeline of unit `unit[c]`, with the episodes and fast uses that name it.

    `use_column, use_row`: the uses that fast memory serves. `episodes` and `episode_column` likewise.
    """

    def __init__(self, work: Workload) -> None:
        self.work = work
        self._seen: set[tuple[int, int]] = set()
        self._units: list[NDArray[np.int64]] = []
        self._uses: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._episodes: list[Episodes] = []
        self._episode_columns: list[NDArray[np.int64]] = []
        self.n = 0

    def add(self, choice: Choice) -> int:
        """Add what is new in a choice; returns how many columns were."""
        episodes = episodes_of(self.work, choice)
        marks = _marks(self.work, episodes, choice)
        units = np.flatnonzero(np.bincount(episodes.unit, minlength=len(self.work.units)))
        fresh = [u for u in units.tolist() if (u, int(marks[u])) not in self._seen]
        self._seen.update((u, int(marks[u])) for u in fresh)
        number = np.full(len(self.work.units), -1, np.int64)
        number[fresh] = self.n + np.arange(len(fresh))
        self.n += len(fresh)
        rows = np.flatnonzero((number[episodes.unit] >= 0) if len(episodes) else np.zeros(0, bool))
        self._units.append(np.array(fresh, np.int64))
        self._episodes.append(_take(episodes, rows))
        self._episode_columns.append(number[episodes.unit[rows]])
        used = np.flatnonzero(choice.fast & (number[self.work.use_unit] >= 0))
        self._uses.append((number[self.work.use_unit[used]], used))
        return len(fresh)

    @property
    def unit(self) -> NDArray[np.int64]:
        """(columns,) unit of each."""
        return np.concatenate(self._units)

    @property
    def uses(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(column, use row) of every use that fast memory serves."""
        return tuple(np.concatenate(x) for x in zip(*self._uses, strict=True))  # type: ignore[return-value]

    @property
    def episodes(self) -> tuple[NDArray[np.int64], Episodes]:
        """(column of each episode, the episodes)."""
        names = Episodes.__dataclass_fields__
        joined = {name: np.concatenate([getattr(e, name) for e in self._episodes]) for name in names}
        return np.concatenate(self._episode_columns), Episodes(**joined)


def _take(episodes: Episodes, rows: NDArray[np.int64]) -> Episodes:
    return Episodes(**{name: getattr(episodes, name)[rows] for name in Episodes.__dataclass_fields__})


def _marks(work: Workload, episodes: Episodes, choice: Choice) -> NDArray[np.uint64]:
    """(units,) a fingerprint of each unit's timeline."""
    out = np.zeros(len(work.units), np.uint64)
    columns = (episodes.held_from, episodes.begin, episodes.end, episodes.held_until)
    mark = np.zeros(len(episodes), np.uint64)
    for column in columns:
        mark = (mark ^ column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mark ^= mark >> np.uint64(29)
    np.add.at(out, episodes.unit, mark)
    served = np.flatnonzero(choice.fast)
    np.add.at(out, work.use_unit[served], (served.astype(np.uint64) + np.uint64(1)) * np.uint64(0xBF58476D1CE4E5B9))
    return out
