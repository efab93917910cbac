"""Tensors whose tier is fixed stay there under every policy; the others are planned around them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentinel.core import pins as pins_module
from sentinel.core.errors import UsageError
from sentinel.core.extents import merge_extents
from sentinel.core.pins import FAST, FREE, SLOW, Pins, patterns_in, pins_of, put_back, rest_of
from sentinel.planner import POLICIES, bound, footprint_bytes, plan
from sentinel.reports.sections.pin_table import PINS
from sentinel.simulator import simulate
from tests.builders import GB, MIB, act, make_machine, make_profile, param
from tests.three_tiers import three_tiers

LAYERS = 8


def job():
    """Parameters a to d, of which d is used most; activations across the step."""
    specs = [param(name, 8 * MIB, [k, LAYERS - 1 - k]) for k, name in enumerate(("embed.a", "embed.b", "c"))]
    specs.append(param("d", 8 * MIB, range(LAYERS)))
    specs.append(param("tiny", 2000, [1]))
    specs += [act(f"x{k}", 4 * MIB, k, LAYERS - k, [LAYERS - 1 - k]) for k in range(3)]
    return make_profile(specs, LAYERS)


def tiers_of(made, profile, name):
    """In which tiers the bytes of a tensor are, in any layer."""
    index = profile.names.index(name)
    blocks = [number for number, block in enumerate(made.blocks) if index in block.tensors]
    return {int(tier) for tier in np.unique(made.placement[blocks]) if tier >= 0}


@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in ("autotm", "all-fast")])
@pytest.mark.parametrize("flops_per_s", [None, 1e12])
def test_every_policy_keeps_them(policy, flops_per_s):
    profile = replace(job(), flops=np.full(LAYERS, 10**9))
    machine = make_machine(24 * MIB, promote=8 * GB, demote=8 * GB, flops_per_s=flops_per_s)
    pins = Pins(fast=("embed.*",), slow=("d",))
    made = plan(profile, machine, policy, pins=pins)  # checked against the laws of the whole profile
    assert tiers_of(made, profile, "embed.a") == tiers_of(made, profile, "embed.b") == {0}
    assert tiers_of(made, profile, "d") == {1}
    assert made.fast_peak_bytes <= machine.fast.capacity_bytes == made.capacity_bytes[0]
    assert made.predicted_step_ns == simulate(made, profile, machine).step_ns
    assert made.footprint_bytes == footprint_bytes(profile)


def test_what_is_not_kept_may_be_elsewhere():
    profile, machine = job(), make_machine(24 * MIB)
    free = plan(profile, machine)
    assert tiers_of(free, profile, "d") == {0}, "used in every layer: the first to be fast"
    assert "pins" not in free.details


def test_each_tensor_is_told_with_what_it_saves_or_costs():
    profile, machine = job(), make_machine(24 * MIB, fast_bw=100 * GB, slow_bw=10 * GB)
    made = plan(profile, machine, pins=Pins(fast=("c",), slow=("d",)))
    told = {row["name"]: row for row in made.details["pins"]["tensors"]}
    once = 8 * MIB * (1 / 10 - 1 / 100)  # ns: bytes over GB/s
    assert told["c"] == {"name": "c", "nbytes": 8 * MIB, "tier": "fast", "slow_use_ns": pytest.approx(2 * once, abs=1)}
    assert told["d"]["tier"] == "slow"
    assert told["d"]["slow_use_ns"] == pytest.approx(LAYERS * once, abs=1)
    assert pins_of(made.details) == Pins(fast=("c",), slow=("d",))


def test_the_bound_is_one_of_plans_that_keep_them():
    profile, machine = job(), make_machine(24 * MIB, promote=8 * GB, demote=8 * GB)
    pins = Pins(slow=("d",))
    kept, free = plan(profile, machine, pins=pins), plan(profile, machine)
    constrained, loose = bound(profile, machine, pins=pins), bound(profile, machine)
    assert free.predicted_step_ns < kept.predicted_step_ns
    assert loose.step_ns < constrained.step_ns <= kept.predicted_step_ns
    assert constrained.step_ns > 0.9 * kept.predicted_step_ns


@pytest.mark.parametrize("whole", [True, False])
def test_page_ranges_of_a_pinned_tensor_stay_together(whole, cut_job):
    profile = merge_extents(cut_job) if whole else cut_job
    machine = make_machine(10 * MIB)
    made = plan(profile, machine, pins=Pins(slow=("table",)))
    index = profile.names.index("table")
    mine = [block for block in made.blocks if index in block.tensors]
    assert [(block.tier, block.nbytes) for block in mine] == [(1, 16 * MIB)]


@pytest.fixture
def cut_job():
    from sentinel.core.extents import RANGE_DTYPE, cut_extents

    specs = [param("table", 16 * MIB, [0, 3]), param("w", 8 * MIB, range(4))]
    whole = make_profile(specs, 4)
    pages = 16 * MIB // 4096
    ranges = np.array([(0, layer, 0, pages // 4, pages // 4, -1) for layer in (0, 3)], RANGE_DTYPE)
    cut = cut_extents(whole, ranges)
    assert cut.is_cut
    return cut


def test_merging_some_leaves_the_others_cut(cut_job):
    none = merge_extents(cut_job, np.array([False, True]))
    assert np.array_equal(none.extents, cut_job.extents)
    assert np.array_equal(none.accesses, cut_job.accesses)
    some = merge_extents(cut_job, np.array([True, False]))
    assert np.array_equal(some.accesses, merge_extents(cut_job).accesses)


def test_too_much_to_keep_fast_is_an_error_that_names_sizes():
    profile, machine = job(), make_machine(12 * MIB)
    with pytest.raises(UsageError, match=r"16\.00 MiB, the budget .* is 12\.00 MiB: embed\.a \(8\.00 MiB\)"):
        plan(profile, machine, pins=Pins(fast=("embed.*",)))


@pytest.mark.parametrize(("fast", "slow"), [("embed.[ab]", "embed.*"), ("embed.a", "embed.a")])
def test_one_tensor_in_both_by_words_of_one_kind_is_an_error(fast, slow):
    with pytest.raises(UsageError, match=r"embed\.a matches 'embed\..*' of keep_fast and 'embed\..*' of keep_slow"):
        plan(job(), make_machine(24 * MIB), pins=Pins(fast=(fast,), slow=(slow,)))


def test_a_name_itself_counts_more_than_a_pattern_and_the_rest_of_that_stays():
    profile = job()
    made = plan(profile, make_machine(24 * MIB), pins=Pins(fast=("embed.*",), slow=("embed.a",)))
    assert (tiers_of(made, profile, "embed.a"), tiers_of(made, profile, "embed.b")) == ({1}, {0})
    assert "embed.a slow, not as 'embed.*'" in pins_of(made.details).overruled(profile)
    other = Pins(fast=("embed.a",), slow=("embed.*", "c"))
    homes = other.homes(profile)
    assert [homes[profile.names.index(name)] for name in ("embed.a", "embed.b", "c")] == [FAST, SLOW, SLOW]
    assert "embed.a fast, not as 'embed.*'" in other.overruled(profile)
    assert Pins(fast=("c",), slow=("embed.*",)).overruled(profile) == ""


def test_small_ones_are_kept_fast_and_a_name_wins_over_size():
    profile = job()
    small = Pins(smallest_bytes=4096).homes(profile)
    assert [small[profile.names.index(name)] for name in ("tiny", "d")] == [FAST, FREE]
    named = Pins(slow=("tiny",), smallest_bytes=4096).homes(profile)
    assert named[profile.names.index("tiny")] == SLOW
    made = plan(profile, make_machine(24 * MIB), pins=Pins(smallest_bytes=4096))
    assert tiers_of(made, profile, "tiny") == {0}


def test_what_lives_within_a_step_is_not_pinned():
    profile = job()
    pins = Pins(fast=("x*", "nothing"))
    assert (pins.homes(profile) == FREE).all()
    assert pins.idle(profile) == ("x*", "nothing")
    assert Pins(fast=("d",)).idle(profile) == ()


def test_names_are_looked_up_and_only_patterns_are_matched(monkeypatch):
    profile, tried = job(), []
    monkeypatch.setattr(pins_module, "fnmatchcase", lambda name, pattern: tried.append(pattern))
    assert Pins(fast=("nothing", "d"), slow=("e*",)).idle(profile) == ("nothing", "e*")
    assert set(tried) == {"e*"}


def test_slow_memory_that_cannot_be_used_in_place_keeps_nothing():
    machine = make_machine(24 * MIB, addressable=False)
    with pytest.raises(UsageError, match=r"8\.00 MiB are in keep_slow.*used in place"):
        plan(job(), machine, pins=Pins(slow=("d",)))
    assert plan(job(), make_machine(64 * MIB, addressable=False), pins=Pins(fast=("d",))).details["pins"]


def test_of_several_slower_tiers_the_first_that_has_room():
    profile = job()
    machine = three_tiers(fast_bytes=24 * MIB, middle_bytes=4 * MIB)
    made = plan(profile, machine, pins=Pins(slow=("d",)))
    assert tiers_of(made, profile, "d") == {2}


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, ()), ("a.*, b", ("a.*", "b")), (["a", "b*"], ("a", "b*")), ("", ())],
)
def test_patterns(text, expected):
    assert patterns_in(text, "keep_fast") == expected


@pytest.mark.parametrize("text", [3, ["a", 3], {"a": 1}])
def test_what_is_no_pattern(text):
    with pytest.raises(UsageError, match="is not a pattern of names"):
        patterns_in(text, "keep_fast")


@pytest.mark.parametrize("details", [{}, {"pins": None}, {"pins": []}, {"pins": {"fast": "x", "smallest_bytes": -1}}])
def test_details_of_others_hold_no_pins(details):
    assert not pins_of(details)


def test_a_policy_sees_neither_what_is_pinned_nor_its_room():
    profile, machine = job(), make_machine(24 * MIB, slow_bytes=256 * MIB)
    rest = rest_of(profile, machine, Pins(fast=("embed.a",), slow=("d",)))
    managed = {profile.names[i] for i in np.flatnonzero(rest.profile.tensors["managed"])}
    assert managed == set(profile.names) - {"embed.a", "d"}
    assert [tier.capacity_bytes for tier in rest.machine.tiers] == [16 * MIB, 248 * MIB]
    lost = rest.profile.layer_ns - profile.layer_ns
    assert (lost == int(8 * MIB * (1 / 10 - 1 / 100))).all(), "d is read in each layer, from slow memory"
    around = plan(rest.profile, rest.machine, "best-static")
    whole = put_back(around, rest, profile, machine)
    assert [slot.name for slot in whole.slots if slot.offset < 16 * MIB] == ["embed.a", "d"]
    assert len(whole.blocks) == len(around.blocks) + 2


def test_a_report_has_a_row_for_each():
    class Report:
        class facts:
            plan = plan(job(), make_machine(24 * MIB), pins=Pins(fast=("c",), slow=("d",)))

    rows = PINS.text(Report).rows
    assert [row[:2] for row in rows] == [("tensor", "size"), ("d", "8.00 MiB"), ("c", "8.00 MiB")]
    assert rows[1][2].startswith("kept in slow, costs ")
    assert rows[2][2].startswith("kept fast, saves ")
    Report.facts.plan = replace(Report.facts.plan, details={})
    assert PINS.text(Report).rows == ()
