"""Columns of a plan, and what is made of them, against oracles that go row by row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from sentinel.core.errors import PlanError
from sentinel.core.laws import check
from sentinel.core.plan import Plan
from sentinel.core.plan_columns import MOST
from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES
from sentinel.core.uses import block_uses
from tests.builders import make_profile, param, persistent_plan
from tests.property.test_laws_by_oracle import sound


def spans_by_block(plan: Plan) -> list[tuple[int, ...]]:
    """As `Plan.spans`: block, tier, start, stop, held_from, held_until."""
    rows: list[tuple[int, ...]] = []
    for index, block in enumerate(plan.blocks):
        moves = plan.moves_by_block.get(index, ())
        begins = [plan.unrolled_start(move) for move in moves]
        dues = [begin + move.due - move.start for begin, move in zip(begins, moves, strict=True)]
        if not moves:
            rows.append((index, block.tier, block.start, block.stop, block.start, block.stop))
        elif block.persistent:
            length = plan.n_layers
            rows.append((index, moves[-1].target, dues[-1] - length, dues[0], begins[-1] - length, dues[0]))
        else:
            rows.append((index, block.tier, block.start, dues[0], block.start, dues[0]))
        for i, move in enumerate(moves[:-1]):
            rows.append((index, move.target, dues[i], dues[i + 1], begins[i], dues[i + 1]))
        if moves and not block.persistent:
            rows.append((index, moves[-1].target, dues[-1], max(block.stop, dues[-1]), begins[-1], block.stop))
    return rows


@settings(max_examples=30, deadline=None)
@given(sound())
def test_spans_are_those_of_each_block(made: tuple[Plan, Profile]) -> None:
    plan, _ = made
    assert plan.spans.tolist() == spans_by_block(plan)


@settings(max_examples=20, deadline=None)
@given(sound())
def test_uses_add_up_to_the_accesses(made: tuple[Plan, Profile]) -> None:
    plan, profile = made
    uses, a = block_uses(plan, profile), profile.accesses
    tensor: NDArray[np.int64] = profile.extents["tensor"][a["extent"]]
    managed = profile.tensors["managed"][tensor]
    for name in ("read_bytes", "written_bytes"):
        by_layer = [np.bincount(t["layer"], t[name], profile.n_layers) for t in (uses, a[managed])]
        assert np.abs(by_layer[0] - by_layer[1]).max() <= len(plan.blocks)  # each block's share is rounded
    assert uses[["block", "layer"]].tolist() == sorted(set(uses[["block", "layer"]].tolist()))


def test_told_keeps_what_was_made_of_rows_and_takes_none() -> None:
    plan = persistent_plan(make_profile([param("a", PAGE_BYTES, [0])], 2), [0])
    spans = plan.spans
    assert plan.told(policy="other").spans is spans
    assert replace(plan, policy="other").spans is not spans
    with pytest.raises(TypeError, match="blocks"):
        plan.told(blocks=())


@pytest.mark.parametrize("number", [MOST, -MOST, 1 << 200], ids=["too large", "too small", "beyond 64 bits"])
@pytest.mark.parametrize("name", ["offset", "nbytes", "start", "stop", "tier"])
def test_numbers_that_no_machine_has_are_refused(name: str, number: int) -> None:
    plan = persistent_plan(make_profile([param("a", PAGE_BYTES, [0])], 2), [0])
    with pytest.raises(PlanError, match="larger than any machine"):
        check(replace(plan, blocks=(replace(plan.blocks[0], **{name: number}),)))  # type: ignore[arg-type]
