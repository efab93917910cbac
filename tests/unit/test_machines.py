"""The described machines say what the issue of their day said, and nothing else."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sentinel import files, machines
from sentinel.core.errors import UsageError
from sentinel.tiers.presets import PRESETS

SLOW = {"optane": "optane-6dimm", "cxl": "cxl-asic-x8", "numa": "numa-remote-clx"}


PRICED = ("cxl-m2-priced", "cxl-m5-priced")


def test_there_are_twenty_four_and_two_with_a_price():
    free = (f"{pre}{stem}-m{m}" for pre in ("", "slow-") for stem in SLOW for m in ("2", "5", "10", "link"))
    assert machines.names() == tuple(sorted([*free, *PRICED]))


@pytest.mark.parametrize("name", PRICED)
def test_a_priced_machine_is_the_one_without_but_for_what_moves_take_and_names_its_source(name):
    """Whoever copies has one of 24 cores for as long as that takes."""
    priced, free = machines.load(name), machines.load(name.removesuffix("-priced"))
    bare = [replace(link, lost_ns_per_kib=0.0, lost_ns_per_move=0.0, declared_by="") for link in priced.links]
    assert replace(priced, name=free.name, links=tuple(bare)) == free
    for link in priced.links:
        assert link.lost_ns_per_kib == pytest.approx(1024e9 / link.bandwidth_bytes_per_s / 24, abs=1e-3)
        assert link.lost_ns_per_move == 42_000
        assert not link.measured
        assert not link.price_is_measured
        assert f"{link.bandwidth_bytes_per_s / 1e9:g} GB/s: one mover in pages of" in link.declared_by
        for source in ("S. Garg, linux-mm, 2026-05-08", "one of 24 cores", "docs/decisions/0151"):
            assert source in link.declared_by


@pytest.mark.parametrize("name", machines.names())
def test_numbers_are_those_of_the_presets(name):
    machine = machines.load(name)
    fast, slow = machine.tiers
    told = PRESETS[SLOW[name.removeprefix("slow-").split("-")[0]]]
    local = PRESETS["dram-local-clx"]
    assert machine.name == name
    assert machine.flops_per_s == (0.5e12 if name.startswith("slow-") else 1.5e12)
    for tier, spec in ((fast, local), (slow, told)):
        assert (tier.latency_ns, tier.read_bytes_per_s, tier.write_bytes_per_s, tier.measured, tier.kind) == (
            *(spec.latency_ns, spec.read_bytes_per_s, spec.write_bytes_per_s),
            *(False, "described"),
        )
    speed = name.removesuffix("-priced").rsplit("-m", 1)[1]
    up, down = machine.link(1, 0).bandwidth_bytes_per_s, machine.link(0, 1).bandwidth_bytes_per_s
    if speed == "link":
        assert up == min(told.read_bytes_per_s, local.write_bytes_per_s)
        assert down == min(local.read_bytes_per_s, told.write_bytes_per_s)
    else:
        assert up == down == int(speed) * 10**9


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(UsageError, match="cxl-m5"):
        machines.load("cxl-m7")


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize("what", ["latency_ns", "loaded_latency_a", "capacity_bytes"])
def test_a_tier_of_no_real_number_is_refused(what, value):
    with pytest.raises(UsageError, match=what):
        replace(machines.load("cxl-m5").fast, **{what: value})


@pytest.mark.parametrize("value", [-1.0, 0.0, 1.5, math.nan, math.inf])
def test_a_machine_of_no_real_speed_is_refused(value):
    """Also one whose 1.5 TFLOP/s were given as 1.5."""
    with pytest.raises(UsageError, match=r"flops_per_s is .* per second, such as 1\.5e12 for 1\.5 TFLOP/s"):
        replace(machines.load("cxl-m5"), flops_per_s=value)


@pytest.mark.parametrize("what", ["latency_ns", "lost_ns_per_kib", "lost_ns_per_move"])
def test_times_beyond_a_thousand_seconds_are_refused(what):
    machine = machines.load("cxl-m5")
    with pytest.raises(UsageError, match=r"1,000 s.* ns"):
        replace(machine.links[0], **{what: 10**13})
    if what == "latency_ns":
        with pytest.raises(UsageError, match=r"latency_ns is 1e\+30, more than 1,000 s; give ns"):
            replace(machine.tiers[1], latency_ns=1e30)
        dearest = replace(machine, tiers=(machine.fast, replace(machine.tiers[1], latency_ns=1e12)))
        assert dearest.worse().tiers[1].latency_ns == 1e12


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((1, 0), "from cxl to dram carries 17.9 GB/s, but cxl is read at 17.8 GB/s and dram written at 93 GB/s"),
        ((0, 1), "from dram to cxl carries 17.9 GB/s, but dram is read at 113 GB/s and cxl written at 13.6 GB/s"),
    ],
)
def test_a_link_faster_than_its_memory_is_refused(ends, said):
    machine = machines.load("cxl-mlink")  # the control: as fast is allowed

    def faster(kind):
        link = replace(machine.link(*ends), bandwidth_bytes_per_s=17_900_000_000)
        links = (link, machine.link(*reversed(ends)))
        return replace(machine, tiers=(machine.fast, replace(machine.tiers[1], kind=kind)), links=links)

    most = min(machine.tiers[ends[0]].read_bytes_per_s, machine.tiers[ends[1]].write_bytes_per_s)
    with pytest.raises(UsageError, match=rf"machine cxl-mlink: the link {said}; .* at most {most} bytes per second"):
        faster("described")
    with pytest.raises(UsageError, match=said):  # what moves there is copied, out of memory of that speed
        faster("emulated")


def test_links_at_a_share_are_all_that_is_another():
    machine = machines.load("cxl-m2-priced")
    half = machine.with_links_at(0.5)
    assert [link.bandwidth_bytes_per_s for link in half.links] == [10**9] * 2
    links = tuple(replace(link, bandwidth_bytes_per_s=2 * 10**9) for link in half.links)
    assert replace(half, links=links) == machine


def test_a_worse_machine_has_half_the_links_and_slower_memory_one_and_a_half_times_as_dear():
    machine = machines.load("cxl-mlink")
    worse = machine.worse()
    assert worse.fast == machine.fast
    assert [2 * x.bandwidth_bytes_per_s for x in worse.links] == [x.bandwidth_bytes_per_s for x in machine.links]
    slow, was = worse.tiers[1], machine.tiers[1]
    assert slow.latency_ns == 1.5 * was.latency_ns
    assert 1.5 * slow.read_bytes_per_s == pytest.approx(was.read_bytes_per_s)
    assert 1.5 * slow.write_bytes_per_s == pytest.approx(was.write_bytes_per_s)


@pytest.mark.parametrize("what", ["lost_ns_per_kib", "lost_ns_per_move"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_a_link_takes_no_less_than_nothing_from_compute(what, value):
    link = machines.load("cxl-m5").links[0]
    assert getattr(replace(link, **{what: 250.5}), what) == 250.5
    with pytest.raises(UsageError, match=f"{what} is {value}; give a number of at least 0"):
        replace(link, **{what: value})


def test_dearer_moves_take_so_many_times_as_much_and_a_worse_machine_the_same():
    machine = machines.load("cxl-m5")
    assert not any(link.takes_from_compute for link in machine.links)
    links = tuple(replace(x, lost_ns_per_kib=40.0, lost_ns_per_move=2000.0) for x in machine.links)
    priced = replace(machine, links=links)
    assert all(link.takes_from_compute for link in priced.links)
    told = [(x.lost_ns_per_kib, x.lost_ns_per_move) for x in priced.with_moves_dearer(1.5).links]
    assert told == [(60.0, 3000.0)] * 2
    assert priced.with_moves_dearer(0) == machine
    assert [x.lost_ns_per_kib for x in priced.worse().links] == [40.0] * 2


def test_a_machine_whose_moves_take_nothing_is_the_file_that_it_was(tmp_path):
    machine = machines.load("cxl-m5")
    files.save(machine, tmp_path / "free.json")
    assert "lost" not in (tmp_path / "free.json").read_text()
    links = tuple(replace(x, lost_ns_per_kib=40.5, lost_ns_per_move=2000.0) for x in machine.links)
    files.save(replace(machine, links=links), tmp_path / "priced.json")
    assert files.load(tmp_path / "priced.json") == replace(machine, links=links)
    assert files.digest(replace(machine, links=links)) != files.digest(machine)


def test_fast_memory_that_cannot_be_used_in_place_is_refused():
    """The control: slow memory may be like that."""
    machine = machines.load("cxl-m5")
    replace(machine, tiers=(machine.fast, replace(machine.tiers[1], addressable=False)))
    with pytest.raises(UsageError, match="not addressable"):
        replace(machine, tiers=(replace(machine.fast, addressable=False), machine.tiers[1]))
