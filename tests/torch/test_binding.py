"""From plan addresses to addresses of this process: page ranges of a tensor are the same ranges of its storage."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'sentinel-hm[torch]'")

from sentinel import planner
from sentinel.core.units import PAGE_BYTES
from sentinel.session.binding import Addresses
from tests.builders import GB, MIB, make_machine
from tests.unit.test_parts import PAGES, table_profile

AT = {"first": 1 << 30, "table": 2 << 30, "last": 3 << 30}


def test_each_range_of_a_table_is_where_its_pages_are() -> None:
    machine = make_machine(MIB + 200_000, slow_bw=GB, promote=10**6, demote=10**6)
    plan = planner.plan(table_profile(), machine)
    addresses = Addresses(plan, 5 << 30, AT)
    found = {block.name: addresses.ranges(index) for index, block in enumerate(plan.blocks) if block.tensors == (1,)}
    assert found["table[0:32]"] == [(AT["table"], 32 * PAGE_BYTES)]
    assert found["table[32:512]"] == [(AT["table"] + 32 * PAGE_BYTES, (PAGES - 32) * PAGE_BYTES)]


@pytest.mark.parametrize("policy", ["sentinel", "interleave", "static"])
def test_the_blocks_of_a_plan_cover_each_persistent_page_once(policy: str) -> None:
    plan = planner.plan(table_profile(), make_machine(2 * MIB, slow_bw=GB), policy)
    addresses = Addresses(plan, 5 << 30, AT)
    pages = [
        page
        for index, block in enumerate(plan.blocks)
        if block.persistent
        for begin, nbytes in addresses.ranges(index)
        for page in range(begin // PAGE_BYTES, (begin + nbytes) // PAGE_BYTES)
    ]
    wanted = {name: PAGES if name == "table" else MIB // PAGE_BYTES for name in AT}
    assert sorted(pages) == sorted(AT[name] // PAGE_BYTES + i for name, count in wanted.items() for i in range(count))
