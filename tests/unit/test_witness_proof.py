"""The witness refuses to watch unless it saw just what it did itself. No kernel is asked here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sentinel.core.errors import CapabilityError, UsageError
from sentinel.migration import witness as module
from sentinel.migration.sightings import MOVE_DTYPE, REASONS, Frames
from sentinel.migration.witness import MigrationWitness

PAGE, SYSCALL = 0x7000, REASONS.index("syscall")
AWAY = (PAGE, 1, 0, 1, SYSCALL, True, True)
BACK = (PAGE, 1, 1, 0, SYSCALL, True, True)
STAYED = (PAGE, 1, 0, 0, SYSCALL, True, False)


class _Told(MigrationWitness):
    """Opens no programs, and sees of its own page what it is told."""

    def __init__(self, *trips: tuple[list[int], list[tuple[Any, ...]]]) -> None:
        super().__init__(64)
        self.trips, self.watched, self.open = list(trips), [], False

    def _open(self) -> None:
        self.open = True

    def _watch(self, ranges: Any) -> None:
        self.watched.append(ranges)

    def _round_trip(self) -> tuple[int, list[int], NDArray[Any]]:
        path, seen = self.trips.pop(0) if len(self.trips) > 1 else self.trips[0]
        return PAGE, path, np.array(seen, MOVE_DTYPE)

    def stop(self) -> None:
        self.open = False
        super().stop()


@pytest.fixture(autouse=True)
def frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_frames", lambda: Frames(1, np.zeros(1, np.int32)))


@pytest.mark.parametrize("seen", [[AWAY, BACK], [BACK, AWAY], [STAYED, AWAY, BACK]])
def test_it_watches_where_it_saw_its_page_go_and_come(seen: list[tuple[Any, ...]]) -> None:
    witness = _Told(([0, 1, 0], seen))
    witness.start([(0x10000, 0x1000)])
    assert witness.open
    assert witness.watched[-1] == [(0x10000, 0x1000)]


@pytest.mark.parametrize(
    "seen",
    [
        [],
        [AWAY],
        [AWAY, BACK, BACK],
        [AWAY, (PAGE, 1, 0, 1, SYSCALL, True, True)],
        [AWAY, (PAGE, 1, 1, 0, SYSCALL, False, True)],
        [AWAY, (PAGE, 1, 1, 0, REASONS.index("compaction"), True, True)],
        [AWAY, (PAGE + 0x1000, 1, 1, 0, SYSCALL, True, True)],
        [AWAY, (PAGE, 512, 1, 0, SYSCALL, True, True)],
        [AWAY, (PAGE, 1, 1, -1, SYSCALL, True, True)],
    ],
)
def test_it_refuses_where_it_saw_anything_else(seen: list[tuple[Any, ...]]) -> None:
    witness = _Told(([0, 1, 0], seen))
    with pytest.raises(CapabilityError, match="was seen as"):
        witness.start([(0x10000, 0x1000)])
    assert not witness.open


def test_a_page_that_stayed_proves_nothing_and_another_is_tried() -> None:
    witness = _Told(([0], []), ([0, 1], [AWAY]), ([0, 1, 0], [AWAY, BACK]))
    witness.start([])
    assert witness.open
    stuck = _Told(([0], []))
    with pytest.raises(CapabilityError):
        stuck.start([])


def test_a_witness_that_does_not_watch_has_nothing_to_read() -> None:
    witness = _Told(([0, 1, 0], [AWAY, BACK]))
    with pytest.raises(UsageError):
        witness.read()
