"""A budget is what a job may use; the machine, what there is, stays the same whatever a job may use of it."""

from __future__ import annotations

import pytest

from sentinel.core.budget import Budget, budget_within
from sentinel.core.errors import UsageError
from sentinel.core.units import Amount, parse_amount
from sentinel.files import digest
from sentinel.planner import footprint_bytes, plan
from tests.builders import MIB, act, make_machine, make_profile, param

PAGE = 4096
PROFILE = make_profile(
    [param("w", 7 * MIB, [0, 3]), param("v", 5 * MIB, [1, 2]), act("x", 3 * MIB, 0, 4, reads=[3])],
    4,
    layer_ns=5 * 10**6,
)
MACHINE = make_machine(64 * MIB)


def test_processes_share_a_budget_in_whole_pages_and_never_exceed_it() -> None:
    whole = Budget(10 * PAGE + 17)
    assert whole.share_of(1) == Budget(10 * PAGE)
    assert whole.share_of(3) == Budget(3 * PAGE)
    assert whole.share_of(11) == Budget(0)
    with pytest.raises(UsageError, match="0 processes"):
        whole.share_of(0)


def test_two_processes_on_one_machine_plan_within_a_share_each() -> None:
    share = Budget(10 * MIB).share_of(2)
    made = plan(PROFILE, MACHINE, budget=share)
    assert made.capacity_bytes[0] == share.fast_bytes == 5 * MIB
    assert made.fast_peak_bytes <= 5 * MIB
    assert made.footprint_bytes > 5 * MIB  # else the share would not matter


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(UsageError, match="-1 bytes"):
        Budget(-1)


def test_what_is_asked_for_beyond_what_is_there_is_capped_and_says_so() -> None:
    asked = parse_amount("50%")
    assert asked == Amount("50%", share=0.5)
    assert budget_within(2 * MIB, asked, 4 * MIB, "dram") == Budget(2 * MIB)
    assert budget_within(MIB, asked, 4 * MIB, "dram") == Budget(
        MIB, "fast='50%': 2.00 MiB of fast memory are requested, but dram has 1.00 MiB"
    )


@pytest.mark.parametrize("policy", ["sentinel", "sentinel-2021", "static", "first-touch", "all-slow"])
def test_a_plan_within_a_budget_is_that_for_a_machine_of_so_much(policy: str) -> None:
    made = plan(PROFILE, MACHINE, policy, budget=Budget(6 * MIB))
    assert digest(made) == digest(plan(PROFILE, make_machine(6 * MIB), policy))
    assert digest(made) != digest(plan(PROFILE, MACHINE, policy))


def test_without_a_budget_all_fast_memory_may_be_used() -> None:
    made = plan(PROFILE, MACHINE)
    assert made.capacity_bytes[0] == MACHINE.fast.capacity_bytes
    assert made.fast_peak_bytes == footprint_bytes(PROFILE)


def test_the_hub_is_the_fast_tier_and_every_link_leads_to_or_from_it() -> None:
    assert MACHINE.tiers[MACHINE.hub] is MACHINE.fast
    assert MACHINE.slower == (1,)
    assert all(MACHINE.hub in (link.source, link.target) for link in MACHINE.links)
    assert MACHINE.with_fast_capacity(MIB).fast.capacity_bytes == MIB
