"""Pages of dead blocks that stay for the next tenant: which, against every page's tenants; and within the budget."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sentinel.core import addresses
from sentinel.core.errors import PlanError
from sentinel.core.plan import Block, Migration, Plan
from sentinel.core.trace import LayerId
from sentinel.core.units import PAGE_BYTES
from sentinel.migration.keeping import Piece, kept_pieces, without
from tests.unit.engine_builders import Running, applied, emulated_machine

FAST_PAGES, PAGES = 4, 6


def _block(first: int, count: int, start: int, stop: int) -> Block:
    return Block(first * PAGE_BYTES, count * PAGE_BYTES, start, stop, int(first >= FAST_PAGES), (), f"{first}@{start}")


def _plan(blocks: list[Block], length: int, *, spare_pages: int = 1000, migrations: tuple[Migration, ...] = ()) -> Plan:
    plan = Plan(
        policy="built",
        layers=tuple(LayerId(f"l{i}", "forward", 0) for i in range(length)),
        tier_names=("fast", "slow"),
        capacity_bytes=(1 << 40, 1 << 40),
        segments=(),
        slots=(),
        blocks=tuple(blocks),
        migrations=migrations,
        footprint_bytes=PAGES * PAGE_BYTES,
        fast_needed_bytes=0,
    )
    return replace(plan, capacity_bytes=(plan.fast_peak_bytes + spare_pages * PAGE_BYTES, 1 << 40))


def _tenant(plan: Plan, page: int, layer: int) -> int:
    """Of `page` in unrolled `layer`, -1 if none."""
    for index, block in enumerate(plan.blocks):
        here = block.offset <= page * PAGE_BYTES < block.offset + block.nbytes
        if here and (layer - block.start) % plan.n_layers < block.stop - block.start:
            return index
    return -1


def _heir(plan: Plan, block: int, page: int) -> tuple[int, int]:
    """(next tenant of a dead block's page, layers until it is born), looked for layer by layer."""
    for gap in range(plan.n_layers):
        tenant = _tenant(plan, page, plan.blocks[block].stop + gap)
        if tenant >= 0:
            return tenant, gap
    raise AssertionError("at the latest it is born again itself")


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    length = draw(st.integers(2, 6))
    plan = _plan([], length, spare_pages=0)
    for _ in range(draw(st.integers(1, 9))):
        side = draw(st.sampled_from([(0, FAST_PAGES), (FAST_PAGES, PAGES)]))
        first = draw(st.integers(side[0], side[1] - 1))
        count = draw(st.integers(1, side[1] - first))
        start = draw(st.integers(0, length - 1))
        block = _block(first, count, start, start + draw(st.integers(1, length)))
        bigger = _plan([*plan.blocks, block], length, spare_pages=0)
        try:
            addresses.check_isolation(bigger)
        except PlanError:
            continue
        plan = bigger
    return _plan(list(plan.blocks), length, spare_pages=draw(st.integers(0, 4)))


@given(plans())
def test_what_is_kept_is_born_fast_again_and_finds_room(plan: Plan) -> None:
    held = plan.held_bytes[0].copy()
    kept: set[tuple[int, int]] = set()
    for block, pieces in kept_pieces(plan).items():
        assert plan.blocks[block].tier == 0
        for piece in pieces:
            for page in range(piece.offset // PAGE_BYTES, (piece.offset + piece.nbytes) // PAGE_BYTES):
                heir, gap = _heir(plan, block, page)
                assert (heir, plan.blocks[heir].tier) == (piece.heir, 0)
                assert (block, page) not in kept
                kept.add((block, page))
                held[(plan.blocks[block].stop + np.arange(gap)) % plan.n_layers] += PAGE_BYTES
    assert (held <= plan.capacity_bytes[0]).all()


@given(plans())
def test_with_room_for_all_everything_is_kept(plan: Plan) -> None:
    roomy = replace(plan, capacity_bytes=(1 << 40, 1 << 40))
    kept = {(block, piece.offset, piece.heir) for block, pieces in kept_pieces(roomy).items() for piece in pieces}
    pages = sum(piece.nbytes for pieces in kept_pieces(roomy).values() for piece in pieces) // PAGE_BYTES
    fast = [block for block in roomy.blocks if block.tier == 0]
    assert pages == sum(block.nbytes for block in fast) // PAGE_BYTES
    assert len(kept) >= len(fast)


def test_a_block_that_dies_slow_or_has_no_fast_heir_keeps_nothing() -> None:
    down = Migration(0, 0, 1, 2 * PAGE_BYTES, 1, 2, "evict")
    assert kept_pieces(_plan([_block(0, 2, 0, 3)], 5, migrations=(down,))) == {}
    assert kept_pieces(_plan([_block(FAST_PAGES, 2, 0, 3)], 5)) == {}


def test_what_lies_between_pieces_is_dropped() -> None:
    assert without(10, 10, ()) == [(10, 10)]
    assert without(10, 10, (Piece(10, 10, 0),)) == []
    assert without(10, 10, (Piece(12, 2, 0), Piece(14, 3, 1))) == [(10, 2), (17, 3)]


# ---- the engine, on "two" nodes that are one ---------------------------------------------------------------

A, B, C = 0, 1, 2
TURNS = [_block(0, 3, 0, 2), _block(0, 2, 2, 3), _block(1, 3, 4, 6)]
"""Of pages 0, 1, 2, 3: a has 0-2, then b at once 0-1, then after a layer c 1-3, then a again."""


def _running_on(plan: Plan, **more: Any):
    machine = replace(emulated_machine(plan.capacity_bytes[0], slow_node=0), name="one")
    return applied(plan, None, machine, strict=True, **more)


def _held_at_each_layer(running: Running) -> list[int]:
    pages = []
    for layer in [*range(1, 6), 0]:
        running.tick(layer)
        pages.append(running.engine._mover.held().fast_bytes // PAGE_BYTES)
    return pages


def test_the_engine_drops_only_what_has_no_room_to_stay() -> None:
    with _running_on(_plan(TURNS, 6)) as running:
        running.step(2)
        assert running.discarded == []
        # a, b with a's third page, the same and both of b's pages, c with page 0, again, a with page 3
        assert _held_at_each_layer(running) == [4, 4, 4, 4, 4, 4]
        counters = running.engine.so_far().counters
    assert counters.kept_bytes > 0
    assert counters.discarded_bytes_per_step == 0


def test_the_engine_keeps_to_the_budget() -> None:
    plan = _plan(TURNS, 6, spare_pages=0)
    with _running_on(plan) as running:
        running.step(2)
        held = _held_at_each_layer(running)
        run = running.engine.end_run()
        assert running.engine._mover.held().fast_bytes == 3 * PAGE_BYTES  # a is alive, and nothing is kept any more
    assert max(held) <= plan.fast_peak_bytes // PAGE_BYTES == 3
    assert run.counters.overflow_bytes == 0
    assert run.counters.kept_bytes > 0
    assert run.counters.discarded_bytes > 0
    assert run.counters.discarded_bytes_per_step == run.counters.discarded_bytes // run.counters.steps
    assert sum(nbytes for _, nbytes in running.discarded) == run.counters.discarded_bytes


def test_what_could_not_be_dropped_is_not_counted_as_dropped() -> None:
    """A page that a tensor has still, or half of one, stays."""
    with _running_on(_plan(TURNS, 6, spare_pages=0), discard=lambda offset, nbytes: nbytes - PAGE_BYTES) as running:
        running.step(2)
        counters = running.engine.end_run().counters
        asked = [nbytes for _, nbytes in running.discarded]
    assert counters.discarded_bytes == sum(asked) - len(asked) * PAGE_BYTES


def test_a_step_that_is_cut_short_lets_all_go() -> None:
    with _running_on(_plan(TURNS, 6)) as running:
        running.step(2)
        running.tick(1, 2)
        assert running.engine._mover.held().fast_bytes == 4 * PAGE_BYTES
        running.lose()
        assert sorted(running.discarded) == [(2 * PAGE_BYTES, PAGE_BYTES), (3 * PAGE_BYTES, PAGE_BYTES)]
        assert running.engine._mover.held().fast_bytes == 2 * PAGE_BYTES
        running.tick(0)
        running.step()
        assert running.engine._mover.held().fast_bytes <= 4 * PAGE_BYTES


def test_a_birth_that_finds_no_room_takes_that_of_what_is_kept() -> None:
    with _running_on(_plan(TURNS, 6)) as running:
        running.tick(1, 2, 3)
        assert running.engine._mover.held().fast_bytes == 3 * PAGE_BYTES  # b's for a and c, a's third for c
        running.engine._mover.set_capacity(3 * PAGE_BYTES)
        running.tick(4)  # c needs one page more than is kept for it
        assert running.discarded == [(0, PAGE_BYTES)]
        held = running.engine._mover.held()
        assert (held.fast_bytes, held.overflow_bytes) == (3 * PAGE_BYTES, 0)
