"""What the native record of a step is as GranuleUses: one use a granule in each operator."""

from __future__ import annotations

import numpy as np
import pytest

from sentinel.core.granule_uses import BORN, DIED, READS, WRITES
from sentinel.tiers.ahead import _once_an_operator

UPDATES = READS | WRITES


@pytest.mark.parametrize(
    ("kinds", "becomes"),
    [
        ((READS,), READS),
        ((UPDATES | DIED, WRITES | BORN), UPDATES),
        ((WRITES | BORN | DIED, WRITES | BORN), WRITES | BORN),
        ((READS | DIED, WRITES | BORN | DIED), UPDATES | DIED),
        ((DIED, WRITES | BORN), WRITES | BORN),
        ((READS | DIED, WRITES | BORN | DIED, WRITES | BORN), UPDATES),
        ((READS | WRITES | BORN,), WRITES | BORN),  # a neighbour was born beside it
    ],
)
def test_uses_of_one_granule_in_one_operator_are_one(kinds: tuple[int, ...], becomes: int) -> None:
    count = len(kinds)
    compute_ns = np.array([3, 4, 5], np.int64)
    first_use = np.array([0, 1, count + 2, count + 3], np.int64)
    granule = np.array([7, 7, *[5] * count, 7], np.int32)
    kind = np.array([READS, READS, *kinds, DIED], np.uint8)
    found = _once_an_operator(compute_ns, first_use, granule, kind)
    assert found.first_use.tolist() == [0, 1, 3, 4]
    assert found.granule.tolist() == [7, 7, 5, 7]
    assert found.kind.tolist() == [READS, READS, becomes, DIED]
    assert found.compute_ns.tolist() == [3, 4, 5]
