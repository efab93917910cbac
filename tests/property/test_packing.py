"""Packing, which places many arcs at once, against one that places each in its turn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sentinel.core.units import HUGE_PAGE_BYTES, PAGE_BYTES
from sentinel.planner import packing
from sentinel.planner.packing import pack

Arc = tuple[int, int, int]


def share_a_time(one: Arc, other: Arc, period: int) -> bool:
    return any(one[1] + turn < other[2] and other[1] < one[2] + turn for turn in (-period, 0, period))


def packed_one_by_one(arcs: list[Arc], period: int, aligned: bool) -> list[int]:
    """Largest first, then by birth, then the longest: the lowest address beside all that share a time."""
    offset: dict[int, int] = {}
    for i in sorted(range(len(arcs)), key=lambda i: (-arcs[i][0], arcs[i][1], arcs[i][1] - arcs[i][2], i)):
        size = arcs[i][0]
        align = HUGE_PAGE_BYTES if aligned and size >= HUGE_PAGE_BYTES else 1
        beside = sorted((offset[k], offset[k] + arcs[k][0]) for k in offset if share_a_time(arcs[i], arcs[k], period))
        place = 0
        for low, high in beside:
            if low - place >= size:
                break
            place = max(place, -(-high // align) * align)
        offset[i] = place
    return [offset[i] for i in range(len(arcs))]


@st.composite
def arcs(draw: st.DrawFn) -> tuple[list[Arc], int]:
    """Few long ones, or many short ones, which are placed in rounds; on rings that are no whole number of buckets."""
    period = draw(st.sampled_from([1, 3, 40, 513, 700, 1200]))
    random = draw(st.randoms(use_true_random=False))
    n, widest = draw(st.sampled_from([(12, period), (90, min(period, 3)), (60, min(period, 30))]))
    unit = draw(st.sampled_from([1, PAGE_BYTES, HUGE_PAGE_BYTES // 2]))
    starts = [random.randrange(period) for _ in range(n)]
    return [(unit * random.randint(1, 6), start, start + random.randint(1, widest)) for start in starts], period


@settings(max_examples=75, deadline=None)
@given(arcs(), st.booleans())
def test_packing_in_rounds_is_packing_one_by_one(given_: tuple[list[Arc], int], aligned: bool) -> None:
    made, period = given_
    nbytes, start, stop = np.array(made, np.int64).T
    found = pack(nbytes, start, stop, period, aligned=aligned)
    assert found.tolist() == packed_one_by_one(made, period, aligned)


def test_a_round_is_played_only_where_it_places_many_for_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """17 chains of arcs of one size, each beside the one before it: a round would place one arc of each chain."""
    rounds: list[int] = []
    lowest = packing._lowest_of_each

    def counted(*given: Any) -> NDArray[np.int64]:
        rounds.append(len(given[3]))
        return lowest(*given)

    monkeypatch.setattr(packing, "_lowest_of_each", counted)
    chains, length = 17, 1600
    start = (np.arange(chains)[:, None] * (length + 1) + np.arange(length)).reshape(-1)
    ones, period = np.ones(len(start), np.int64), chains * (length + 1)
    found = pack(ones, start, start + 2, period)
    assert found.tolist() == (np.arange(len(start)) % length % 2).tolist()
    assert len(rounds) <= 1


def test_an_arc_that_passes_the_end_of_the_ring_is_beside_what_comes_first() -> None:
    """1,100 times are 512 buckets of 3 at most: the last bucket is not whole."""
    made = [(2, 1099, 1101), (1, 0, 1), *((1, 3 * i, 3 * i + 1) for i in range(1, 300))]
    nbytes, start, stop = np.array(made, np.int64).T
    assert pack(nbytes, start, stop, 1100)[:2].tolist() == [0, 2]
    alone = pack(nbytes[:2], start[:2], stop[:2], 1100)
    assert alone.tolist() == [0, 2]
