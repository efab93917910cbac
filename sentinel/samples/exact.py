"""Exact order: reads chunks ahead of torch's order, and keeps of each what is used within its window.

The uses of a chunk's samples, in the order of this epoch and the next ones, are cut into windows: the first use that
is in no window is a miss, reads the chunk, and begins a window. All that is used within the window stays until its last
use there. So a sample that was used stays on where its use in the next epoch lies in the running window of its chunk,
and nothing that stays is evicted.

A window ends where a read and its memory cost least for each position until the next miss. Memory has a price, in
reads for a page that is taken while one position is delivered: at first the one at which windows of equal length would
fill the room (docs/decisions/0194). Where the reads of the next positions would exceed the room they are planned at a
higher price, and the price goes on a bit higher; else it falls slowly. In an empty arena the first window of each chunk
is shortened by another share, or all windows would begin and end together.

A window is at most as long as the orders of the next epochs that are known. With one rank that is one epoch, so where
more than half of the data set has room some chunks stay for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from sentinel.core.ragged import ranges
from sentinel.samples.layout import Layout
from sentinel.samples.room import Room
from sentinel.samples.staging import BEFORE, DIRECT, Staging, Windows

_GOLDEN, _SILVER = 0.6180339887498949, 0.4142135623730951
"""Multiples of these, without their whole parts, spread evenly over [0, 1): chance would leave gaps."""
_HALF = 0.5
"""Of the chunks that do not stay for good, the share that needs room where windows are as long as an epoch."""
_FOREVER = np.int64(1 << 40)
_SHIFT, _TIME = np.int64(32), np.int64((1 << 32) - 1)
_LATER = np.int64(1 << 41)
"""In place of a time: not known."""
_NEVER = 1e-9
"""Positions that a window of uses that are not there would save: so few that it is not taken."""
_BLOCKS, _LEAST_BLOCK = 128, 16
"""Of an epoch, in which reads are planned together, and the fewest positions of one."""
_SPARED = 128
"""Windows leave one page in 128 free, or there would be no room for a sample where none of them ends in time."""
_DEARER, _TRIES = 1.5, 12
"""What the price is multiplied by where reads do not fit, and how often."""
_RISES, _FALLS = 1.01, 0.999
"""What the price is multiplied by for what follows, where reads did not fit at first, and where they did."""


def stage_exact(
    layout: Layout,
    room: Room,
    order: NDArray[np.int64],
    following: Sequence[NDArray[np.int64]],
    before: Staging | None,
) -> Staging:
    """The staging that delivers `order` (m,), where `following` are this rank's orders of the next epochs, as far as
    they are known."""
    uses = _Uses.of(layout, room, order, following, before)
    return _staging(uses, _Planning(uses, None if before is None else before.windows))


@dataclass(frozen=True, eq=False)
class _Uses:
    """All uses of samples in this epoch and the next ones, by chunk and time. A time is a position in their orders, one
    after the other."""

    layout: Layout
    room: Room
    order: NDArray[np.int64]
    kept: NDArray[np.int64]
    """The samples that are in the arena since the epoch before."""
    samples: NDArray[np.int64]
    """(n_uses,) by time."""
    pages: NDArray[np.int64]
    """(n_uses,) by time."""
    previous: NDArray[np.int64]
    """(n_uses,) by time: the time of the sample's use before, -1 if there is none."""
    keys: NDArray[np.int64]
    """(n_uses,) Ascending: chunk and time in one number. The columns by chunk and time are in this order."""
    time: NDArray[np.int64]
    """(n_uses,) by chunk and time."""
    first: NDArray[np.int64]
    """(n_chunks + 1,) Where the uses of each chunk begin in columns by chunk and time."""
    forever: NDArray[np.bool_]
    """(n_chunks,) Those that stay for good."""

    @classmethod
    def of(
        cls,
        layout: Layout,
        room: Room,
        order: NDArray[np.int64],
        following: Sequence[NDArray[np.int64]],
        before: Staging | None,
    ) -> _Uses:
        """Sorts the uses. Takes most of the time of planning."""
        samples = np.concatenate([order, *following])
        of_sample = room.pages(layout)
        keys = (layout.chunk_of[samples].astype(np.int64) << _SHIFT) | np.arange(len(samples))
        keys.sort()
        numbers = np.arange(layout.n_chunks + 1)
        share = room.n_pages / int(of_sample.sum())
        stays = 0.0
        if following and len(following[0]) >= layout.n_samples:  # else one epoch's samples are not the next's
            stays = 1.0 if share >= 1 else max(0.0, (share - _HALF) / (1 - _HALF))
        return cls(
            layout,
            room,
            order,
            np.zeros(0, np.int64) if before is None else before.stay_sample[before.kept],
            samples,
            of_sample[samples],
            _previous(samples, len(order), layout.n_samples),
            keys,
            keys & _TIME,
            np.searchsorted(keys, numbers << _SHIFT),
            numbers[:-1] * _GOLDEN % 1 < stays,
        )

    def after(self, stop: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n_chunks,) Where the uses of each chunk from the time `stop` (n_chunks,) on begin in columns by chunk and
        time."""
        chunks = np.arange(self.layout.n_chunks) << _SHIFT
        return np.searchsorted(self.keys, chunks + np.minimum(stop, len(self.samples)))

    def first_price(self) -> tuple[float, int]:
        """The price at which windows of one length would fill the room in the mean, and the most uses that a window is
        looked for in.

        Of a chunk's C uses an epoch, x lie in a window, whose memory is x² / 2C uses for an epoch; one window follows
        the other after 1 + x uses, so a share r of the data is filled where x² / (1 + x) = 2rC. A read and its memory
        then cost least for each use at a price of C / (x + x² / 2) reads for the memory of one use for an epoch.
        """
        m = len(self.order)
        epoch_pages = max(int(self.pages[:m].sum()), 1)
        uses = max(m / self.layout.n_chunks, 1.0)
        half = uses * self.room.n_pages / epoch_pages
        inside = half + sqrt(half * half + 2 * half)
        return uses / (inside + inside * inside / 2) / epoch_pages, int(1.5 * inside) + 16


class _Planning:
    """The windows that begin in this epoch, planned by time. Columns of (n_windows,): of each its chunk, the time of
    its first use, and where its uses are in columns by chunk and time."""

    chunk: NDArray[np.int64]
    due: NDArray[np.int64]
    first_use: NDArray[np.int64]
    n_uses: NDArray[np.int64]

    def __init__(self, uses: _Uses, windows: Windows | None) -> None:
        chunks = np.arange(uses.layout.n_chunks)
        self._uses = uses
        self._time = np.append(uses.time, _LATER)
        self.stop = np.zeros(len(chunks), np.int64) if windows is None else windows.stop.copy()
        """(n_chunks,) The time of the first use after the running window of each chunk."""
        self._at = uses.after(self.stop)
        self.of_kept = ranges(uses.first[:-1], self._at - uses.first[:-1])
        """(n,) The uses of windows of before this epoch."""
        self._share = np.asarray((chunks + 0.5) * _SILVER % 1) if windows is None else np.ones(len(chunks))
        self._next = self._next_times(chunks)
        self._gap = len(uses.samples) // (np.diff(uses.first) + 1)
        """(n_chunks,) Mean time from the end of the known orders to the next use of a chunk."""
        first_price, most = uses.first_price()
        longest = int(np.diff(uses.first).max())
        most = longest if uses.forever.any() else min(most, longest)
        self._numbers = np.arange(most + 1)
        self._times = _rows(uses.time, most + 1)
        self._previous = _rows(uses.previous[uses.time], most + 1)
        self._pages = _rows(uses.pages[uses.time], most + 1)
        self.price = first_price if windows is None else windows.price
        self._change = np.zeros(len(uses.samples) + 1, np.int64)
        """(n_uses + 1,) by time: pages that are taken less those that are given back."""
        kept = uses.time[self.of_kept]
        since, until = _held(kept, uses.previous[kept], 0, 0)
        np.add.at(self._change, since, uses.pages[kept])
        np.subtract.at(self._change, until, uses.pages[kept])
        self._spared = 0 if uses.forever.all() else uses.room.n_pages // _SPARED
        self._alive, self._counted = 0, 0
        self._found = [(np.zeros(0, np.int64),) * 4]
        m = len(uses.order)
        while (begin := int(self._next.min())) < m:
            self._read(begin, min(begin + max(m // _BLOCKS, _LEAST_BLOCK), m))
        columns = [np.concatenate(column) for column in zip(*self._found, strict=True)]
        by_time = np.argsort(columns[1])
        self.chunk, self.due, self.first_use, self.n_uses = (column[by_time] for column in columns)

    def _next_times(self, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) The time of the next use of these chunks that is in no window yet."""
        at = self._at[chunks]
        return np.where(at < self._uses.first[chunks + 1], self._time[at], _LATER)

    def _read(self, begin: int, end: int) -> None:
        """Windows for the chunks whose next use lies in [begin, end). If what is in the arena fits as these are read,
        it fits later: without more reads it is less with each position."""
        uses, lead, n_pages, known = self._uses, self._uses.room.lead, self._uses.room.n_pages, len(self._uses.samples)
        chunks = np.flatnonzero(self._next < end)
        due, at, last = self._next[chunks], self._at[chunks], uses.first[chunks + 1]
        low, high = max(begin - lead, 0), max(end - lead, 1)
        self._alive += int(self._change[self._counted : low].sum())
        self._counted = low
        alive = self._alive + self._change[low:high].cumsum()
        time, pages = self._times[at], self._pages[at]
        since, until = _held(time, self._previous[at], due[:, None], lead)
        there = self._numbers < (last - at)[:, None]
        miss = np.where(there[:, 1:], time[:, 1:], (known + self._gap[chunks])[:, None])
        there[:, 1:] &= time[:, 1:] < due[:, None] + max(known - len(uses.order), 1)
        area = np.where(there, (until - since) * pages, 0).cumsum(axis=1)[:, :-1]
        gain = np.where(there[:, :-1], miss - due[:, None], _NEVER)

        def held(n_uses: NDArray[np.int64]) -> tuple[int, tuple[NDArray[np.int64], ...]]:
            inside = np.flatnonzero(self._numbers < n_uses[:, None])
            begins, ends, of = since.ravel()[inside], until.ravel()[inside], pages.ravel()[inside]
            change = _sums(begins - low, of, high - low) - _sums(ends - low, of, high - low)
            return int((alive + change.cumsum()).max()), (begins, ends, of)

        price = self.price
        for tried in range(_TRIES):
            n_uses = ((1 + price * area) / gain).argmin(axis=1) + 1
            n_uses = np.ceil(n_uses * self._share[chunks]).astype(np.int64)
            n_uses = np.where(uses.forever[chunks], last - at, n_uses)
            peak, change = held(n_uses)
            if peak <= n_pages - self._spared:
                self.price *= _RISES if tried else _FALLS
                break
            price *= _DEARER
        else:
            n_uses = np.ones_like(at)
            peak, change = held(n_uses)
            if peak > n_pages:
                by_due = np.argsort(due)
                n_uses[by_due] = pages[by_due, 0].cumsum() <= n_pages - int(alive.max())  # the others are read alone
                _, change = held(n_uses)
        np.add.at(self._change, change[0], change[2])
        np.subtract.at(self._change, change[1], change[2])
        self._at[chunks] += np.maximum(n_uses, 1)
        self._next[chunks] = self._next_times(chunks)
        found = n_uses > 0
        read = chunks[found]
        stop = np.where(
            uses.forever[read] & (n_uses == last - at)[found], _FOREVER, np.minimum(self._next[read], known)
        )
        self._share[read], self.stop[read] = 1, stop
        self._found.append((read, due[found], at[found], n_uses[found]))


