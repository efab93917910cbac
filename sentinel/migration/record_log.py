"""The log that the witness's eBPF programs write and this process reads (struct witness_control, witness_record).

A program takes a number, then writes its record, with the number last. So a number without its record is one of two
things: a processor is still writing it, or there was no room and it never comes. The programs count the latter, so that
the two can be told apart without a clock: where there are more gaps than were counted, some record is still to come.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sentinel.migration.sightings import RECORD_DTYPE

_HEAD_AT, _TAKEN_AT = 32, 40
_LOOKS = 8
"""So often is a gap looked at in one `read`: a record is written within a microsecond, unless its processor rests."""
_LAST_LOOKS, _NAP_S = 200, 0.001
"""And so often, with a nap after each, in the last one."""

Buffer = mmap.mmap | bytearray


class RecordLog:
    """Reads `records`, a ring of `entries`; `control` has its head, and how far it was read.

    `refused()`: how many records the programs had no room for since the log was made.
    """

    def __init__(self, control: Buffer, records: Buffer, entries: int, refused: Callable[[], int]) -> None:
        self._control, self._records, self._entries, self._refused = control, records, entries, refused
        self.lost = 0
        """Numbers passed over: without a record, which never came or was given up."""

    def waiting(self) -> int:
        """Numbers not passed yet, those included for which there was no room."""
        head, taken = struct.unpack_from("<QQ", self._control, _HEAD_AT)
        return int(head - taken)

    def read(self, *, last: bool = False) -> NDArray[np.void]:
        """The whole records not read before, oldest first.

        Stops before a record that is still being written: that comes next time. It is given up, and counted as lost,
        where it kept a whole lap of others from their room, or where this is the `last` read and it does not come in a
        while.
        """
        for _ in range(_LAST_LOOKS if last else _LOOKS):
            refused = self._refused()  # first: what was refused by then has its number below the head
            head, taken = struct.unpack_from("<QQ", self._control, _HEAD_AT)
            records, whole = self._look(taken, head)
            gaps = head - taken - int(whole.sum())
            if gaps <= refused - self.lost:
                return self._pass(records[whole], taken, head)
            if last:
                time.sleep(_NAP_S)
        first = len(whole) if whole.all() else int(np.flatnonzero(~whole)[0])
        if last or head - taken - first >= 2 * self._entries:
            return self._pass(records[whole], taken, head)
        return self._pass(records[:first], taken, taken + first)

    def _look(self, taken: int, head: int) -> tuple[NDArray[np.void], NDArray[np.bool_]]:
        """A copy of the records that there was room for, and which of them are whole."""
        numbers = np.arange(taken, min(head, taken + self._entries), dtype=np.uint64)
        log = np.frombuffer(self._records, RECORD_DTYPE, self._entries)
        places = (numbers % np.uint64(self._entries)).astype(np.int64)
        whole = log["sequence"][places] == numbers + np.uint64(1)  # before the copy, for it is written last
        records: NDArray[np.void] = log[places]
        return records, whole

    def _pass(self, records: NDArray[np.void], taken: int, upto: int) -> NDArray[np.void]:
        self.lost += upto - taken - len(records)
        struct.pack_into("<Q", self._control, _TAKEN_AT, upto)
        return records
