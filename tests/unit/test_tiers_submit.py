"""What a tier has a mover do: how long an emulated transfer takes, which pages go to which node."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentinel.core.errors import UsageError
from sentinel.core.machine import Link
from sentinel.core.plan import USE_DTYPE
from sentinel.tiers.emulated import EmulatedTier
from sentinel.tiers.node import NodeTier
from sentinel.tiers.tier import HeldBlock
from tests.builders import GB, make_machine

FAST, MIDDLE, SLOW = range(3)


def three_tiers():
    machine = make_machine(promote=2 * GB, demote=GB, fast_bw=100 * GB, slow_bw=10 * GB, slow_write_bw=5 * GB)
    fast, slow = machine.tiers
    links = (*machine.links, Link(2, 0, GB // 2), Link(0, 2, GB // 4))
    return replace(machine, tiers=(fast, slow, replace(slow, name="slower")), links=links)


def held(*nbytes: int) -> HeldBlock:
    return HeldBlock(sum(nbytes), nbytes, lambda: [(4096, sum(nbytes))])


def test_an_emulated_transfer_takes_its_links_time() -> None:
    middle = EmulatedTier(three_tiers(), MIDDLE)
    jobs = middle.job(held(1000, 0, 0), FAST, MIDDLE), middle.job(held(0, 1000, 0), MIDDLE, FAST)
    assert [(job.source, job.target, job.duration_ns) for job in jobs] == [(FAST, MIDDLE, 1000), (MIDDLE, FAST, 500)]


def test_between_two_slower_tiers_a_transfer_goes_through_fast_memory() -> None:
    job = EmulatedTier(three_tiers(), SLOW).job(held(100, 1000, 0), MIDDLE, SLOW)
    assert job.duration_ns == 100 * 4 + 1000 // 2 + 1000 * 4
    assert job.spans == ((4096, 1100), (4096, 1000))  # 100 bytes once, 1000 of them twice


def test_an_emulated_transfer_copies_what_is_not_there_yet() -> None:
    middle = EmulatedTier(three_tiers(), MIDDLE)
    pieces = HeldBlock(5000, (3000, 2000, 0), lambda: [(4096, 1000), (65536, 0), (8192, 4000)])
    jobs = [
        middle.job(pieces, FAST, MIDDLE),
        middle.job(pieces, MIDDLE, FAST),
        middle.job(held(0, 1000, 0), FAST, MIDDLE),  # all is there
        middle.job(HeldBlock(5000, (5000, 0, 0), list), FAST, MIDDLE),  # nobody knows where it is
        middle.job(HeldBlock(5000, (5000, 0, 0), lambda: [(65536, 0)]), FAST, MIDDLE),  # nor here
    ]
    assert [job.spans for job in jobs] == [
        ((4096, 1000), (8192, 2000)),
        ((4096, 1000), (8192, 1000)),
        (),
        (),
        (),
    ]


def test_what_an_access_costs_beyond_fast_memory() -> None:
    uses = np.zeros(2, USE_DTYPE)
    uses["reads"], uses["read_bytes"], uses["written_bytes"] = 1, (10**6, 0), (0, 10**6)
    costs = EmulatedTier(three_tiers(), MIDDLE).delay_ns(uses)
    assert costs.tolist() == [100_000 - 10_000, 200_000 - 10_000]


def test_a_node_moves_pages_to_its_own_number_and_takes_its_own_time() -> None:
    machine = make_machine()
    with pytest.raises(UsageError, match="has no node number"):
        NodeTier(machine, 1)
    fast, slow = machine.tiers
    machine = replace(machine, tiers=(replace(fast, kind="node", node=0), replace(slow, kind="node", node=5)))
    tier = NodeTier(machine, 1, bytes_per_s=1009)
    jobs = tier.job(held(8192, 0), FAST, 1), tier.job(held(0, 8192), 1, FAST)
    assert [(job.node, job.spans, job.bytes_per_s) for job in jobs] == [
        (5, [(4096, 8192)], 1009),
        (0, [(4096, 8192)], 1009),
    ]
    assert tier.delay_ns(np.zeros(3, USE_DTYPE)).tolist() == [0, 0, 0]
