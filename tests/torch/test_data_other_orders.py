"""What the report says of orders that would read less, and of reading each sample alone."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from sentinel.data.other_orders import others_read_less
from sentinel.data.unit_choice import NO_CHOICE, UnitChoice
from sentinel.samples import Order, Room, SourceCosts
from tests.sample_layouts import even

LAYOUT = even(128, 64, 1000)


EXACT = Order()


def said(share: float, order: Order = EXACT, choice: UnitChoice = NO_CHOICE) -> str:
    return "\n".join(others_read_less(LAYOUT, Room.of(LAYOUT, int(LAYOUT.nbytes * share)), order, choice))


def test_orders_that_read_clearly_less_are_named_with_their_reads() -> None:
    much = said(0.2)
    assert "order='windowed' would read a chunk 1.00 times an epoch" in much
    assert "this order reads one 2." in much
    assert "redirect" not in much
    assert "order='redirect' would read a chunk" in said(0.03)
    assert said(0.2, Order("windowed")) == said(2.0) == ""


def test_ranks_are_compared_with_the_same_ranks() -> None:
    assert "order='windowed' would read a chunk 0.50 times" in said(0.2, Order(world=2, rank=1))


def test_reading_alone_is_named_where_it_is_known_to_be_as_good() -> None:
    slow, fast = SourceCosts(2e6, 1e9), SourceCosts(5e3, 1e10)
    assert "each sample alone" not in said(0.2, choice=UnitChoice(staged=slow, alone=slow))
    assert "by what reads cost here this order takes" in said(0.2, choice=UnitChoice(staged=fast, alone=fast))
    parts = UnitChoice(gap_bytes=slow.gap_bytes, staged=slow, alone=slow)
    assert "order='windowed' would read for 0." in said(0.2, choice=parts)
    assert "each sample alone" not in said(0.2, choice=parts)
    assert "page cache when the loader was made" in said(0.2, Order("windowed"), UnitChoice(cached=True))
