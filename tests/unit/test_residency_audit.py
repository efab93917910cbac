"""The audit of where blocks are, against a plan whose answer is known layer by layer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from sentinel.core.machine import Link, Machine, TierSpec
from sentinel.core.plan import Block, Migration, Plan, Segment
from sentinel.core.trace import LayerId
from sentinel.executed.audit import Audit

PAGE = 4096
BASE = 1 << 30


def machine() -> Machine:
    fast = TierSpec("fast", "node", 1 << 30, 100.0, 10**9, 10**9, node=0)
    slow = replace(fast, name="slow", node=1)
    return Machine("two", (fast, slow), (Link(0, 1, 10**9), Link(1, 0, 10**9)))


def plan() -> Plan:
    """Block 0 (3 pages) stays slow. Block 1 (2 pages) is fast but in layer 2; it moves in layers 1 and 3 of 4."""
    layers = tuple(LayerId("", k) for k in range(4))
    blocks = (
        Block(0, 3 * PAGE, 0, 4, 1, (), persistent=True),
        Block(3 * PAGE, 2 * PAGE, 0, 4, 0, (), persistent=True),
    )
    moves = (Migration(1, 0, 1, 2 * PAGE, 1, 2, "evict"), Migration(1, 1, 0, 2 * PAGE, 3, 4, "prefetch"))
    return Plan("x", layers, ("fast", "slow"), (1 << 20, 1 << 20), (Segment(0, 1 << 20, 0),), (), blocks, moves, 0, 0)


def audit_of(on_fast: set[int], absent: frozenset[int] = frozenset()) -> Audit:
    """Pages by number from BASE on; those of `on_fast` are on node 0."""

    def nodes(pages: NDArray[np.uint64]) -> NDArray[np.int32]:
        numbers = ((pages - BASE) // PAGE).astype(int).tolist()
        return np.array([-14 if n in absent else 0 if n in on_fast else 1 for n in numbers], np.int32)

    blocks = plan().blocks
    return Audit(plan(), machine(), lambda b: [(BASE + blocks[b].offset, blocks[b].nbytes)], nodes)


def test_all_where_the_plan_has_it() -> None:
    audit = audit_of(on_fast={3, 4})
    audit.after(0)
    assert audit.found.as_planned_bytes == 5 * PAGE
    assert audit.found.share == 1.0
    assert audit.found.fast_peak_bytes == 2 * PAGE
    assert not audit.worst


def test_pages_elsewhere_are_counted_and_named() -> None:
    audit = audit_of(on_fast={0, 3})
    audit.after(0)
    assert audit.found.elsewhere_bytes == 2 * PAGE
    assert audit.found.share == 3 / 5
    assert audit.worst == {(0, 0): PAGE, (0, 1): PAGE}


def test_a_block_under_way_may_be_on_either_node_and_is_told_apart() -> None:
    audit = audit_of(on_fast={3})
    audit.after(1)
    assert audit.found.moving_bytes == 2 * PAGE
    assert audit.found.as_planned_bytes == 3 * PAGE
    assert audit.found.share == 1.0


def test_what_was_moved_out_is_right_on_the_slow_node_and_wrong_on_the_fast_one() -> None:
    audit = audit_of(on_fast={3, 4})
    audit.after(2)
    assert audit.found.elsewhere_bytes == 2 * PAGE


def test_pages_that_no_one_touched_count_for_nothing() -> None:
    audit = audit_of(on_fast=set(), absent=frozenset({0, 1, 2, 3, 4}))
    audit.after(0)
    assert audit.found.share is None
    assert audit.found.absent_bytes == 5 * PAGE
