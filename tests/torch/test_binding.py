"""From plan addresses to addresses of this process: page ranges of a tensor are the same ranges of its storage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from sentinel import planner
from sentinel.core.units import PAGE_BYTES
from sentinel.session.binding import Addresses
from tests.builders import GB, MIB, make_machine
from tests.unit.test_extents import PAGES, table_profile

AT = {"first": 1 << 30, "table": 2 << 30, "last": 3 << 30}


def test_each_range_of_a_table_is_where_its_pages_are() -> None:
    machine = make_machine(MIB + 200_000, slow_bw=GB, promote=10**6, demote=10**6)
    plan = planner.plan(table_profile(), machine)
    addresses = Addresses(plan, (5 << 30, 1 << 38), AT)
    found = {block.name: addresses.ranges(index) for index, block in enumerate(plan.blocks) if block.tensors == (1,)}
    assert found["table[0:32]"] == [(AT["table"], 32 * PAGE_BYTES)]
    assert found["table[32:512]"] == [(AT["table"] + 32 * PAGE_BYTES, (PAGES - 32) * PAGE_BYTES)]


@pytest.mark.parametrize("policy", ["sentinel", "interleave", "static"])
def test_the_blocks_of_a_plan_cover_each_persistent_page_once(policy: str) -> None:
    plan = planner.plan(table_profile(), make_machine(2 * MIB, slow_bw=GB), policy)
    addresses = Addresses(plan, (5 << 30, 1 << 38), AT)
    pages = [
        page
        for index, block in enumerate(plan.blocks)
        if block.persistent
        for begin, nbytes in addresses.ranges(index)
        for page in range(begin // PAGE_BYTES, (begin + nbytes) // PAGE_BYTES)
    ]
    wanted = {name: PAGES if name == "table" else MIB // PAGE_BYTES for name in AT}
    assert sorted(pages) == sorted(AT[name] // PAGE_BYTES + i for name, count in wanted.items() for i in range(count))


class _Counting(dict[str, int]):
    """Counts how often it is asked."""

    asked = 0

    def get(self, *arguments: Any) -> Any:
        self.asked += 1
        return super().get(*arguments)


@pytest.mark.parametrize("n_tensors", [300, 3_001])
def test_where_a_block_is_takes_no_more_work_among_many_tensors(n_tensors: int) -> None:
    """Asked at each migration, on the thread that trains: each tensor is looked up once, when the plan is taken in."""
    plan = planner.plan(table_profile(), make_machine(2 * MIB, slow_bw=GB), "static")
    places = [(f"tensor{index}", index * PAGE_BYTES) for index in range(n_tensors)]
    slots = tuple(replace(plan.slots[0], name=name, key=None, offset=at, nbytes=PAGE_BYTES) for name, at in places)
    blocks = tuple(replace(plan.blocks[0], offset=at, nbytes=PAGE_BYTES) for _, at in places)
    tensors = _Counting({name: (1 << 30) + 2 * at for name, at in places})
    addresses = Addresses(replace(plan, slots=slots, blocks=blocks), (1 << 40, 1 << 38), tensors)
    assert tensors.asked == n_tensors
    found = [addresses.ranges(block) for block in range(n_tensors)]
    assert found == [[((1 << 30) + 2 * at, PAGE_BYTES)] for _, at in places]
    assert tensors.asked == n_tensors
    assert all(addresses.ranges(block) is pieces for block, pieces in enumerate(found))
