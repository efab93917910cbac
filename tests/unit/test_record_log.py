"""The witness's log, read while processors write it: whatever comes late, or finds no room, is read or counted."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from numpy.typing import NDArray

from sentinel.migration import record_log
from sentinel.migration.record_log import RecordLog
from sentinel.migration.sightings import RECORD_DTYPE

ENTRIES = 8
HEAD_AT, TAKEN_AT = 32, 40


class Processors:
    """What ebpf/migrations.bpf.c does, one instruction of interest at a time. The address of a record is its number."""

    def __init__(self) -> None:
        self.control, self.records = bytearray(64), bytearray(ENTRIES * RECORD_DTYPE.itemsize)
        self.refused = 0
        self.log = RecordLog(self.control, self.records, ENTRIES, lambda: self.refused)

    def begin(self) -> int:
        """Takes a number, as one that will write it or be refused."""
        (number,) = struct.unpack_from("<Q", self.control, HEAD_AT)
        struct.pack_into("<Q", self.control, HEAD_AT, number + 1)
        return int(number)

    def finish(self, number: int) -> bool:
        """Writes the record, if there is room; else counts it."""
        (taken,) = struct.unpack_from("<Q", self.control, TAKEN_AT)
        if (number - taken) % (1 << 64) >= ENTRIES:
            self.refused += 1
            return False
        record = np.array([(number + 1, number, 0, 0, 0, 0)], RECORD_DTYPE).tobytes()
        at = number % ENTRIES * len(record)
        self.records[at : at + len(record)] = record
        return True

    def write(self, count: int) -> None:
        for _ in range(count):
            self.finish(self.begin())


@pytest.fixture
def processors(monkeypatch: pytest.MonkeyPatch) -> Processors:
    monkeypatch.setattr(record_log, "_NAP_S", 0.0)
    return Processors()


def _numbers(records: NDArray[np.void]) -> list[int]:
    return [int(number) for number in records["address"]]


def test_each_record_is_read_once_over_many_laps(processors: Processors) -> None:
    read: list[int] = []
    for count in (1, 0, 7, 8, 3, 8, 5):
        processors.write(count)
        assert processors.log.waiting() == count
        read += _numbers(processors.log.read())
    assert read == list(range(32))
    assert processors.log.lost == 0


def test_a_record_that_is_being_written_is_read_when_it_is_whole(processors: Processors) -> None:
    processors.write(2)
    slow = processors.begin()
    processors.write(3)
    assert _numbers(processors.log.read()) == [0, 1]
    assert processors.log.waiting() == 4
    assert processors.finish(slow)
    assert _numbers(processors.log.read()) == [2, 3, 4, 5]
    assert processors.log.lost == 0


def test_what_finds_no_room_is_counted_and_no_more(processors: Processors) -> None:
    processors.write(ENTRIES + 5)
    assert _numbers(processors.log.read()) == list(range(ENTRIES))
    assert processors.log.lost == processors.refused == 5
    processors.write(3)
    assert _numbers(processors.log.read()) == [13, 14, 15]
    assert processors.log.lost == 5


def test_one_that_is_being_written_is_told_from_those_without_room(processors: Processors) -> None:
    slow = processors.begin()
    processors.write(ENTRIES)  # the last one finds no room
    assert _numbers(processors.log.read()) == []
    assert processors.log.lost == 0
    assert processors.finish(slow)
    assert _numbers(processors.log.read()) == list(range(ENTRIES))
    assert processors.log.lost == processors.refused == 1


def test_one_that_has_not_decided_yet_may_still_be_refused(processors: Processors) -> None:
    processors.write(ENTRIES)
    late = processors.begin()
    read = _numbers(processors.log.read())
    assert read == list(range(ENTRIES))
    assert processors.log.lost == 0
    assert processors.finish(late)  # what was read made room for it
    assert _numbers(processors.log.read()) == [late]
    assert processors.log.lost == 0


def test_one_that_does_not_come_is_given_up_and_counted(processors: Processors) -> None:
    processors.begin()
    processors.write(2 * ENTRIES - 2)
    assert _numbers(processors.log.read()) == []
    assert processors.log.waiting() == 2 * ENTRIES - 1
    processors.write(1)
    assert _numbers(processors.log.read()) == list(range(1, ENTRIES))
    assert processors.log.lost == ENTRIES + 1  # that one, and those which found no room because of it
    processors.write(3)
    assert _numbers(processors.log.read()) == [16, 17, 18]


def test_the_last_read_leaves_nothing_uncounted(processors: Processors) -> None:
    processors.write(1)
    processors.begin()
    processors.write(2)
    assert _numbers(processors.log.read(last=True)) == [0, 2, 3]
    assert (processors.log.lost, processors.log.waiting()) == (1, 0)


def test_the_last_read_waits_for_what_is_being_written(processors: Processors, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, naps = processors.begin(), []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 20:
            processors.finish(slow)

    monkeypatch.setattr(record_log.time, "sleep", nap)
    assert _numbers(processors.log.read(last=True)) == [slow]
    assert (processors.log.lost, len(naps)) == (0, 20)
