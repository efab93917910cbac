"""The simulator against schedules computed by hand. One layer takes 1 ms; 1 MB over the link takes 1 ms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentinel.core.errors import PlanError, UsageError
from sentinel.core.laws import check
from sentinel.core.run import OUTCOMES
from sentinel.simulator import lost_to_moves_ns, plain_layer_ns, simulate, simulate_lawful
from tests.builders import GB, make_machine, make_profile, param, persistent_plan
from tests.three_tiers import three_tiers

MB = 256 * 4096  # 1,048,576 bytes: 1,048,576 ns at 1 GB/s
SLOW_EXTRA = MB / 10 - MB / 100  # 10 GB/s instead of 100 GB/s, in ns
LAYER = 1_000_000


def run(profile, plan, machine, **more):
    check(plan, profile, machine)
    return simulate(plan, profile, machine, **more)


def test_everything_in_fast_memory_takes_the_layers_and_nothing_else():
    profile = make_profile([param("a", MB, [1])], 3)
    run_ = run(profile, persistent_plan(profile, [0]), make_machine())
    assert run_.step_ns == 3 * LAYER
    assert len(run_.migrations) == 0
    assert run_.layers["stall_ns"].sum() == run_.layers["slow_ns"].sum() == 0
    assert run_.layers["served_fast_bytes"].sum() == run_.layers["touched_bytes"].sum() == MB


def test_an_access_to_slow_memory_adds_the_difference_of_the_tiers():
    profile = make_profile([param("a", MB, [1])], 3)
    run_ = run(profile, persistent_plan(profile, [1]), make_machine())
    assert run_.step_ns == 3 * LAYER + round(SLOW_EXTRA)
    assert run_.layers["slow_ns"].tolist() == [0, round(SLOW_EXTRA), 0]
    assert run_.layers["served_fast_bytes"].sum() == 0


def test_a_transfer_that_fits_behind_layers_costs_nothing():
    profile = make_profile([param("a", MB, [3])], 8)
    plan = persistent_plan(profile, [1], [(0, 1, 0, 1, 3), (0, 0, 1, 4, 6)], fast_bytes=MB)
    run_ = run(profile, plan, make_machine(MB))
    assert run_.step_ns == 8 * LAYER
    up, down = run_.migrations
    assert (up["start_ns"], up["stop_ns"]) == (1 * LAYER, 1 * LAYER + MB)
    assert (down["start_ns"], down["stop_ns"]) == (4 * LAYER, 4 * LAYER + MB)
    assert run_.counters.cases == {"1": 1, "2": 0, "3": 0}


def test_a_promotion_waits_for_the_room_that_a_demotion_leaves():
    """a leaves in layers 1 to 4, at 250 MB/s; b is to come in the same layers and has no room until a is gone.

    The law of capacity counts both sides of a migration, so no lawful plan gets here; the movers keep the room all the
    same.
    """
    profile = make_profile([param("a", MB, [0]), param("b", MB, [5])], 24)
    moves = [(0, 0, 1, 1, 5), (1, 1, 0, 1, 5), (1, 0, 1, 6, 14), (0, 1, 0, 14, 20)]
    plan = persistent_plan(profile, [0, 1], moves, fast_bytes=MB)
    run_ = simulate_lawful(plan, profile, make_machine(MB, demote=GB // 4))
    begin, end = {}, {}
    for row in run_.migrations:
        begin[int(row["block"]), int(row["target"])] = int(row["start_ns"])
        end[int(row["block"]), int(row["target"])] = int(row["stop_ns"])
    a_down, b_up, b_down = (0, 1), (1, 0), (1, 1)
    assert (begin[a_down], end[a_down]) == (LAYER, LAYER + 4 * MB)
    assert (begin[b_up], end[b_up]) == (end[a_down], end[a_down] + MB)
    stall = LAYER + 5 * MB - 5 * LAYER
    assert stall > 0
    assert run_.layers["stall_ns"].tolist() == [0] * 5 + [stall] + [0] * 18
    assert begin[b_down] == 6 * LAYER + stall
    assert run_.step_ns == 24 * LAYER + stall
    assert run_.steps["fast_peak_bytes"].tolist() == [MB]
    assert run_.counters.cases == {"1": 1, "2": 1, "3": 0}


def test_a_late_transfer_stalls_the_layer_that_needs_it():
    profile = make_profile([param("a", 3 * MB, [2])], 8)
    plan = persistent_plan(profile, [1], [(0, 1, 0, 1, 2), (0, 0, 1, 3, 7)], fast_bytes=3 * MB)
    run_ = run(profile, plan, make_machine(3 * MB))
    stall = 3 * MB - LAYER
    assert run_.step_ns == 8 * LAYER + stall
    assert run_.layers["stall_ns"].tolist() == [0, 0, stall, 0, 0, 0, 0, 0]
    assert run_.migrations["outcome"].tolist() == [OUTCOMES.index("late"), OUTCOMES.index("done")]
    assert run_.counters.cases == {"1": 0, "2": 0, "3": 1}
    assert run(profile, plan, make_machine(3 * MB), steps=3).counters == run_.counters


def test_one_mover_a_direction_takes_jobs_in_order():
    profile = make_profile([param("a", MB, [4]), param("b", MB, [5])], 10)
    moves = [(0, 1, 0, 1, 4), (1, 1, 0, 1, 5), (0, 0, 1, 6, 9), (1, 0, 1, 6, 9)]
    run_ = run(profile, persistent_plan(profile, [1, 1], moves, fast_bytes=2 * MB), make_machine(2 * MB))
    assert run_.migrations["start_ns"].tolist() == [LAYER, LAYER + MB, 6 * LAYER, 6 * LAYER + MB]


@pytest.mark.parametrize(("full_duplex", "starts"), [(True, LAYER), (False, LAYER + MB)])
def test_a_half_duplex_link_carries_one_direction_at_a_time_demotions_first(full_duplex, starts):
    profile = make_profile([param("a", MB, [8]), param("b", MB, [5])], 10)
    moves = [(0, 0, 1, 1, 4), (1, 1, 0, 1, 4), (1, 0, 1, 6, 8), (0, 1, 0, 6, 8)]
    plan = persistent_plan(profile, [0, 1], moves, fast_bytes=2 * MB)
    run_ = run(profile, plan, make_machine(2 * MB, full_duplex=full_duplex))
    first_up = run_.migrations[(run_.migrations["target"] == 0) & (run_.migrations["layer"] == 1)][0]
    assert first_up["start_ns"] == starts


def test_each_direction_has_its_own_speed_and_every_move_its_latency():
    profile = make_profile([param("a", MB, [4])], 10)
    plan = persistent_plan(profile, [1], [(0, 1, 0, 1, 4), (0, 0, 1, 5, 8)], fast_bytes=MB)
    machine = make_machine(MB, promote=2 * GB, demote=GB // 2)
    links = tuple(replace(link, latency_ns=1000 + 500 * link.source) for link in machine.links)
    up, down = run(profile, plan, replace(machine, links=links)).migrations
    assert up["stop_ns"] - up["start_ns"] == MB // 2 + 1500
    assert down["stop_ns"] - down["start_ns"] == 2 * MB + 1000


def test_what_is_held_in_the_mean_is_weighed_by_the_time_of_layers():
    """Of eleven layers of 1, 1, …, 2 ms in all 12 ms: fast in layers 1 to 5, transfers included, 5 ms."""
    profile = make_profile([param("a", MB, [4])], 11, layer_ns=[LAYER] * 10 + [2 * LAYER])
    plan = persistent_plan(profile, [1], [(0, 1, 0, 1, 4), (0, 0, 1, 5, 6)], fast_bytes=MB)
    run_ = run(profile, plan, make_machine(MB, demote=2 * GB, promote=2 * GB))
    held = run_.layers["fast_bytes"] > 0
    assert held.tolist() == [False] + [True] * 5 + [False] * 5
    slow = int(run_.layers["duration_ns"].sum())
    assert run_.fast_mean_bytes == MB * 5 * LAYER // slow
    assert replace(run_, steps=run_.steps[:0]).fast_mean_bytes is None


def test_a_queue_behind_a_late_transfer_makes_the_next_one_late_too():
    profile = make_profile([param("a", 3 * MB, [2]), param("b", MB, [3])], 10)
    moves = [(0, 1, 0, 1, 2), (1, 1, 0, 1, 3), (0, 0, 1, 4, 9), (1, 0, 1, 4, 9)]
    run_ = run(profile, persistent_plan(profile, [1, 1], moves, fast_bytes=4 * MB), make_machine(4 * MB))
    first = 3 * MB - LAYER  # layer 2 waits for a; b has layer 2 for its own 1,048,576 ns
    assert run_.layers["stall_ns"].tolist()[:4] == [0, 0, first, MB - LAYER]
    assert run_.step_ns == 10 * LAYER + first + MB - LAYER


def test_a_tensor_in_two_page_ranges_pays_for_the_slow_one_only():
    profile = make_profile([param("a", MB, [1])], 3)
    whole = persistent_plan(profile, [1], fast_bytes=MB)
    (block,), quarter = whole.blocks, MB // 4
    ranges = (
        replace(block, nbytes=quarter, tier=0, name="a[0:64]"),
        replace(block, offset=quarter, nbytes=MB - quarter, name="a[64:256]"),
    )
    segments = (replace(whole.segments[0], nbytes=quarter, tier=0), replace(whole.segments[0], offset=quarter))
    segments = (segments[0], replace(segments[1], nbytes=MB - quarter))
    run_ = run(profile, replace(whole, blocks=ranges, segments=segments), make_machine(MB))
    assert run_.layers["slow_ns"].tolist() == [0, round(SLOW_EXTRA * 3 / 4), 0]
    assert run_.layers["served_fast_bytes"].tolist() == [0, quarter, 0]


def test_what_is_in_flight_is_served_by_the_slower_side():
    profile = make_profile([param("a", MB, [1, 2, 3])], 6)
    plan = persistent_plan(profile, [0], [(0, 0, 1, 2, 4), (0, 1, 0, 4, 6)], fast_bytes=MB)
    run_ = run(profile, plan, make_machine(MB))
    assert run_.layers["slow_ns"].tolist() == [0, 0, round(SLOW_EXTRA), round(SLOW_EXTRA), 0, 0]


def test_transfers_across_the_end_of_the_step_settle():
    profile = make_profile([param("a", MB, [2])], 6)
    plan = persistent_plan(profile, [1], [(0, 0, 1, 3, 4), (0, 1, 0, 5, 7)], fast_bytes=MB)
    run_ = run(profile, plan, make_machine(MB), steps=3)
    assert np.unique(run_.steps["duration_ns"]).tolist() == [
        6 * LAYER + (MB - LAYER)
    ]  # the demotion of layer 3 is late
    assert run_.steps["step"].tolist() == [0, 1, 2]


def test_a_layer_on_a_described_machine_takes_the_larger_of_flops_and_traffic():
    profile = make_profile([param("a", MB, [0, 1])], 2, flops=[10**9, 0])
    run_ = run(profile, persistent_plan(profile, [0]), make_machine(flops_per_s=1e12))
    assert run_.layers["duration_ns"].tolist() == [1_000_000, round(MB / 100)]


def test_reads_and_writes_have_speeds_of_their_own():
    profile = make_profile([param("a", MB, [0])], 1)
    a = profile.accesses
    a["read_bytes"], a["written_bytes"] = 0, MB
    plan = persistent_plan(profile, [1])
    fast_write = run(profile, plan, make_machine(slow_bw=10 * GB)).step_ns
    slow_write = run(profile, plan, make_machine(slow_bw=10 * GB, slow_write_bw=2 * GB)).step_ns
    assert slow_write - fast_write == pytest.approx(MB / 2 - MB / 10, abs=1)


def test_load_lengthens_latencies():
    profile = make_profile([param("a", MB, [0])], 1)
    idle = make_machine()
    slow = replace(idle.tiers[1], latency_ns=1000)
    plan = persistent_plan(profile, [1])
    before = run(profile, plan, replace(idle, tiers=(idle.tiers[0], slow))).step_ns
    after = run(profile, plan, replace(idle, tiers=(idle.tiers[0], replace(slow, loaded_latency_a=2.0)))).step_ns
    use = MB / 10 / before
    assert after - before == pytest.approx(1000 * 2.0 * use / (1 - use), abs=1)


MOVED_LOSES = 1024 * 256  # ns: 1,024 KiB at 256 ns each, a quarter of what MB takes over the link


def test_compute_beside_a_move_is_longer_by_what_its_bytes_take_and_by_what_each_move_takes():
    """Layer 1 computes at three quarters of its pace for the 1,048,576 ns of the move, and then for itself."""
    profile = make_profile([param("a", MB, [3])], 8)
    plan = persistent_plan(profile, [1], [(0, 1, 0, 1, 3), (0, 0, 1, 4, 6)], fast_bytes=MB)
    by_bytes = run(profile, plan, make_machine(MB, lost_ns_per_kib=256))
    longer = [0, MOVED_LOSES, 0, 0, MOVED_LOSES, 0, 0, 0]
    assert by_bytes.layers["duration_ns"].tolist() == [LAYER + ns for ns in longer]
    assert by_bytes.step_ns == 8 * LAYER + 2 * MOVED_LOSES
    by_moves = run(profile, plan, make_machine(MB, lost_ns_per_move=70_000))
    assert by_moves.layers["duration_ns"].tolist() == [LAYER + ns for ns in (0, 70_000, 0, 0, 70_000, 0, 0, 0)]
    both = run(profile, plan, make_machine(MB, lost_ns_per_kib=256, lost_ns_per_move=70_000))
    assert both.step_ns == 8 * LAYER + 2 * (MOVED_LOSES + 70_000)
    assert both.layers["stall_ns"].sum() == both.layers["slow_ns"].sum() == 0


def test_what_moves_over_several_layers_takes_from_each_what_moves_in_it():
    """At a quarter of the rate: 4,194,304 ns under way, a sixteenth of each."""
    profile = make_profile([param("a", MB, [7])], 16)
    plan = persistent_plan(profile, [1], [(0, 1, 0, 1, 7), (0, 0, 1, 8, 14)], fast_bytes=MB)
    run_ = run(profile, plan, make_machine(MB, promote=GB // 4, demote=GB // 4, lost_ns_per_kib=256))
    while_moving = -(-LAYER * 16 // 15)
    last = LAYER + round((4 * MB - 3 * while_moving) / 16)
    assert run_.layers["duration_ns"].tolist()[:6] == [LAYER, *[while_moving] * 3, pytest.approx(last, abs=1), LAYER]


def test_what_moves_while_a_layer_waits_takes_nothing_more():
    """All of the promotion is under way before layer 2 begins, which waits for it: as long as if it took nothing."""
    profile = make_profile([param("a", 3 * MB, [2])], 8)
    plan = persistent_plan(profile, [1], [(0, 1, 0, 1, 2), (0, 0, 1, 3, 7)], fast_bytes=3 * MB)
    run_ = run(profile, plan, make_machine(3 * MB, lost_ns_per_kib=256))
    spent = -(-LAYER * 4 // 3)
    assert run_.layers["duration_ns"].tolist()[:2] == [LAYER, spent]
    assert run_.layers["stall_ns"].tolist() == [0, 0, 3 * MB - spent, 0, 0, 0, 0, 0]
    demoting = 3 * MOVED_LOSES
    assert run_.step_ns == pytest.approx(7 * LAYER + 3 * MB + demoting, abs=8)  # a ns a layer of rounding


def test_a_move_that_leaves_nothing_for_compute_is_waited_for():
    profile = make_profile([param("a", MB, [3])], 8)
    plan = persistent_plan(profile, [1], [(0, 1, 0, 1, 3), (0, 0, 1, 4, 6)], fast_bytes=MB)
    run_ = run(profile, plan, make_machine(MB, lost_ns_per_kib=5000))
    assert run_.layers["duration_ns"].tolist() == [LAYER + ns for ns in (0, MB, 0, 0, MB, 0, 0, 0)]


def test_the_tables_of_a_run_tell_what_moves_took_and_what_layers_took_by_themselves():
    profile = make_profile([param("a", 3 * MB, [2]), param("b", MB, [5])], 12)
    moves = [(0, 1, 0, 1, 2), (0, 0, 1, 3, 9), (1, 1, 0, 4, 5), (1, 0, 1, 6, 9)]
    plan = persistent_plan(profile, [1, 1], moves, fast_bytes=4 * MB)
    free, machine = make_machine(4 * MB), make_machine(4 * MB, lost_ns_per_kib=100, lost_ns_per_move=3000)
    run_ = run(profile, plan, machine, steps=4)
    assert lost_to_moves_ns(run_, free).tolist() == [0.0] * 48
    lost = lost_to_moves_ns(run_, machine)
    base = run_.layers["duration_ns"] - run_.layers["stall_ns"] - run_.layers["slow_ns"]
    assert (base - LAYER).tolist() == pytest.approx(lost.tolist(), abs=2)
    assert lost.max() > 100_000
    assert plain_layer_ns(run_, 12, machine).tolist() == pytest.approx([LAYER] * 12, abs=2)
    assert plain_layer_ns(run_, 12).sum() > 12 * LAYER + 300_000  # the control


def test_a_plan_without_room_is_told_not_waited_for():
    profile = make_profile([param("a", MB, [1]), param("b", MB, [2])], 4)
    plan = persistent_plan(profile, [0, 1], [(1, 1, 0, 0, 2), (1, 0, 1, 2, 3)], fast_bytes=MB)
    with pytest.raises(PlanError, match="room that never comes"):
        simulate_lawful(plan, profile, make_machine(MB))
    with pytest.raises(PlanError, match="capacity"):
        simulate(plan, profile, make_machine(MB))


def test_a_plan_of_another_profile_is_refused():
    profile, other = make_profile([param("a", MB, [1])], 3), make_profile([param("a", MB, [1])], 4)
    with pytest.raises(UsageError, match="simulate a plan with the profile"):
        simulate(persistent_plan(profile, [0]), other, make_machine())


@pytest.mark.timeout(60)  # such a simulation had no end
@pytest.mark.parametrize(
    ("layer_ns", "link_bytes_per_s"),
    [(1 << 60, GB), ((1 << 63) - 1, GB), (LAYER, 1)],
    ids=["layers", "longest_layers", "links"],
)
def test_a_step_that_is_too_long_for_tables_of_times_is_refused(layer_ns, link_bytes_per_s):
    profile = make_profile([param(f"w{i}", 512 * MB, range(200)) for i in range(40)], 200, layer_ns=layer_ns)
    machine = make_machine(512 * MB, promote=link_bytes_per_s, demote=link_bytes_per_s)
    moves = [(i, *move) for i in range(40) for move in ((1, 0, 4 * i, 4 * i + 2), (0, 1, 4 * i + 2, 4 * i + 4))]
    plan = persistent_plan(profile, [1] * 40, moves, fast_bytes=512 * MB)
    with pytest.raises(UsageError, match=r"on machine built, which is too long to simulate.*bytes per second.*FLOP"):
        simulate(plan, profile, machine)


def test_a_migration_where_the_machine_has_no_link_is_named():
    """Links join the fast tier with each other one."""
    profile = make_profile([param("a", MB, [3])], 8)
    plan = persistent_plan(profile, [1], [(0, 1, 2, 1, 3), (0, 2, 1, 4, 6)])
    plan = replace(plan, tier_names=("fast", "middle", "slow"), capacity_bytes=(1 << 30, 1 << 30, 1 << 40))
    with pytest.raises(PlanError, match=r"block 0.*migrates from middle to slow, where three has no link"):
        simulate(plan, profile, three_tiers())
