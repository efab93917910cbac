"""Which tier serves the page touches of a recorded step: counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks._observed import observed
from sentinel.core.attribution import attribute
from sentinel.core.errors import UsageError
from sentinel.core.plan import Block, Migration
from sentinel.core.units import PAGE_BYTES
from tests.builders import act, make_profile, param, persistent_plan
from tests.traces import Tape

PAGES = 8


def tape(n_layers=3):
    """A table of 8 pages and a small tensor that live across steps; the plan's table is of as many bytes."""
    found = Tape(n_layers)
    found.before("table", PAGES * PAGE_BYTES, address=PAGE_BYTES * 100)
    found.before("small", 10, address=PAGE_BYTES * 200)
    return found


def halves(n_layers=3):
    """The table's first 3 pages in fast memory, the other 5 in slow; the small tensor in slow."""
    profile = make_profile([param("table", PAGES * PAGE_BYTES, [0]), param("small", 10, [0])], n_layers)
    plan = persistent_plan(profile, [0, 1])
    table, small = plan.blocks
    low = replace(table, nbytes=3 * PAGE_BYTES)
    high = replace(table, offset=3 * PAGE_BYTES, nbytes=5 * PAGE_BYTES, tier=1)
    return replace(plan, blocks=(low, high, small))


def test_pages_are_counted_where_the_plan_has_them():
    recorded = tape()
    for page in (100, 102, 103, 107, 200, 999):  # the last one is nobody's
        recorded.touch(page)
    recorded.tick()
    recorded.touch(100)
    recorded.tick()
    recorded.tick()
    found = observed(halves(), recorded.trace())
    assert (found.placed_pages, found.fast_pages, found.other_pages) == (6, 3, 1)
    assert found.by_tensor == {"table": (5, 3), "small": (1, 0)}
    assert found.fast_served_fraction == 0.5


def test_a_block_in_flight_is_served_by_the_slower_tier():
    """It arrives for layer 1 and starts home in layer 2, so only layer 1 finds it in fast memory."""
    plan = halves(4)
    block, nbytes = 1, 5 * PAGE_BYTES
    moves = (Migration(block, 1, 0, nbytes, 0, 1, "prefetch"), Migration(block, 0, 1, nbytes, 2, 3, "evict"))
    plan = replace(plan, migrations=moves)
    recorded = tape(4)
    for _ in range(4):
        recorded.touch(105)
        recorded.tick()
    assert observed(plan, recorded.trace()).by_tensor == {"table": (4, 1)}


def test_transients_are_found_by_the_key_of_their_allocation():
    profile = make_profile([act("x", 2 * PAGE_BYTES, 1, 2)], 3)
    plan = persistent_plan(make_profile([param("table", PAGE_BYTES, [0])], 3), [0])
    slot = replace(plan.slots[0], name="x", key=(1, 0), nbytes=2 * PAGE_BYTES, offset=0)
    block = Block(0, 2 * PAGE_BYTES, 1, 2, 1, (0,), "x")
    plan = replace(plan, slots=(slot,), blocks=(block,))
    assert profile.tensors["key_layer"].tolist() == [1]
    recorded = Tape(3)
    recorded.tick()
    x = recorded.born("another name", 2 * PAGE_BYTES, address=PAGE_BYTES * 7)
    recorded.touch(7)
    recorded.touch(8)
    recorded.freed(x)
    recorded.tick()
    recorded.tick()
    found = observed(plan, recorded.trace())
    assert (found.placed_pages, found.fast_pages) == (2, 0)


def test_what_the_plan_does_not_place_is_told_apart():
    recorded = tape()
    recorded.touch(200)
    for _ in range(3):
        recorded.tick()
    plan = replace(halves(), slots=halves().slots[:1])
    found = observed(plan, recorded.trace())
    assert (found.placed_pages, found.other_pages, found.fast_served_fraction) == (0, 1, None)


def test_what_shows_nothing_is_refused():
    recorded = tape()
    for _ in range(3):
        recorded.tick()
    assert len(attribute(recorded.trace()).names) == 2
    with pytest.raises(UsageError, match="without page touches"):
        observed(halves(), recorded.trace())
    recorded.touch(100)
    with pytest.raises(UsageError, match="3 layers, the plan 4"):
        observed(halves(4), recorded.trace())
