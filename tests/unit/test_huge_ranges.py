"""Which chunks may be huge pages, against an oracle that walks every page, layer and tenant."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sentinel.core import addresses
from sentinel.core.errors import PlanError
from sentinel.core.plan import Block, Migration, Plan, Segment
from sentinel.core.trace import LayerId
from sentinel.core.units import PAGE_BYTES
from sentinel.migration import huge_pages
from sentinel.migration.huge_pages import Placed, huge_ranges
from sentinel.migration.keeping import kept_pieces

CHUNK = 3  # pages


def _block(first: int, pages: int, start: int, stop: int, tier: int, length: int, *, fixed: bool) -> Block:
    fixed = fixed and stop - start == length
    start, stop = (0, length) if fixed else (start, stop)
    return Block(first * PAGE_BYTES, pages * PAGE_BYTES, start, stop, tier, (), f"{first}@{start}", fixed=fixed)


def _plan(blocks: list[Block], homes: list[int], length: int, moving: set[int], spare_pages: int) -> Plan:
    """`homes`: the tier of each page, -1 for none."""
    plan = Plan(
        policy="built",
        layers=tuple(LayerId(f"l{i}", "forward", 0) for i in range(length)),
        tier_names=("fast", "slow"),
        capacity_bytes=(1 << 40, 1 << 40),
        segments=tuple(Segment(i * PAGE_BYTES, PAGE_BYTES, tier) for i, tier in enumerate(homes) if tier >= 0),
        slots=(),
        blocks=tuple(blocks),
        migrations=tuple(
            Migration(i, block.tier, 1 - block.tier, block.nbytes, block.start, block.start + 1, "evict")
            for i, block in enumerate(blocks)
            if i in moving and not block.fixed
        ),
        footprint_bytes=0,
        fast_needed_bytes=0,
    )
    return replace(plan, capacity_bytes=(plan.fast_peak_bytes + spare_pages * PAGE_BYTES, 1 << 40))


@st.composite
def _plans(draw: st.DrawFn) -> Plan:
    length, pages = draw(st.integers(1, 5)), draw(st.integers(1, 4 * CHUNK))
    bounds = sorted(draw(st.sets(st.integers(0, pages), max_size=2)) | {0, pages})
    homes = [0] * pages
    for low, high in itertools.pairwise(bounds):
        homes[low:high] = [draw(st.sampled_from([0, 0, 0, 1, -1]))] * (high - low)
    blocks: list[Block] = []
    for _ in range(draw(st.integers(0, 8))):
        first = draw(st.integers(0, pages - 1) | st.sampled_from(range(0, pages, CHUNK)))
        count = draw(
            st.integers(1, pages - first)
            | st.sampled_from([n for n in (CHUNK, 2 * CHUNK) if n <= pages - first] or [1])
        )
        start = draw(st.integers(0, length - 1))
        stop = start + draw(st.integers(1, length))
        block = _block(first, count, start, stop, homes[first], length, fixed=draw(st.booleans()))
        try:
            addresses.check_isolation(_plan([*blocks, block], homes, length, set(), 0))
            addresses.check_birth(_plan([*blocks, block], homes, length, set(), 0))
        except PlanError:
            continue
        blocks.append(block)
    moving = draw(st.sets(st.integers(0, max(len(blocks) - 1, 0)), max_size=2))
    return _plan(blocks, homes, length, moving, draw(st.sampled_from([0, 1, 1000])))


def _lets(plan: Plan, pages: list[int]) -> tuple[bool, bool]:
    """Whether these pages of a plan may be one huge page, and whether it has a block there: page by page."""
    homes = {
        next((s.tier for s in plan.segments if s.offset <= page * PAGE_BYTES < s.offset + s.nbytes), -1)
        for page in pages
    }
    own = [
        {page for page in pages if block.offset <= page * PAGE_BYTES < block.offset + block.nbytes}
        for block in plan.blocks
    ]
    tenants = [i for i, mine in enumerate(own) if mine]
    if len(homes) > 1 or not tenants:
        return len(homes) <= 1, bool(tenants)
    if all(len(own[i]) == len(pages) for i in tenants):
        return True, True
    leaves = {move.block for move in plan.migrations} | {
        i for i in tenants if plan.blocks[i].tier and not plan.blocks[i].fixed
    }
    held = {
        (page, layer % plan.n_layers)
        for i in tenants
        for page in own[i]
        for layer in range(plan.blocks[i].start, plan.blocks[i].stop)
    }
    for dead, pieces in kept_pieces(plan).items():
        for piece in pieces:
            stop = plan.blocks[dead].stop
            layers = range(stop, stop + (plan.blocks[piece.heir].start - stop) % plan.n_layers)
            inside = [p for p in pages if piece.offset <= p * PAGE_BYTES < piece.offset + piece.nbytes]
            held |= {(page, layer % plan.n_layers) for page in inside for layer in layers}
    return not leaves & set(tenants) and len(held) == len(pages) * plan.n_layers, True


@given(plans=st.lists(_plans(), min_size=1, max_size=3), starts=st.lists(st.integers(0, CHUNK), min_size=3, max_size=3))
def test_chunks_are_huge_where_every_plan_treats_them_as_one(plans: list[Plan], starts: list[int]) -> None:
    arena_pages = 4 * CHUNK
    tables = [Placed(plan, start * PAGE_BYTES) for plan, start in zip(plans, starts, strict=False)]
    expected = set()
    for first in range(0, arena_pages, CHUNK):
        answers = [
            _lets(plan, list(range(first + start, first + start + CHUNK)))
            for plan, start in zip(plans, starts, strict=False)
        ]
        if all(may for may, _ in answers) and any(used for _, used in answers):
            expected |= set(range(first, first + CHUNK))
    found = huge_ranges(tables, arena_pages * PAGE_BYTES, chunk_bytes=CHUNK * PAGE_BYTES)
    assert {page for at, nbytes in found for page in range(at // PAGE_BYTES, (at + nbytes) // PAGE_BYTES)} == expected
    assert all(low + nbytes < following for (low, nbytes), (following, _) in itertools.pairwise(found))


def test_known_chunks() -> None:
    """One whole block; two that stay; two of which one moves; two born slow, which come home at the end; two that are
    slow for good; and one that is half empty."""
    length, chunk_bytes = 4, CHUNK * PAGE_BYTES
    tiers, fixed = [0, 0, 0, 1, 1, 0], [False, False, False, False, True, False]
    blocks = [_block(0, CHUNK, 0, 2, 0, length, fixed=False)]
    for i in range(1, 6):
        pieces = [(0, 2), (2, 1)] if i < 5 else [(0, 2)]
        blocks += [_block(i * CHUNK + at, n, 0, length, tiers[i], length, fixed=fixed[i]) for at, n in pieces]
    homes = [tier for tier in tiers for _ in range(CHUNK)]
    plan = _plan(blocks, homes, length, moving={0, 3}, spare_pages=0)
    expected = [(0, 2 * chunk_bytes), (4 * chunk_bytes, chunk_bytes)]
    assert huge_ranges([Placed(plan, 0)], 1 << 30, chunk_bytes=chunk_bytes) == expected
    assert huge_ranges([Placed(plan, 0)], chunk_bytes, chunk_bytes=chunk_bytes) == [(0, chunk_bytes)]
    assert huge_ranges([Placed(plan, PAGE_BYTES)], 1 << 30, chunk_bytes=chunk_bytes) == []
    assert huge_ranges([], 1 << 30) == []


def test_no_more_ranges_than_the_kernel_has_mappings_for_and_the_longest_of_them(monkeypatch) -> None:
    monkeypatch.setattr(huge_pages, "MOST_RANGES", 2)
    lengths = [1, 3, 1, 2]
    blocks, homes = [], []
    for chunks in lengths:
        blocks.append(_block(len(homes), chunks * CHUNK, 0, 1, 0, 1, fixed=False))
        homes += [0] * chunks * CHUNK + [-1] * CHUNK
    plan = _plan(blocks, homes, 1, set(), 0)
    found = huge_ranges([Placed(plan, 0)], 1 << 30, chunk_bytes=CHUNK * PAGE_BYTES)
    assert [nbytes // PAGE_BYTES // CHUNK for _, nbytes in found] == [3, 2]
