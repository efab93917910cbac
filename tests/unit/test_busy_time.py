"""Time in which at least one of several was busy counts once."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from sentinel.data.busy_time import BusyTime


def test_what_overlaps_counts_once_and_what_lies_between_does_not() -> None:
    now = [0]
    busy = BusyTime(lambda: now[0])
    assert busy.begin() == 0
    now[0] = 10
    assert busy.begin() == 10
    now[0] = 15
    assert busy.ns == busy.end() == 15
    now[0] = 20
    assert busy.end() == 20
    now[0] = 100
    assert busy.ns == 20
    busy.begin()
    now[0] = 107
    busy.end()
    assert busy.ns == 27
