"""When the engine asks where pages are: after forks, of what was written, and once in a while of everything."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.core.plan import USE_DTYPE
from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES
from sentinel.migration.move import Ended, Move
from sentinel.migration.page_audit import AUDIT_STEPS, CLEAN_STEPS, FIRST_BYTES, HURRIED_STEPS, Blocks, PageAudit
from tests.builders import MIB, act, make_profile, param
from tests.unit.engine_builders import transient_plan

# a and b persist, in slow and in fast memory; x lives in layers 1 to 3, born slow.
PROFILE = make_profile([param("a", MIB, [1, 2]), param("b", MIB, [1]), act("x", MIB, 1, 4, [2])], 4)
A, B, X = range(3)


class Stage:
    """An audit with forks and failures at will. `first`: (block, layer) of those that promotions wait for."""

    def __init__(self, profile: Profile = PROFILE, *, slow: bool = False) -> None:
        tiers = [1, 0, 1] if profile is PROFILE else [int(slow)] * len(profile.names)
        uses = np.array([(A, 1, 1, 1, 0, MIB, MIB), (A, 2, 1, 0, MIB, 0, MIB), (B, 1, 0, 1, 0, MIB, MIB)], USE_DTYPE)
        plan = replace(transient_plan(profile, tiers, fast_bytes=4 * MIB), uses=uses)
        self.audit = PageAudit(plan, 0)
        self.forks = self.failures = 0
        self.under_way: set[int] = set()
        self.first: set[tuple[int, int]] = set()
        self.blocks = Blocks(list(tiers), [True] * len(tiers), self.under_way)
        self.told: list[tuple[int, str]] = []

    def step(self, number: int) -> list[tuple[int, int, int]]:
        """Layers 1 to 3 of step `number`, and the tick that ends it: (block, step, layer) of who is looked at."""
        looked = []
        for layer in (1, 2, 3, 0):
            self.audit.forked(self.forks)
            if layer:
                step, checks = number, self.audit.after_layer(layer - 1, self.blocks)
            else:
                found = self.audit.report()
                self.told += [found] if found is not None else []
                step, checks = number + 1, self.audit.after_step(3, number + 1, self.failures, self.blocks)
            assert all(check.first for check in checks)
            checks += self.audit.in_passing(self.blocks)
            looked += [(check.block, step, layer) for check in checks]
            self.first |= {(check.block, layer) for check in checks if check.first}
        return looked

    def find(self, block: int, target: int, moved_bytes: int, stayed_bytes: int, known_bytes: int = 0) -> Ended | None:
        """A look at `block` has ended, after which `stayed_bytes` are not in tier `target`, where all were thought to
        be but `known_bytes`. What is to be recorded."""

        def spread(elsewhere: int) -> tuple[int, int]:
            return (elsewhere, MIB - elsewhere) if target else (MIB - elsewhere, elsewhere)

        move = Move(0, 0, block, 1 - target, target, MIB, "stray")
        ended = Ended(move, "done", target, spread(stayed_bytes), moved_bytes=moved_bytes)
        return self.audit.found(ended, spread(known_bytes))


@pytest.mark.parametrize("begin", [0, 1, 37])
def test_each_block_is_looked_at_once_in_a_while_and_no_promotion_waits(begin: int) -> None:
    stage = Stage()
    looked = [block for step in range(begin, begin + AUDIT_STEPS) for block, _, _ in stage.step(step)]
    assert sorted(looked) == [A, B, X]
    assert stage.first == set()


@given(st.lists(st.integers(1, 500), min_size=1, max_size=400), st.integers(0, 1000))
@settings(deadline=None, max_examples=50)
def test_a_step_looks_at_a_bounded_share(pages: list[int], begin: int) -> None:
    """By bytes no more than the AUDIT_STEPS-th part and one block, and every block within so many steps."""
    stage = Stage(make_profile([param(f"p{i}", count * PAGE_BYTES, [1]) for i, count in enumerate(pages)], 4))
    looks = [each for step in range(begin, begin + AUDIT_STEPS + 1) for each in stage.step(step)]
    seen: list[int] = []
    for step in range(begin + 1, begin + 1 + AUDIT_STEPS):
        looked = [block for block, of, _ in looks if of == step]
        assert sum(pages[block] for block in looked) <= sum(pages) / AUDIT_STEPS + max(pages)
        seen += looked
    assert sorted(seen) == list(range(len(pages)))


def test_after_failures_everybody_is_looked_at_soon_but_not_after_each() -> None:
    """They may mean that a node is gone, and that the kernel has placed all that was there elsewhere."""
    stage = Stage()
    looked = []
    for step in range(40):
        stage.failures += step >= 5
        looked += [(step, block) for block, _, _ in stage.step(step)]
    by_failures = [step for step, block in looked if block == A]
    # A is the first in turn: looked at as 1, 2, 4, 8, 16 and 32 have failed
    assert by_failures == [5, 6, 8, 12, 20, 36]
    assert {block for step, block in looked if 20 <= step < 20 + HURRIED_STEPS} == {A, B, X}
    assert stage.first == set()


def test_after_a_fork_the_rest_is_looked_at_a_share_at_a_time() -> None:
    """What is written is looked at when its layer ends, and promotions wait; of all else away, a part each step."""
    stage = Stage(make_profile([param(f"p{i}", MIB, [1]) for i in range(32)], 4), slow=True)
    stage.forks = 1
    in_steps = []
    for step in range(1, 1 + 3 * HURRIED_STEPS):
        looked = [(block, layer) for block, _, layer in stage.step(step)]
        rest = [(block, layer) for block, layer in looked if (block, layer) not in stage.first]
        assert len(rest) <= 32 // HURRIED_STEPS + 4  # and what is audited
        assert max(Counter(layer for _, layer in rest).values(), default=0) <= 2  # a layer looks at its part
        in_steps.append(looked)
    assert {block for looked in in_steps[: HURRIED_STEPS + 1] for block, _ in looked} == set(range(32))
    assert stage.first == {(A, 2), (B, 2)}


def test_after_a_fork_promotions_wait_for_a_bounded_part_of_what_a_layer_wrote() -> None:
    """40 GiB are written in one layer, as by an optimizer: each is seen within so many steps, 1 GiB of them first."""
    part = FIRST_BYTES // 4
    n = 160
    profile = make_profile([param(f"state {i}", part, [1]) for i in range(n)], 4)
    uses = np.array([(block, 1, 1, 1, 0, part, part) for block in range(n)], USE_DTYPE)
    plan = replace(transient_plan(profile, [1] * n, fast_bytes=4 * MIB), uses=uses)
    audit = PageAudit(plan, 0)
    blocks = Blocks([1] * n, [True] * n, set())
    audit.forked(1)
    seen: set[int] = set()
    for step in range(1, 1 + 2 * HURRIED_STEPS):
        checks = [
            check for layer in (0, 1, 2) for check in (*audit.after_layer(layer, blocks), *audit.in_passing(blocks))
        ]
        checks += [*audit.after_step(3, step, 0, blocks), *audit.in_passing(blocks)]
        first = [check.block for check in checks if check.first]
        assert part * len(first) <= FIRST_BYTES
        assert part * len(checks) <= FIRST_BYTES + part * (n // HURRIED_STEPS + n // AUDIT_STEPS + 2)
        assert first or step > HURRIED_STEPS
        seen |= {check.block for check in checks}
    assert seen == set(range(n))


def test_after_a_fork_what_was_written_away_from_home_is_looked_at() -> None:
    stage = Stage()
    stage.step(0)
    stage.forks = 1
    # a is written in layer 1; b is fast, where a new page of it would be too, and x was born slow
    assert stage.step(1) == [(A, 1, 2), (A, 2, 0)]
    assert stage.step(2) == [(A, 2, 2), (A, 3, 0)]
    assert CLEAN_STEPS == 2
    assert stage.step(3) == []


def test_what_the_last_layer_wrote_is_clean_after_as_many_looks() -> None:
    """An optimizer's slice closes the step."""
    stage = Stage()
    stage.audit._written = [(), (), (), (A,)]
    stage.forks = 1
    assert [stage.step(step) != [] for step in (1, 2, 3)] == [True] * CLEAN_STEPS + [False]
    assert stage.first == {(A, 0)}


