"""What an executed run says of its links: bytes over the time in which anything moved, in the right direction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentinel.core.counters import Counters
from sentinel.core.run import LAYER_DTYPE, MIGRATION_DTYPE, OUTCOMES, REASONS, STEP_DTYPE, Run
from sentinel.migration.rates import LEAST_BYTES, migration_rate, short_of, with_rates
from tests.builders import GB, MIB
from tests.unit.engine_builders import emulated_machine

MS = 10**6


def moved(step: int, target: int, start_ms: int, stop_ms: int, mib: int, outcome: str = "done", why: str = "prefetch"):
    row = (step, 0, 0, 1 - target, target, mib * MIB, mib * MIB, start_ms * MS, stop_ms * MS)
    return (*row, OUTCOMES.index(outcome), REASONS.index(why), 0)


def run(*rows, emulated: bool = False) -> Run:
    steps = [(step, 0, 1, 0, 0, 0, True) for step in range(3)]
    return Run(
        kind="executed",
        emulated=emulated,
        tier_names=("fast", "slow"),
        fast_capacity_bytes=1,
        steps=np.array(steps, STEP_DTYPE),
        layers=np.zeros(0, LAYER_DTYPE),
        migrations=np.array(list(rows), MIGRATION_DTYPE),
        counters=Counters(),
    )


# 10 MiB and 6 MiB shared their system calls, 7 MiB came later: 23 MiB in 20 + 5 ms
SEEN = (moved(1, 0, 10, 30, 10), moved(1, 0, 10, 30, 6), moved(2, 0, 40, 45, 7, "late"))
RATE = 23 * MIB * 1000 // 25


def test_bytes_over_the_time_in_which_anything_moved() -> None:
    assert migration_rate(run(*SEEN), 1, 0) == RATE
    assert migration_rate(run(*SEEN, moved(2, 0, 42, 50, 3)), 1, 0) == 26 * MIB * 1000 // 30
    assert migration_rate(run(*SEEN, moved(1, 0, 12, 20, 2)), 1, 0) == RATE + 2 * MIB * 1000 // 25  # lies within one


def test_the_other_direction_the_first_step_and_what_was_not_planned_or_failed_say_nothing() -> None:
    others = (
        moved(1, 1, 0, 500, 100, why="evict"),
        moved(0, 0, 0, 9, 100),
        moved(1, 0, 0, 500, 100, "partial"),
        moved(1, 0, 0, 500, 100, why="restore"),
        moved(1, 0, 0, 500, 0, "already there"),
    )
    assert migration_rate(run(*SEEN, *others), 1, 0) == RATE


def test_too_little_says_nothing() -> None:
    little = LEAST_BYTES // MIB - 1
    assert migration_rate(run(moved(1, 0, 0, 10, little)), 1, 0) is None
    assert migration_rate(run(moved(1, 0, 0, 10, little + 1)), 1, 0) is not None
    assert migration_rate(run(), 1, 0) is None


def test_only_links_to_nodes_that_nobody_measured_take_the_rate() -> None:
    node, emulated = emulated_machine(MIB, promote=9 * GB, demote=8 * GB, slow_node=1), emulated_machine(MIB)
    rated = with_rates(node, run(*SEEN))
    assert {(link.target, link.bandwidth_bytes_per_s, link.measured) for link in rated.links} == {
        (0, RATE, True),
        (1, 8 * GB, False),
    }
    assert rated.tiers == node.tiers
    slow = replace(node.tiers[1], read_bytes_per_s=RATE // 2)
    links = tuple(replace(link, bandwidth_bytes_per_s=1) for link in node.links)
    bounded = with_rates(replace(node, tiers=(node.fast, slow), links=links), run(*SEEN))
    assert bounded.link(1, 0).bandwidth_bytes_per_s == RATE // 2  # the declared memory is no faster
    known = replace(node, links=tuple(replace(link, measured=True) for link in node.links))
    assert with_rates(known, run(*SEEN)) == known
    assert with_rates(emulated, run(*SEEN, emulated=True)) == emulated
    assert with_rates(node, run()) == node


def test_it_is_said_where_copies_were_slower_than_an_emulated_link_was_to_be() -> None:
    machine, executed = emulated_machine(MIB, promote=9 * GB, demote=8 * GB), run(*SEEN, emulated=True)
    assert with_rates(machine, executed) == machine
    (told,) = short_of(machine, executed)
    assert "from slow to fast was to carry 8.38 GiB a second, and this host copied 920.00 MiB a second" in told
    assert short_of(machine, run(*SEEN)) == []  # pages of nodes: nothing was asked for
    slower = emulated_machine(MIB, promote=int(RATE / 0.91), demote=8 * GB)
    assert short_of(slower, executed) == []


@pytest.mark.parametrize("times", [1, 3])
def test_the_order_of_rows_does_not_matter(times: int) -> None:
    assert migration_rate(run(*(SEEN[times % 3 :] + SEEN[: times % 3])), 1, 0) == RATE
