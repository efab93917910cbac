"""The sweep that finds blocks on shared pages against an oracle that compares all pairs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.core.errors import PlanError
from sentinel.core.laws import check, share_a_layer
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
    for i in range(draw(st.integers(1, 5))):
        start, width = draw(st.integers(0, length - 1)), draw(st.integers(1, length))
        offset, pages = draw(st.integers(0, 5)), draw(st.integers(1, 3))
        blocks.append(Block(offset * PAGE_BYTES, pages * PAGE_BYTES, start, start + width, 0, (i,)))
    return plan_of(blocks, length)


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


def test_blocks_that_take_turns_at_one_address_are_not_compared_pair_by_pair() -> None:
    Counted.compared = 0
    n = 2003
    check(plan_of([Block(Counted(0), PAGE_BYTES, k, k + 1, 0, (k,)) for k in range(n)], n))
    assert Counted.compared < 20 * n  # pair by pair: 2 million