def test_a_transient_away_from_home_and_a_persistent_block_that_came_home() -> None:
    stage = Stage()
    stage.forks = 1
    stage.blocks.tier[X] = stage.blocks.tier[A] = 0  # type: ignore[index]
    assert stage.step(1) == [(X, 2, 0)]
    stage.blocks.held[X] = False  # type: ignore[index] # dead
    assert stage.step(2) == []


def test_who_is_under_way_is_looked_at_later() -> None:
    stage = Stage()
    stage.forks = 1
    stage.under_way.add(A)
    assert stage.step(1) == stage.step(2) == stage.step(3) == []
    stage.under_way.clear()
    assert [stage.step(step) != [] for step in (4, 5, 6)] == [True, True, False]


def test_what_strayed_is_told_and_suspected_on() -> None:
    stage = Stage()
    stage.forks = 1
    stage.step(1)
    assert stage.find(A, 1, 3 * 4096, 4096) is not None
    stage.step(2)
    ((pages, sentence),) = stage.told
    assert pages == 4
    assert "placed 4 pages against the plan (copy-on-write after a fork): 12.00 KiB were demoted again" in sentence
    assert "4.00 KiB could not be moved" in sentence
    assert stage.step(3) != []


def test_without_a_fork_the_reason_is_another() -> None:
    stage = Stage()
    stage.step(AUDIT_STEPS - 1)
    assert stage.find(B, 0, 4096, 0) is not None
    found = stage.audit.report()
    assert found is not None
    assert "reclaim" in found[1]
    assert "4.00 KiB were promoted again" in found[1]


