"""The few sentences on top of a report, and the step that its timeline shows."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from sentinel.core.run import REASONS, Run
from sentinel.core.units import format_bytes
from sentinel.reports import Setup, build_report
from sentinel.reports.html.lanes import lanes, typical_step
from sentinel.reports.html.page import page
from sentinel.reports.setup import BucketRow
from sentinel.reports.summary import summary
from sentinel.system.host_load import HostLoad
from tests.builders import MIB, make_machine
from tests.unit.report_builders import MACHINE, PLAN, PROFILE, SIMULATED, executed, full_report, report_on_a_file


def said(**given) -> dict[str, str]:
    setup = given.pop("setup", Setup())
    return dict(summary(build_report(profile=PROFILE, plan=PLAN, machine=MACHINE, setup=setup, **given).headline))


def test_memory_saved_and_what_it_costs_come_first() -> None:
    headline = full_report().headline
    told = summary(headline)
    assert [what for what, _ in told] == ["memory", "speed", "once", "next"]
    footprint = headline["peak_bytes"]
    saved = round(100 * (footprint - headline["fast_capacity_bytes"]) / footprint)
    assert told[0][1] == f"8.00 MiB of fast memory instead of {format_bytes(footprint)}: {saved}% less"
    times = headline["step_ns_applied"] / 81_000_000
    assert f"{times:.2f} times a stock step (81.00 ms, an estimate), injected delays included" in told[1][1]
    assert told[2][1].startswith("18 ns")  # 7 of set-up and 11 of planning


def test_injected_delays_are_said_of_the_step_where_it_is_compared_with_none() -> None:
    told = dict(summary(full_report().headline | {"busy_applied_share": 0.9}))["speed"]
    assert ", injected delays included; the host was busy, so it is not compared with a stock step; " in told


@pytest.mark.parametrize(
    ("given", "takes", "advice"),
    [
        ({"executed": executed(emulated=False)}, "takes", "--executed"),
        ({"executed": executed()}, "takes", "moves pages for real"),
        ({"simulated": SIMULATED}, "would take", "sentinel run --plan"),
        (
            {"simulated": SIMULATED, "setup": Setup(slow="cxl-asic-x8", kind="declared")},
            "would take",
            "`--slow emulated:cxl-asic-x8` runs it here",
        ),
        (
            {"simulated": SIMULATED, "setup": Setup(slow="cxl", kind="declared")},  # as the tier of cxl-m5 is called
            "would take",
            "`--slow emulated:PRESET` runs it here",
        ),
    ],
)
def test_what_to_do_next_follows_from_what_was_done(given: dict, takes: str, advice: str) -> None:
    told = said(**given)
    assert f"a step {takes} " in told["speed"]
    assert ("injected delays included" in told["speed"]) == (advice == "moves pages for real")
    assert advice in told["next"]


def test_what_is_unknown_is_not_said() -> None:
    assert summary(build_report().headline) == []
    assert "speed" not in dict(summary(build_report(profile=PROFILE).headline))
    assert "In short" not in build_report().text()


def test_a_host_whose_speed_changed_gives_no_ratio() -> None:
    """The stock step is estimated from the step that was profiled; a busy host then is no speed-up now."""
    steps = executed().steps.copy()
    steps["duration_ns"] = SIMULATED.step_ns // 3
    told = said(executed=executed(steps=steps, layers=executed().layers[:0]), simulated=SIMULATED)
    assert "cannot be compared with a stock step" in told["speed"]
    assert "times a stock step" not in told["speed"]
    assert "times a stock step" in said(executed=executed(), simulated=SIMULATED)["speed"]
    runs = {"executed": executed(steps=steps, layers=executed().layers[:0]), "simulated": SIMULATED}
    for setup, compared in ((Setup(), 1), (loads(0.34, 0.12), 0)):
        caveats = build_report(profile=PROFILE, plan=PLAN, machine=MACHINE, setup=setup, **runs).caveats
        assert sum("Predicted and executed step differ" in each for each in caveats) == compared, "if others kept off"


def loads(profiled: float | None, applied: float | None, waited: float | None = 0.0) -> Setup:
    """What others had is known of the applied steps only."""
    first, then = HostLoad(10**9, profiled, 0.0, None), HostLoad(10**9, waited, 0.0, applied)
    return Setup(profiled_load=first, applied_load=then)


@pytest.mark.parametrize(
    ("setup", "told"),
    [
        (loads(0.34, 0.05), "busy: for 34% of the profiled step the training thread waited"),
        (loads(0.05, 0.12), "busy: for 12% of the applied steps others had the processors. The times"),
        (loads(0.34, 0.12), "others had the processors; for 34% of the profiled step the training thread waited"),
    ],
)
def test_a_busy_host_is_the_first_caveat_and_no_ratio_is_stated(setup: Setup, told: str) -> None:
    report = build_report(profile=PROFILE, plan=PLAN, machine=MACHINE, executed=executed(), setup=setup)
    assert report.caveats[0].startswith("The host was busy: ")
    assert told in report.caveats[0]
    waits = "the training thread waited" in told
    assert ("a limit of the container" in report.caveats[0]) == waits  # what waits for its quota waits likewise
    assert ("what others had is not known there" in report.caveats[0]) == waits
    assert "the host was busy, so it is not compared" in dict(report.heading.summary)["speed"]
    for form in (report.text(), page(report)):
        words = " ".join(form.split())
        assert "not compared: the host was busy" in words
        assert not re.search(r"times a stock step|of plain|× plain|of applied|against applied", words)


def test_a_host_that_was_hardly_busy_changes_nothing() -> None:
    report = build_report(profile=PROFILE, plan=PLAN, machine=MACHINE, executed=executed(), setup=loads(0.1, None))
    assert not any("busy" in caveat for caveat in report.caveats)
    words = " ".join(report.text().split())
    assert "times a stock step" in words
    assert "host busy 10.0% in the profiled step, 0.0% in the applied steps" in words
    assert "; not known in the profiled step: waits instead" in words
    assert "host busy" not in build_report(profile=PROFILE, executed=executed()).text()


def test_what_the_job_s_own_threads_make_it_wait_is_told_and_not_judged() -> None:
    """As movers do that copy on the processors that compute."""
    setup = loads(0.0, 0.02, waited=0.34)
    report = build_report(profile=PROFILE, plan=PLAN, machine=MACHINE, executed=executed(), setup=setup)
    words = " ".join(report.text().split())
    assert "times a stock step" in words
    assert "The host was busy" not in words
    assert "waits 0.0% in the profiled step, 34.0% in the applied steps" in words
    said = "waited for a processor: 34% of the time in the applied steps, while others had 2% of the processors."
    assert any(said in caveat for caveat in report.caveats)
    assert report.headline["busy_applied_share"] == 0.02


def test_the_spread_of_steps_stands_beside_their_median() -> None:
    run = timed([200_000_000, 100_000_000, 300_000_000], [True] * 3)
    report = build_report(profile=PROFILE, plan=PLAN, machine=MACHINE, executed=run)
    h = report.headline
    assert [h[f"step_ns_applied{which}"] for which in ("_p10", "", "_p90")] == [120_000_000, 200_000_000, 280_000_000]
    spread = "p10 to p90: 120.00 ms to 280.00 ms"
    assert f"a step takes 200.00 ms ({spread})" in dict(report.heading.summary)["speed"]
    assert spread in page(report).split('class="cards"')[1].split("Served from fast")[0]
    assert f"step, spread {spread} of the applied steps" in " ".join(report.text().split())
    alone = build_report(executed=timed([200_000_000, 100_000_000, 300_000_000], [True, False, False]))
    assert alone.headline["step_ns_applied_p10"] is None
    assert "p10" not in alone.text()


@pytest.mark.parametrize(("setup", "grey"), [(loads(0.05, 0.12), 3), (loads(0.05, 0.09), 0)])
def test_times_of_a_busy_host_are_grey(setup: Setup, grey: int) -> None:
    html = page(build_report(profile=PROFILE, plan=PLAN, machine=MACHINE, executed=executed(), setup=setup))
    found = re.findall('<div class="card doubtful"><h3>(.*?)</h3>', html)
    assert found == ["Step, applied", "Predicted", "Stall a step"][:grey]


def test_processor_time_stands_beside_the_load() -> None:
    run = replace(executed(), counters=replace(executed().counters, steps=4))
    report = build_report(profile=PROFILE, plan=PLAN, machine=MACHINE, executed=run, setup=loads(0.05, 0.12))
    assert report.headline["cpu_ns_per_applied_step"] == 10**9 // 4
    told = "processor time 1.00 s in the profiled step, 250.00 ms an applied one"
    assert told in " ".join(report.text().split())


def test_processor_time_is_shared_by_the_steps_of_all_plans_and_shapes() -> None:
    run = replace(executed(), counters=replace(executed().counters, steps=4, steps_before=16))
    setup = loads(0.05, 0.12)
    assert build_report(executed=run, setup=setup).headline["cpu_ns_per_applied_step"] == 10**9 // 20
    shapes = (BucketRow("0", 20, 1, 0, 0), BucketRow("unknown", 5, 1, 0, 0))
    setup = replace(setup, buckets=shapes)
    assert build_report(executed=run, setup=setup).headline["cpu_ns_per_applied_step"] == 10**9 // 25


def test_a_plan_with_room_for_all_saves_nothing() -> None:
    from sentinel import planner

    roomy = make_machine(1 << 30)
    report = build_report(profile=PROFILE, plan=planner.plan(PROFILE, roomy, "all-fast"), machine=roomy)
    assert "all in fast memory" in dict(summary(report.headline))["memory"]
    assert "less" not in dict(summary(report.headline))["memory"]


def timed(durations: list[int], in_step: list[bool]) -> Run:
    """The executed run, its steps having these times."""
    steps = executed().steps.copy()
    steps["duration_ns"], steps["in_step"] = durations, in_step
    return executed(steps=steps)


@pytest.mark.parametrize(
    ("durations", "in_step", "chosen"),
    [
        ([90, 100, 5900], [True, True, True], 1),  # the last one held a pause
        ([5900, 100, 90], [True, True, True], 1),
        ([100, 100, 100], [True, True, True], 2),
        ([100, 120, 90], [False, True, False], 1),
        ([100, 120, 90], [False, False, False], None),
    ],
)
def test_the_timeline_shows_a_typical_step(durations: list[int], in_step: list[bool], chosen: int | None) -> None:
    run = timed(durations, in_step)
    numbers = run.steps["step"].tolist()
    assert typical_step(run) == (None if chosen is None else numbers[chosen])
    shown = lanes(run, PLAN, PROFILE.layers)
    assert (shown == "") if chosen is None else (f"Step {numbers[chosen]}, the one nearest the median" in shown)


def test_a_step_without_migrations_is_not_shown() -> None:
    run = timed([90, 100, 110], [True, True, True])
    moves = run.migrations[run.migrations["step"] != run.steps["step"][1]]
    assert typical_step(executed(steps=run.steps, migrations=moves)) != run.steps["step"][1]
    assert typical_step(executed(migrations=np.empty(0, run.migrations.dtype))) is None


def test_what_is_moved_once_only_is_no_migration_of_a_step() -> None:
    """A plan that moves nothing within a step: what it moves as it begins and ends is not drawn, all steps count."""
    run = executed()
    moves = run.migrations[run.migrations["step"] == run.steps["step"][0]][:2].copy()
    moves["reason"] = [REASONS.index("initial"), REASONS.index("restore")]
    once = executed(migrations=moves)
    assert typical_step(once) is None
    assert lanes(once, PLAN, PROFILE.layers) == ""
    again = run.migrations[run.migrations["step"] == run.steps["step"][0]][2:]
    both = executed(migrations=np.concatenate([moves, again]))
    assert f", {len(again)} migrations," in lanes(both, PLAN, PROFILE.layers)
    report = build_report(profile=PROFILE, plan=PLAN, executed=once)
    assert "Migrations over 3 steps" in page(report)
    assert "Migrations, over 3 steps" in report.text()


@pytest.mark.parametrize(
    ("least", "most", "read", "said", "had"),
    [
        (264, 614, 0, "264.00 MiB of tensors, all in memory", 264),
        (32, 614, 0, "264.00 MiB of tensors, all in memory", 264),  # it was less before there were as many tensors
        (32, 614, 1, "32.00 MiB to 614.00 MiB of memory for 264.00 MiB of tensors", 32),
        (32, 66, 1, "66.00 MiB of memory for 264.00 MiB of tensors: 75% less", 66),
    ],
)
def test_tensors_on_a_file_were_all_in_memory_only_where_there_always_was_room(
    least: int, most: int, read: int, said: str, had: int
) -> None:
    """A container's limit may be lowered while the job runs."""
    pool = {"least_pool_bytes": least * MIB, "most_pool_bytes": most * MIB}
    told = report_on_a_file(**pool, tensor_peak_bytes=264 * MIB, read_bytes=read)
    assert dict(told.heading.summary)["memory"] == said
    assert told.headline["fast_capacity_bytes"] == had * MIB
    assert "footprint" not in told.text()


def test_where_tensors_found_no_room_less_memory_is_not_claimed() -> None:
    """A validation with batches larger than the budget takes ordinary memory."""
    pool = {"least_pool_bytes": 32 * MIB, "most_pool_bytes": 32 * MIB}
    told = report_on_a_file(**pool, tensor_peak_bytes=52 * MIB, refused=9, elsewhere_peak_bytes=364 * MIB)
    said = dict(told.heading.summary)["memory"]
    assert said == "32.00 MiB of memory for 52.00 MiB of tensors; others took up to 364.00 MiB more"
