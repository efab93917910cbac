"""Bytes that move by the transfers of Sentinel's file tier, to no purpose: what the disk does for them."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from typing import Any

from sentinel.tiers.frames import FRAME_BYTES
from tests.driven_frames import DrivenFrames

FRAMES = 64
_HALF = FRAMES // 2


class Traffic:
    """Frames whose bytes go out into a file in `directory` and come back, with the tier's own threads and pieces, past
    the page cache. `close` ends it."""

    def __init__(self, directory: str) -> None:
        self.frames = DrivenFrames(directory, frames=FRAMES, granules=FRAMES, regions=FRAMES)
        self.frames.attach(0, FRAMES)
        self.moved_bytes = 0
        """Each way."""
        try:
            some, base = os.urandom(FRAME_BYTES), self.frames.facts().base  # a disk may make less of zeros
            for frame in range(FRAMES):
                ctypes.memmove(base + frame * FRAME_BYTES, some, FRAME_BYTES)
            self.turn(time.perf_counter)  # the file's room is written to for the first time
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Memory and file go back."""
        self.frames.close()

    def turn(self, clock: Callable[[], float]) -> dict[str, float]:
        """All frames, once each way, one way after the other: what each took by `clock`."""
        took = {}
        for way, begin in (("written", self.frames.leave), ("read", self._arrive)):
            before = clock()
            self._end(begin(0, FRAMES), way)
            took[way] = clock() - before
        self.moved_bytes += FRAMES * FRAME_BYTES
        return took

    def rates(self, nbytes: int) -> dict[str, float]:
        """Bytes a second of each direction alone, of so many bytes each way, and `together`: how much longer they take
        one after the other than at once: 1 where both share the disk as if it did one at a time, 2 where neither slows
        the other. What a disk that is not quiet shows beyond that counts as these."""
        rounds = max(nbytes // (FRAMES * FRAME_BYTES), 1)
        alone = [self.turn(time.perf_counter) for _ in range(rounds)]
        took = {way: sum(each[way] for each in alone) for way in alone[0]}
        at_once = sum(self._at_once() for _ in range(rounds))
        moved = rounds * FRAMES * FRAME_BYTES
        return {
            "read_bytes_per_s": moved / took["read"],
            "write_bytes_per_s": moved / took["written"],
            "together": min(max(sum(took.values()) / at_once, 1.0), 2.0),
        }

    def _at_once(self) -> float:
        """Seconds in which all frames go each way once, half of them out while the others come in."""
        self._end(self.frames.leave(_HALF, _HALF), "written")
        began = time.perf_counter()
        for out, back in ((0, _HALF), (_HALF, 0)):
            orders = self.frames.leave(out, _HALF), self._arrive(back, _HALF)
            for order, way in zip(orders, ("written", "read"), strict=True):
                self._end(order, way)
        took = time.perf_counter() - began
        self._end(self._arrive(_HALF, _HALF), "read")
        return took

    def _arrive(self, first: int, count: int) -> int:
        return self.frames.arrive(first, count, writes=True)  # so that they are written again

    def _end(self, order: int, way: str) -> None:
        turned = self.frames.collect(order)
        if turned.stayed:
            raise SystemExit(f"{turned.stayed} pieces were not {way}: errno {turned.errno}")


def faster(*rates: dict[str, Any]) -> dict[str, Any]:
    """Of measurements of one disk the faster one in each figure: a bound at its rates is the lowest of theirs."""
    return {name: max(each[name] for each in rates) for name in rates[0]}
