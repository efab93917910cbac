"""Exact order: reads whole chunks ahead of torch's order, and keeps of each what is used within its window.

The uses of a chunk's samples, in the order of this epoch and the next ones, are cut into windows: the first use that
is in no window is a miss, reads the chunk, and begins a window of a fixed number of samples delivered. All that is
used within the window stays until its last use there. So a sample that was used stays on where its use in the next
epoch lies in the running window of its chunk, and nothing that stays is evicted. Windows have one width, the widest
(within 1 %) with which the room is never exceeded. In an empty arena the first window of each chunk is shortened by
another share, or all windows would begin and end together.

A window is at most as long as the orders that are known. With one rank these are this epoch and the next, so where half
of the data set has room some chunks stay for good, and windows need not be longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from sentinel.core.ragged import positions
from sentinel.samples.layout import Layout
from sentinel.samples.room import Room
from sentinel.samples.staging import BEFORE, DIRECT, Staging, Windows
from sentinel.samples.widest import widest

_GOLDEN, _SILVER = 0.6180339887498949, 0.4142135623730951
"""Multiples of these, without their whole parts, spread evenly over [0, 1): chance would leave gaps."""
_HALF = 0.52
"""Of the chunks that do not stay for good, the share that needs room where windows are as long as an epoch."""
_FOREVER = np.int64(1 << 40)
_SHIFT, _TIME = np.int64(32), np.int64((1 << 32) - 1)
_KEPT, _DIRECT, _LATER = np.int64(-1), np.int64(-2), np.int64(1 << 41)
"""In place of the begin of a window: of before this epoch; of no window; of a window that is planned later."""


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
    windows = None if before is None else before.windows
    guess = 2 * room.n_pages * len(order) // uses.epoch_pages if windows is None else windows.nsamples
    width, direct = _widest(uses, guess)
    return uses.staging(uses.cover(width, len(order), direct), width)


def _widest(uses: _Uses, guess: int) -> tuple[int, int]:
    """The width of windows, and the position before which samples that are not in the arena are read directly: 0,
    unless what was kept from the epoch before leaves no room for reads."""
    m = len(uses.order)
    for direct in (0, *(m * part // 64 for part in (1, 2, 4, 8, 16, 32))):
        width = widest(partial(uses.peak, direct=direct), uses.room.n_pages, guess, uses.most_width)
        if width:
            return width, direct
    return 1, m


@dataclass(frozen=True, eq=False)
class _Cover:
    """Columns of (n_uses,) by chunk and time. `begin`: where the window of each use begins; columns of (n_windows,):
    those that begin in this epoch. `stop`: (n_chunks,) where the running window of each chunk ends."""

    begin: NDArray[np.int64]
    chunk: NDArray[np.int64]
    due: NDArray[np.int64]
    first_use: NDArray[np.int64]
    n_uses: NDArray[np.int64]
    stop: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Uses:
    """All uses of samples in this epoch and the next ones, by chunk and time. A time is a position in their orders, one
    after the other."""

    layout: Layout
    room: Room
    order: NDArray[np.int64]
    before: Staging | None
    most_width: int
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
    early: NDArray[np.float64]
    """(n_chunks,) Share of the width that the first window of this plan has."""

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
        time = keys & _TIME
        goes_on = before is not None and before.windows is not None
        numbers = np.arange(layout.n_chunks + 1)
        share = room.n_pages / int(of_sample.sum())
        stays = 0.0
        if following and len(following[0]) >= layout.n_samples:  # else one epoch's samples are not the next's
            stays = 1.0 if share >= 1 else max(0.0, (share - _HALF) / (1 - _HALF))
        return cls(
            layout,
            room,
            order,
            before,
            max(sum(map(len, following)), 1) if following else len(order),
            samples,
            of_sample[samples],
            _previous(samples, len(order), layout.n_samples),
            keys,
            time,
            np.searchsorted(keys, numbers << _SHIFT),
            numbers[:-1] * _GOLDEN % 1 < stays,
            np.ones(layout.n_chunks, np.float64) if goes_on else np.asarray((numbers[:-1] + 0.5) * _SILVER % 1),
        )

    @cached_property
    def pages_by_chunk(self) -> NDArray[np.int64]:
        """(n_uses,) by chunk and time."""
        return self.pages[self.time]

    @cached_property
    def previous_by_chunk(self) -> NDArray[np.int64]:
        """(n_uses,) by chunk and time."""
        return self.previous[self.time]

    @property
    def epoch_pages(self) -> int:
        """Pages of all samples of this epoch."""
        return max(int(self.pages[: len(self.order)].sum()), 1)

    def cover(self, width: int, horizon: int, direct: int) -> _Cover:
        """The windows of so many samples that begin before the time `horizon`, none before the time `direct`."""
        n_chunks, m = self.layout.n_chunks, len(self.order)
        chunks = np.arange(n_chunks) << _SHIFT
        stop = np.zeros(n_chunks, np.int64)
        if self.before is not None and self.before.windows is not None:
            stop = self.before.windows.stop.copy()
        after_kept = np.searchsorted(self.keys, chunks + np.minimum(stop, len(self.samples)))
        at = np.maximum(after_kept, np.searchsorted(self.keys, chunks + direct))
        last = self.first[1:]
        begins, times = [self.first[:-1], after_kept], [np.full(n_chunks, _KEPT), np.full(n_chunks, _DIRECT)]
        widths = np.where(self.forever, _FOREVER, np.maximum((width * self.early).astype(np.int64), 1))
        padded = np.append(self.keys, 0)
        while True:
            time = np.where(at < last, padded[at] - chunks, _LATER)
            begun = time < horizon
            if not begun.any():
                break
            begins.append(at)
            times.append(np.where(begun, time, _LATER))
            stop = np.where(time < m, time + widths, stop)
            until = np.minimum(time + widths, len(self.samples))
            at = np.where(begun, np.searchsorted(self.keys, chunks + until), at)
            widths = np.where(self.forever, _FOREVER, width)
        begins.append(at)
        times.append(np.full(n_chunks, _LATER))
        starts, values = np.stack(begins, axis=1).ravel(), np.stack(times, axis=1).ravel()
        counts = np.diff(starts, append=len(self.keys))
        windows = np.flatnonzero((values >= 0) & (values < m))
        windows = windows[np.argsort(values[windows])]
        return _Cover(
            np.repeat(values, counts),
            windows // len(begins),
            values[windows],
            starts[windows],
            counts[windows],
            np.where(stop >= _FOREVER, _FOREVER, np.maximum(stop - m, 0)),
        )

    def peak(self, width: int, direct: int) -> int:
        """Most pages alive at once in this epoch, and as far into the next as windows of this epoch reach."""
        m = len(self.order)
        horizon = m + min(width, max(len(self.samples) - m - width, (len(self.samples) - m) // 8))
        begin = self.cover(width, horizon, direct).begin
        previous = self.previous_by_chunk
        since = np.where(previous >= begin, previous + 1, np.maximum(begin - self.room.lead, 0))
        given_back = self.pages[:horizon]
        if direct:
            unstaged = begin == _DIRECT
            since[unstaged] = horizon
            given_back = given_back.copy()
            given_back[self.time[unstaged & (self.time < horizon)]] = 0
        change = np.bincount(np.minimum(since, horizon), self.pages_by_chunk, horizon + 1)[:horizon]
        change[1:] -= given_back[:-1]
        return int(change.cumsum().max(initial=0))

    def staging(self, cover: _Cover, width: int) -> Staging:
        """The staging of these windows."""
        m = len(self.order)
        of_window = np.repeat(np.arange(len(cover.due)), cover.n_uses)
        use = np.repeat(cover.first_use, cover.n_uses) + positions(cover.n_uses)
        time = self.time[use]
        new = self.previous[time] < cover.due[of_window]
        kept = np.zeros(0, np.int64) if self.before is None else self.before.stay_sample[self.before.kept]
        stay_at = np.full(len(self.samples), DIRECT)
        stay_at[time[new]] = len(kept) + np.arange(int(new.sum()))
        of_kept = self.time[cover.begin == _KEPT]
        stay_of = np.full(self.layout.n_samples, DIRECT)
        stay_of[kept] = np.arange(len(kept))
        fresh = self.previous[of_kept] < 0
        stay_at[of_kept[fresh]] = stay_of[self.samples[of_kept[fresh]]]
        again = np.sort(np.concatenate([time[~new], of_kept[~fresh]]))
        while len(again):
            stay_at[again] = stay_at[self.previous[again]]
            rest = again[stay_at[again] == DIRECT]
            again = rest if len(rest) < len(again) else rest[:0]  # none is left but those whose stay was not kept
        until = np.full(len(kept) + int(new.sum()), -1)
        served = np.flatnonzero(stay_at != DIRECT)
        until[stay_at[served]] = np.minimum(served, m)  # by time: the last use counts
        more = len(self.samples) > m
        return Staging(
            self.room,
            self.order,
            cover.chunk,
            cover.due,
            np.concatenate([kept, self.samples[time[new]]]),
            np.concatenate([np.full(len(kept), BEFORE), of_window[new]]),
            until,
            stay_at[:m],
            Windows(width, cover.stop) if more else None,
        )


def _previous(samples: NDArray[np.int64], m: int, n_samples: int) -> NDArray[np.int64]:
    """(n_uses,) The time of each sample's use before, -1 if there is none. `m`: where the next epoch
    begins."""
    previous = np.full(len(samples), -1)
    when = np.full(n_samples, -1)
    when[samples[:m]] = np.arange(m)
    once = bool((when[samples[:m]] == np.arange(m)).all())
    previous[m:] = when[samples[m:]]
    when[samples[m:]] = np.arange(m, len(samples))
    if once and bool((when[samples[m:]] == np.arange(m, len(samples))).all()):
        return previous
    by_sample = np.argsort(samples, kind="stable")
    same = samples[by_sample[1:]] == samples[by_sample[:-1]]
    previous[by_sample[:1]] = -1
    previous[by_sample[1:]] = np.where(same, by_sample[:-1], -1)
    return previous