@pytest.mark.parametrize("target", [0, 1])
def test_what_a_move_of_ours_had_left_behind_is_not_the_kernels_doing(target: int) -> None:
    """The look moves it all the same, and the run has a row of that: a witness sees it too."""
    stage = Stage()
    found = stage.find(A, target, 8 * PAGE_BYTES, 0, known_bytes=8 * PAGE_BYTES)
    assert found is not None
    assert (found.moved_bytes, found.move.nbytes) == (8 * PAGE_BYTES, 8 * PAGE_BYTES)
    assert stage.find(A, target, 0, 8 * PAGE_BYTES, known_bytes=8 * PAGE_BYTES) is None  # it failed once more
    assert stage.audit.report() is None
    assert stage.find(A, target, 9 * PAGE_BYTES, 4 * PAGE_BYTES, known_bytes=8 * PAGE_BYTES) is not None
    told = stage.audit.report()
    assert told is not None
    assert told[0] == 5
    assert f"4.00 KiB were {'demoted' if target else 'promoted'} again, 16.00 KiB could not be moved" in told[1]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5), st.booleans(), st.booleans()), max_size=30))
@settings(deadline=None)
def test_what_each_layer_wrote_is_told_by_the_uses(drawn: list[tuple[int, int, bool, bool]]) -> None:
    profile = make_profile([param(f"p{i}", PAGE_BYTES, [1]) for i in range(5)], 6)
    uses = np.zeros(len(drawn), USE_DTYPE)
    for use, (block, layer, writes, written) in zip(uses, drawn, strict=True):
        use["block"], use["layer"], use["writes"], use["written_bytes"] = block, layer, writes, written * PAGE_BYTES
    plan = replace(transient_plan(profile, [0] * 5, fast_bytes=4 * MIB), uses=uses)
    expected = [
        tuple(block for block, at, writes, written in drawn if at == layer and (writes or written))
        for layer in range(6)
    ]
    assert PageAudit(plan, 0)._written == expected
