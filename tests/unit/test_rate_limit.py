"""A limit on how fast migrations go: parsed, planned for, and kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from sentinel.core.errors import UsageError
from sentinel.core.run import OUTCOMES
from sentinel.session.asked_machine import machine_of, notes_on
from sentinel.session.request import Request
from sentinel.system.topology import topology
from sentinel.tiers import NodeTier, limited, parse_rate
from tests.builders import MIB, make_profile, param, persistent_plan
from tests.unit.engine_builders import INSTANT, applied, emulated_machine


@pytest.mark.parametrize(
    ("text", "rate"),
    [("500MB/s", 5 * 10**8), ("1.5 GiB/s", 3 << 29), ("7000000B/s", 7 * 10**6), (" 2000kB/s ", 2 * 10**6)],
)
def test_a_rate_has_a_unit_and_says_per_second(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "text",
    ["500", "500MB", "500 MB/min", "0MB/s", "-1MB/s", "500mb/s", "fast", "1e9B/s", "9" * 400 + "B/s", f"{10**19}B/s"],
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="500MB/s"):
        parse_rate(text)


def test_a_rate_at_which_a_call_takes_seconds_is_refused() -> None:
    assert parse_rate("1MB/s") == 10**6
    with pytest.raises(UsageError, match="'999kB/s' is less than 1MB/s; give more"):
        parse_rate("999kB/s")


def test_plans_count_on_links_within_it() -> None:
    asked = Request(slow="emulated:cxl-asic-x8")
    free = machine_of(asked)
    assert asked.bytes_per_s == 0
    assert limited(free, 0) is free
    slower = machine_of(replace(asked, rate_limit="500MB/s"))
    assert {link.bandwidth_bytes_per_s for link in slower.links} == {5 * 10**8}
    assert slower.tiers[1] == free.tiers[1]
    assert "500MB/s" in notes_on(slower, topology(), "500MB/s")[-1]
    assert machine_of(replace(asked, rate_limit="900GB/s")).links == free.links  # no faster than the link itself
    with pytest.raises(UsageError, match="500MB/s"):
        machine_of(replace(asked, rate_limit="much"))


def test_the_command_line_refuses_what_is_no_rate() -> None:
    with pytest.raises(UsageError, match="500MB/s"):
        Request(rate_limit="fast").check()


@pytest.mark.needs("native")
def test_a_tier_on_a_node_gets_it() -> None:
    profile = make_profile([param("a", MIB, [0, 1])], 4)
    plan = persistent_plan(profile, [0], fast_bytes=MIB)
    with applied(plan, profile, emulated_machine(MIB, slow_node=0), bytes_per_s=5 * 10**8) as running:
        tier = running.engine._tiers[1]
        assert isinstance(tier, NodeTier)
        assert tier._bytes_per_s == 5 * 10**8


@pytest.mark.needs("native")
def test_emulated_transfers_keep_to_it() -> None:
    profile = make_profile([param("a", MIB, [0, 1])], 4)
    plan = persistent_plan(profile, [0], [(0, 0, 1, 1, 2), (0, 1, 0, 3, 4)], fast_bytes=MIB)
    with applied(plan, profile, limited(emulated_machine(MIB, promote=INSTANT, demote=INSTANT), 100 << 20)) as running:
        for layer in (1, 2, 3, 0):
            running.tick(layer)
            running.let_land()
        run = running.engine.end_run()
    done = run.migrations[run.migrations["outcome"] == OUTCOMES.index("done")]
    assert len(done) == 2
    assert (done["stop_ns"] - done["start_ns"] >= 10_000_000).all()
