"""The sweep that finds blocks on shared pages against an oracle that compares all pairs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.core.addresses import first_clash
from sentinel.core.errors import PlanError
from sentinel.core.laws import check
from sentinel.core.plan import Block, Plan, Segment
from sentinel.core.trace import LayerId
from sentinel.core.units import PAGE_BYTES


def plan_of(blocks: list[Block], length: int) -> Plan:
    layers = tuple(LayerId("", k) for k in range(length))
    return Plan("x", layers, ("f", "s"), (1 << 40, 1 << 40), (Segment(0, 1 << 20, 0),), (), tuple(blocks), (), 0, 0)


@st.composite
def placed(draw: st.DrawFn) -> Plan:
    length = draw(st.integers(1, 5))
    blocks = []
    for _ in range(draw(st.integers(1, 5))):
        start, width = draw(st.integers(0, length - 1)), draw(st.integers(1, length))
        offset, pages = draw(st.integers(0, 5)), draw(st.integers(1, 3))
        blocks.append(Block(offset * PAGE_BYTES, pages * PAGE_BYTES, start, start + width, 0, ()))
    return plan_of(blocks, length)


def share_a_layer(a: Block, b: Block, length: int) -> bool:
    """Whether two blocks are alive in a common layer of a ring of `length` layers."""
    return any(a.start + turn < b.stop and b.start < a.stop + turn for turn in (-length, 0, length))


@given(placed())
def test_a_plan_is_refused_exactly_if_two_blocks_share_a_page_in_a_layer(plan: Plan) -> None:
    shared = any(
        a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes and share_a_layer(a, b, plan.n_layers)
        for i, a in enumerate(plan.blocks)
        for b in plan.blocks[:i]
    )
    if shared:
        with pytest.raises(PlanError, match="isolation"):
            check(plan)
    else:
        check(plan)


class Counted(int):
    """An address that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) < int(other)

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return int(self) == other

    def __hash__(self) -> int:
        return hash(int(self))


def test_rows_that_take_turns_at_one_address_are_not_compared_pair_by_pair() -> None:
    Counted.compared = 0
    n = 2003
    address, time = np.array([Counted(0)] * n, object), np.arange(n)
    assert first_clash(address, np.full(n, PAGE_BYTES), time, time + 1, n) is None
    assert 0 < Counted.compared < 50 * n  # pair by pair: 2 million
