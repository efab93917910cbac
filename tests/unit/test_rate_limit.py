"""A limit on how fast migrations go: parsed, planned for, and kept."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'sentinel-hm[torch]'")

from sentinel.core.errors import UsageError
from sentinel.core.run import OUTCOMES
from sentinel.session.request import Request, machine_of, notes_on
from sentinel.system.topology import topology
from sentinel.tiers.rate import VARIABLE, limited, note_on_limit, parse_rate, rate_limit
from tests.builders import MIB, make_profile, param, persistent_plan
from tests.unit.engine_builders import INSTANT, applied, emulated_machine


@pytest.mark.parametrize(
    ("text", "rate"), [("500MB/s", 5 * 10**8), ("1.5 GiB/s", 3 << 29), ("7B/s", 7), (" 2kB/s ", 2000)]
)
def test_a_rate_has_a_unit_and_says_per_second(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["500", "500MB", "500 MB/min", "0MB/s", "-1MB/s", "500mb/s", "fast", "1e9B/s"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="500MB/s"):
        parse_rate(text)


def test_plans_count_on_links_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    asked = Request(slow="emulated:cxl-asic-x8")
    free = machine_of(asked)
    assert rate_limit() == 0
    assert limited(free) is free
    assert note_on_limit() == ""
    monkeypatch.setenv(VARIABLE, "500MB/s")
    assert {link.bandwidth_bytes_per_s for link in machine_of(asked).links} == {5 * 10**8}
    assert machine_of(asked).tiers[1] == free.tiers[1]
    assert "500MB/s" in notes_on(machine_of(asked), topology())[0]
    monkeypatch.setenv(VARIABLE, "900GB/s")  # no faster than the link itself
    assert machine_of(asked).links == free.links
    monkeypatch.setenv(VARIABLE, "much")
    with pytest.raises(UsageError, match="500MB/s"):
        machine_of(asked)


@pytest.mark.needs("native")
def test_emulated_transfers_keep_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "100MiB/s")
    profile = make_profile([param("a", MIB, [0, 1])], 4)
    plan = persistent_plan(profile, [0], [(0, 0, 1, 1, 2), (0, 1, 0, 3, 4)], fast_bytes=MIB)
    with applied(plan, profile, limited(emulated_machine(MIB, promote=INSTANT, demote=INSTANT))) as running:
        for layer in (1, 2, 3, 0):
            running.tick(layer)
            running.let_land()
        run = running.engine.end_run()
    done = run.migrations[run.migrations["outcome"] == OUTCOMES.index("done")]
    assert len(done) == 2
    assert (done["stop_ns"] - done["start_ns"] >= 10_000_000).all()
