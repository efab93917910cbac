"""What outputs say of what moves take from compute: figures where they are known, and that they are counted as 0."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentinel import machines
from sentinel.reports.price_of_moves import about_moves, unpriced
from tests.builders import MIB, make_machine

FREE = make_machine(8 * MIB)


@pytest.mark.parametrize("name", machines.names())
def test_no_described_machine_hides_that_its_moves_cost_nothing(name: str) -> None:
    machine = machines.load(name)
    if name.endswith("-priced"):
        assert unpriced(machine) == ""
        told = about_moves(machine)
        assert f"Moves on {name} take from compute: from dram to cxl" in told
        assert told.count("42.00 µs a migration (declared)") == 2
        assert told.endswith(f" Declared: {machine.links[0].declared_by}.")
        assert told.count("Declared: ") == 1  # the same of both directions
        return
    assert f"on {name} is counted as 0" in about_moves(machine) == unpriced(machine)


def test_known_prices_are_told_by_direction_and_by_where_they_are_from() -> None:
    up, down = FREE.links
    links = (
        replace(up, lost_ns_per_kib=100.0, lost_ns_per_move=31_664.1, measured=True),
        replace(down, lost_ns_per_kib=2.5),
    )
    machine = replace(FREE, links=links)
    assert unpriced(machine) == ""
    assert about_moves(machine) == (
        "Moves on built take from compute: from slow to fast 102.40 µs a MiB and 31.66 µs a migration (measured); from"
        " fast to slow 2.56 µs a MiB and 0 ns a migration (declared)."
    )


def test_a_link_whose_rate_alone_was_measured_has_no_price() -> None:
    links = tuple(replace(link, measured=True) for link in FREE.links)
    assert "between fast and slow" in unpriced(replace(FREE, links=links))
    half = replace(FREE, links=(replace(links[0], lost_ns_per_move=1000.0), links[1]))
    assert "from slow to fast 0 ns a MiB and 1.00 µs a migration (measured)" in about_moves(half)
    assert about_moves(half).endswith(unpriced(half))
    assert "between fast and slow" in unpriced(half)


def test_a_price_of_0_that_was_measured_is_told_as_such() -> None:
    free = replace(FREE, links=tuple(replace(link, lost_measured=True) for link in FREE.links))
    assert unpriced(free) == ""
    assert "from slow to fast 0 ns a MiB and 0 ns a migration (measured)" in about_moves(free)
    assert "is counted as 0" in unpriced(replace(free, links=(FREE.links[0], free.links[1])))