def _held(
    time: NDArray[np.int64], previous: NDArray[np.int64], due: NDArray[np.int64] | int, lead: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """From when until when each use needs pages, in a window read at the time `due`."""
    return np.where(previous >= due, previous + 1, np.maximum(due - lead, 0)), time + 1


def _rows(column: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """(n, width) From each of its n numbers on as many; what lies beyond the last is of no meaning."""
    return sliding_window_view(np.concatenate([column, np.zeros(width, np.int64)]), width)


def _sums(at: NDArray[np.int64], pages: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """(length,) Of the pages at each row."""
    return np.bincount(np.minimum(at, length), pages, length + 1)[:length].astype(np.int64)


def _staging(uses: _Uses, planned: _Planning) -> Staging:
    """The staging of these windows."""
    m = len(uses.order)
    of_window = np.repeat(np.arange(len(planned.due)), planned.n_uses)
    use = ranges(planned.first_use, planned.n_uses)
    time = uses.time[use]
    new = uses.previous[time] < planned.due[of_window]
    kept = uses.kept
    stay_at = np.full(len(uses.samples), DIRECT)
    stay_at[time[new]] = len(kept) + np.arange(int(new.sum()))
    of_kept = uses.time[planned.of_kept]
    stay_of = np.full(uses.layout.n_samples, DIRECT)
    stay_of[kept] = np.arange(len(kept))
    fresh = uses.previous[of_kept] < 0
    stay_at[of_kept[fresh]] = stay_of[uses.samples[of_kept[fresh]]]
    again = np.sort(np.concatenate([time[~new], of_kept[~fresh]]))
    while len(again):
        stay_at[again] = stay_at[uses.previous[again]]
        rest = again[stay_at[again] == DIRECT]
        again = rest if len(rest) < len(again) else rest[:0]  # none is left but those whose stay was not kept
    until = np.full(len(kept) + int(new.sum()), -1)
    served = np.flatnonzero(stay_at != DIRECT)
    until[stay_at[served]] = np.minimum(served, m)  # by time: the last use counts
    more = len(uses.samples) > m
    stop = np.where(planned.stop >= _FOREVER, _FOREVER, np.maximum(planned.stop - m, 0))
    return Staging(
        uses.room,
        uses.order,
        planned.chunk,
        planned.due,
        np.concatenate([kept, uses.samples[time[new]]]),
        np.concatenate([np.full(len(kept), BEFORE), of_window[new]]),
        until,
        stay_at[:m],
        Windows(planned.price, stop) if more else None,
    )


def _previous(samples: NDArray[np.int64], m: int, n_samples: int) -> NDArray[np.int64]:
    """(n_uses,) The time of each sample's use before, -1 if there is none. `m`: where the next epoch
    begins."""
    previous = np.full(len(samples), -1)
    when = np.full(n_samples, -1)
    when[samples[:m]] = np.arange(m)
    once = np.count_nonzero(when >= 0) == m
    previous[m:] = when[samples[m:]]
    when[samples[m:]] = np.arange(m, len(samples))
    if once and np.count_nonzero(when >= m) == len(samples) - m:
        return previous
    by_sample = np.argsort(samples, kind="stable")
    same = samples[by_sample[1:]] == samples[by_sample[:-1]]
    previous[by_sample[:1]] = -1
    previous[by_sample[1:]] = np.where(same, by_sample[:-1], -1)
    return previous
