"""The answers on top of a report: where time goes, which tensors hurt, what moved, what more memory would bring."""

from __future__ import annotations

import dataclasses
import re
from importlib import resources
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sentinel import planner
from sentinel.cli.story import worst
from sentinel.core.pins import Pins, kept_in
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.run import LAYER_DTYPE, MIGRATION_DTYPE, OUTCOMES, Run
from sentinel.core.units import PAGE_BYTES
from sentinel.reports import Report, Setup, build_report
from sentinel.reports import fast_memory_points as points_module
from sentinel.reports.alike import alike
from sentinel.reports.facts import Facts
from sentinel.reports.fast_memory_points import KnownPoints, fast_memory_points
from sentinel.reports.grades import Grades, sentence
from sentinel.reports.html.heat import MAX_TENSORS, chosen
from sentinel.reports.html.memory_curve import memory_curve
from sentinel.reports.html.page import page
from sentinel.reports.html.part_bars import Part, Ranked, part_bars, ranked_bars
from sentinel.reports.html.shell import graded_caveats
from sentinel.reports.sections import more_fast_memory, moved_tensors, slow_tensors, step_time
from sentinel.reports.step_parts import step_parts
from sentinel.reports.tensor_costs import moves_of, slow_accesses, waits
from sentinel.simulator import simulate
from sentinel.system.host_load import HostLoad
from tests.builders import GB, MIB, make_machine, make_profile, param, persistent_plan
from tests.unit.report_builders import MACHINE, PLAN, PROFILE, SETUP, SIMULATED, executed, full_report

SLOW = make_machine(64 * MIB, fast_bw=100 * GB, slow_bw=10 * GB)


def two_tensors() -> Profile:
    """Each read in two of four layers of 1 ms."""
    return make_profile([param("a.0.w", 10 * MIB, [0, 1]), param("a.1.w", 5 * MIB, [2, 3])], 4)


@pytest.mark.parametrize(
    ("names", "groups", "shown"),
    [
        (["h.0.w", "h.1.w", "h.1.b"], [0, 0, 1], ["h.*.w", "h.1.b"]),
        (
            ["h.0:forward/mul#2", "h.7:forward/mul#2", "h.7:forward/mul#3"],
            [0, 0, 1],
            ["h.*:forward/mul#2", "h.7:forward/mul#3"],
        ),
        (["layer1.w", "layer2.w"], [0, 1], ["layer1.w", "layer2.w"]),  # a number within a word is a part of it
        (["0", "1", "x~2"], [0, 0, 1], ["*", "x~2"]),
        ([], [], []),
    ],
)
def test_names_that_differ_in_a_number_of_their_own_are_alike(
    names: list[str], groups: list[int], shown: list[str]
) -> None:
    found = alike(names)
    assert (found.of.tolist(), list(found.names)) == (groups, shown)
    assert [found.label(g) for g in range(len(shown))] == [
        name if groups.count(g) == 1 else f"{name} ×{groups.count(g)}" for g, name in enumerate(shown)
    ]


def test_a_tensor_in_slow_memory_loses_the_difference_of_the_tiers() -> None:
    profile = two_tensors()
    plan = persistent_plan(profile, [1, 0])
    found = slow_accesses(profile, plan, SLOW)
    assert found.nbytes.tolist() == [20 * MIB, 0]
    assert found.ns is not None
    lost = 20 * MIB * (1e9 / (10 * GB) - 1e9 / (100 * GB))
    assert found.ns.tolist() == pytest.approx([lost, 0])
    run = simulate(plan, profile, SLOW)
    assert found.ns.sum() == pytest.approx(float(run.layers["slow_ns"].sum()), abs=len(run.layers))
    unknown = slow_accesses(profile, plan, None)
    assert unknown.ns is None
    assert unknown.nbytes.tolist() == found.nbytes.tolist()


def test_what_a_plan_of_the_tests_loses_is_what_its_run_loses() -> None:
    found = slow_accesses(PROFILE, PLAN, MACHINE)
    assert found.ns is not None
    assert 0 < found.ns.sum() == pytest.approx(float(SIMULATED.layers["slow_ns"].sum()) / 3, abs=PROFILE.n_layers)


def moves(*rows: tuple[int, int, int, int, int, int]) -> np.ndarray[Any, Any]:
    """(step, block, source, target, start_ns, stop_ns) each, of a page."""
    out = np.zeros(len(rows), MIGRATION_DTYPE)
    for row, (step, block, source, target, start, stop) in zip(out, rows, strict=True):
        row["step"], row["block"], row["source"], row["target"] = step, block, source, target
        row["nbytes"] = row["moved_bytes"] = PAGE_BYTES
        row["start_ns"], row["stop_ns"] = start, stop
    return out


def layers(*rows: tuple[int, int, int]) -> np.ndarray[Any, Any]:
    """(start_ns, duration_ns, stall_ns) each, of step 0."""
    out = np.zeros(len(rows), LAYER_DTYPE)
    for index, (row, (start, duration, stall)) in enumerate(zip(out, rows, strict=True)):
        row["layer"], row["start_ns"], row["duration_ns"], row["stall_ns"] = index, start, duration, stall
    return out


def test_a_wait_is_shared_by_what_arrives_in_it() -> None:
    stalls = layers((0, 100, 0), (100, 100, 30), (200, 100, 10))
    of = moves(
        (0, 0, 1, 0, 0, 90),  # arrived while a layer computed
        (0, 1, 1, 0, 50, 110),  # 10 ns into the first wait
        (0, 2, 1, 0, 60, 130),  # and 20 ns more
        (0, 3, 1, 0, 60, 150),  # after it
        (0, 4, 1, 0, 150, 210),
    )
    assert waits(of, stalls).tolist() == [0, 10, 20, 0, 10]
    assert waits(of[:0], stalls).tolist() == []
    assert waits(of, layers((0, 300, 0))).tolist() == [0] * 5


def test_moves_are_counted_by_tensor_in_the_mean_of_a_step() -> None:
    profile = two_tensors()
    plan = persistent_plan(profile, [0, 0], [(0, 0, 1, 1, 2), (0, 1, 0, 3, 4)])
    planned = moves_of(None, plan, 2)
    assert (planned.out.tolist(), planned.back.tolist()) == ([1, 0], [1, 0])
    assert planned.nbytes.tolist() == [20 * MIB, 0]
    assert planned.ns is None
    run = simulate(plan, profile, SLOW, steps=4)
    ran = moves_of(run, plan, 2)
    assert (ran.out.tolist(), ran.back.tolist(), ran.nbytes.tolist()) == ([1, 0], [1, 0], [20 * MIB, 0])
    assert ran.ns is not None
    assert ran.waited_ns is not None
    assert ran.ns[0] == pytest.approx(float((run.migrations["stop_ns"] - run.migrations["start_ns"]).sum() / 4))
    assert 0 <= ran.waited_ns[0] <= run.steps["stall_ns"].mean() + 1


def test_the_parts_of_a_step_add_up() -> None:
    stock, predicted, applied = step_parts(full_report())
    assert (stock.what, predicted.what, applied.what) == ("stock", "predicted", "applied")
    for part in (stock, predicted, applied):
        assert part.compute_ns + (part.slow_ns or 0) + part.wait_ns + part.other_ns == part.total_ns
        assert part.moving_ns is None or 0 <= (part.hidden_ns or 0) <= part.moving_ns
    rows = SIMULATED.layers[SIMULATED.layers["step"] == 2]
    assert (predicted.slow_ns, predicted.wait_ns) == (rows["slow_ns"].sum(), rows["stall_ns"].sum())
    assert predicted.total_ns == SIMULATED.step_ns


def test_on_real_nodes_nobody_knows_what_slow_accesses_took() -> None:
    profile = dataclasses.replace(PROFILE, step_ns_plain=9_000_000)
    report = build_report(profile=profile, plan=PLAN, executed=executed(emulated=False))
    applied = step_parts(report)[-1]
    assert applied.slow_ns is None
    assert "for slower accesses and all else" in page(report)
    assert report.frames()["step_time"]["slow_ns"].isna().tolist() == [False, True]


def _run_of(stalls: np.ndarray[Any, Any], of: np.ndarray[Any, Any]) -> Run:
    steps = SIMULATED.steps[:1].copy()
    steps["step"], steps["start_ns"], steps["duration_ns"], steps["in_step"] = 0, 0, 300, True
    return dataclasses.replace(SIMULATED, steps=steps, layers=stalls, migrations=of)


def test_time_in_which_something_moves_is_counted_once_and_less_what_was_waited_for() -> None:
    of = moves((0, 0, 1, 0, 0, 90), (0, 1, 1, 0, 50, 110), (0, 2, 0, 1, 60, 130), (0, 3, 1, 0, 250, 280))
    part = step_parts(Facts(None, None, None, None, _run_of(layers((0, 100, 0), (100, 200, 40)), of)))[-1]
    assert part.moving_ns == 130 + 30
    assert part.hidden_ns == 130 + 30 - 30  # of the wait from 100 to 140, 30 ns with a move under way
    assert part.wait_ns == 40


def test_of_moves_only_what_lies_within_the_step_counts() -> None:
    of = moves((0, 0, 1, 0, 250, 900), (0, 1, 1, 0, 0, 290), (0, 2, 1, 0, 100, 200))
    of["moved_bytes"][2] = 0  # skipped
    run = dataclasses.replace(_run_of(layers((0, 300, 0)), of), kind="executed", emulated=True)
    part = step_parts(Facts(None, None, None, run, None))[-1]
    assert part.moving_ns == 50, "until the step's end; of the second nobody saw the beginning"


def test_the_page_begins_with_the_answers_and_the_text_has_them() -> None:
    report = full_report()
    text, html = report.text(), page(report)
    headings = re.findall(r"<h2>([^<]*)</h2>", html)
    at = headings.index("Where did the time go")
    answers = [step_time.TITLE, slow_tensors.TITLE, moved_tensors.TITLE, more_fast_memory.TITLE]
    assert headings[at : at + 5] == [*answers, "Headline"]
    for words in ("Where did the time go", "Which tensors hurt (", "What moved, and why ("):
        assert words in text
    assert {"step_time", "slow_tensors", "moved_tensors"} <= set(report.frames())


def test_like_tensors_are_one_row_and_the_table_has_each() -> None:
    report = full_report()
    frame = report.frames()["slow_tensors"]
    assert frame["slow_ns"].is_monotonic_decreasing
    assert set(frame["alike"]) < set(frame["tensor"]) | {"layer*.weight"} | set(report.alike.names)
    assert frame["slow_ns"].sum() == pytest.approx(report.slow_accesses.ns.sum(), abs=len(frame))  # type: ignore[union-attr]


def test_lines_that_made_tensors_stand_beside_what_they_cost() -> None:
    profile = dataclasses.replace(PROFILE, sources=tuple(f"train.py:{i}" for i in range(len(PROFILE.names))))
    report = build_report(profile=profile, plan=PLAN, machine=MACHINE, simulated=SIMULATED)
    assert "made at" in report.text()
    assert "train.py:" in page(report)
    assert "made at" not in full_report().text()


def test_a_step_that_fits_says_so() -> None:
    plan = planner.plan(PROFILE, make_machine(1 << 30))
    report = build_report(profile=PROFILE, plan=plan, machine=make_machine(1 << 30), setup=Setup(more_plans_s=60.0))
    assert "None: fast memory serves all that the step touches." in page(report)
    assert "Nothing: the plan moves no tensor" in page(report)
    assert "fit into fast memory already" in page(report)
    assert report.fast_memory_points is None


def test_what_tensors_lose_is_told_as_part_of_a_step_and_beside_what_waits_cost() -> None:
    told = full_report()
    costs, moves = told.slow_accesses, told.moves
    assert costs is not None
    assert costs.ns is not None
    assert moves is not None
    assert moves.waited_ns is not None
    share = f"{costs.ns.sum() / told.headline['step_ns_applied']:.1%} of a step), since slower memory serves it."
    assert share in page(told)
    none = dataclasses.replace(moves, waited_ns=np.zeros(len(moves.waited_ns)))
    much = dataclasses.replace(moves, waited_ns=np.eye(len(moves.waited_ns))[1] * 2e9)
    for drawn, said in ((none, False), (much, True)):
        found = full_report()
        found.__dict__["moves"] = drawn  # as if it had been drawn so
        name = found.alike.label(int(found.alike.of[1]))
        answer = f"Waits for moves cost more: 2.00 s a step in the mean, 2.00 s of it for {name}; what moved is below."
        assert (answer in page(found).replace("<wbr>", "")) == said
    busy = full_report(dataclasses.replace(SETUP, applied_load=HostLoad(10**9, 0.5, 0.0, 0.5)))
    assert "of a step), since slower" not in page(busy)


def test_a_report_of_a_session_that_goes_on_says_where_the_curve_will_be() -> None:
    assert "Not planned yet: a report made after <code>sentinel.stop()</code>" in page(full_report())
    alone = build_report(profile=PROFILE, plan=PLAN, machine=MACHINE, simulated=SIMULATED, setup=SETUP)
    assert "Not planned yet" not in page(alone)


def test_long_names_break_after_their_parts() -> None:
    ranked = ranked_bars([Ranked("0", "h.*.c_proj.weight <b>.", 2.0, "2")], "slow", "t")
    assert ">h.*.<wbr>c_<wbr>proj.<wbr>weight &lt;b&gt;.<" in ranked


def curve_report(more_plans_s: float) -> Report:
    return build_report(
        profile=PROFILE,
        plan=PLAN,
        machine=MACHINE,
        simulated=SIMULATED,
        setup=dataclasses.replace(SETUP, more_plans_s=more_plans_s),
    )


def test_the_curve_has_where_one_is_the_double_and_the_knee() -> None:
    report = curve_report(600.0)
    found = report.fast_memory_points
    assert found is not None
    assert found.whole
    speeds = [point.speed or 0 for point in found.points]
    assert speeds == sorted(speeds), "more memory is never slower"
    assert found.points[-1].fast_bytes == PLAN.footprint_bytes
    assert found.here.fast_bytes == PLAN.capacity_bytes[0]
    assert found.twice is not None
    assert found.twice.fast_bytes == min(2 * found.here.fast_bytes, PLAN.footprint_bytes)
    frame = report.frames()["fast_memory_curve"]
    assert [mark for mark in frame["mark"].dropna() if "you are here" in mark]
    assert "you are here" in report.text()
    assert "Speed against fast memory, simulated" in page(report)


def test_points_of_the_curve_keep_what_the_user_keeps() -> None:
    """`slow` is read in each of 8 layers: no amount of fast memory brings back what that takes."""
    profile = make_profile([param("slow", 4 * MIB, range(8)), *(param(f"w{k}", 2 * MIB, [k]) for k in range(8))], 8)
    machine = make_machine(8 * MIB)
    plan = planner.plan(profile, machine, pins=Pins(slow=("slow",)))
    found = fast_memory_points(profile, plan, machine, plan.predicted_step_ns or 0, 600.0)
    assert found is not None
    (kept,) = kept_in(plan.details)
    least_ns = found.subject.all_fast_step_ns + kept["slow_use_ns"] - profile.n_layers  # it is rounded down in each
    assert kept["slow_use_ns"] > 1_000_000
    assert len(found.points) > 3
    assert min(point.step_ns or 0 for point in found.points) >= least_ns
    most = found.points[-1]
    assert most.fast_bytes == plan.footprint_bytes
    assert most.step_ns == pytest.approx(least_ns, abs=profile.n_layers)
    plan = planner.plan(profile, machine, pins=Pins(fast=("slow", "w0")))
    found = fast_memory_points(profile, plan, machine, plan.predicted_step_ns or 0, 600.0)
    assert found is not None
    assert min(point.fast_bytes for point in found.points) == 8 * MIB, "half of that has no room for what is kept fast"


def test_where_one_is_stays_what_it_is_though_less_memory_is_faster() -> None:
    slow_ns = 2 * (PLAN.predicted_step_ns or 0)
    found = fast_memory_points(PROFILE, PLAN, MACHINE, slow_ns, 600.0)
    assert found is not None
    assert found.here.step_ns == slow_ns
    assert found.here in found.points
    assert any(p.fast_bytes < found.here.fast_bytes and (p.step_ns or 0) < slow_ns for p in found.points)


def test_a_step_that_fits_and_one_without_managed_tensors_have_no_curve() -> None:
    large = planner.plan(PROFILE, make_machine(1 << 30))
    assert fast_memory_points(PROFILE, large, make_machine(1 << 30), 1, 60.0) is None
    bare = make_profile([param("w", MIB, [0], managed=False)], 2)
    assert fast_memory_points(bare, PLAN, MACHINE, 1, 60.0) is None


def test_twice_as_much_is_said_of_no_less() -> None:
    """Of a step that uses less than that, the largest amount is all that it uses."""
    found = curve_report(600.0).fast_memory_points
    assert found is not None
    most = found.points[-1]

    def said(here_bytes: int) -> tuple[str, list[str]]:
        here = dataclasses.replace(found.here, fast_bytes=here_bytes)
        told = dataclasses.replace(found, here=here, twice=most, knee=None)
        return more_fast_memory._answer(told), more_fast_memory.marks(told, most.fast_bytes)

    answer, marks = said(most.fast_bytes * 3 // 4)
    assert "All that the step uses" in answer
    assert "Twice" not in answer
    assert marks == ["all of the step"]
    answer, marks = said(most.fast_bytes // 2)
    assert "Twice as much" in answer
    assert marks == ["twice"]


def test_how_many_moves_came_late_is_a_mean_of_the_steps() -> None:
    group = SimpleNamespace(label="w", moved_bytes=MIB, waited_ns=4, why=None)
    assert moved_tensors._answer([group], 1.5) == (
        "In the mean of a step 1.00 MiB moved, most of all w: 1.00 MiB. In that mean 1.5 of these moves came late, and"
        " layers waited 4 ns for them."
    )
    assert "In that mean none of these moves came late, and" in moved_tensors._answer([group], 0.0)
    assert moved_tensors._answer([group], None) == "1.00 MiB are to move in a step, most of all w: 1.00 MiB."


def test_a_late_block_of_several_tensors_is_one_late_move() -> None:
    profile = two_tensors()
    blocks = persistent_plan(profile, [0, 0], [(0, 0, 1, 1, 2), (0, 1, 0, 3, 4)])
    both = dataclasses.replace(blocks.blocks[0], tensors=(0, 1))
    plan = dataclasses.replace(blocks, blocks=(both, *blocks.blocks[1:]))
    run = simulate(blocks, profile, SLOW, steps=4)
    late = run.migrations.copy()
    late["outcome"] = np.where(late["target"] == 0, OUTCOMES.index("late"), OUTCOMES.index("done"))
    report = build_report(profile=profile, plan=plan, simulated=dataclasses.replace(run, migrations=late))
    assert report.frames()["moved_tensors"]["late"].tolist() == [1, 1]
    assert "In that mean 1 of these moves came late" in page(report).replace("<wbr>", "")


def test_the_picture_of_the_curve_says_where_one_is() -> None:
    found = curve_report(600.0).fast_memory_points
    assert found is not None
    picture = memory_curve(found, lambda nbytes: ", ".join(more_fast_memory.marks(found, nbytes)))
    assert picture.count("<circle") == len(found.points)
    assert "you are here" in picture


def test_words_beside_points_of_the_curve_do_not_touch() -> None:
    """Points that lie close together, and words beside each of them."""
    found = curve_report(600.0).fast_memory_points
    assert found is not None
    crowded = dataclasses.replace(found, points=tuple(sorted(found.points * 3, key=lambda point: point.fast_bytes)))
    picture = memory_curve(crowded, lambda _: "you are here")
    places = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="label strong" text-anchor="(\w+)"', picture)
    assert len(places) == len(crowded.points) > 6
    wide = 10 * len("you are here")
    boxes = [(float(x) - wide if side == "end" else float(x), float(y)) for x, y, side in places]
    for number, (left, line) in enumerate(boxes):
        assert not [1 for x, y in boxes[:number] if abs(x - left) < wide and abs(y - line) < 16]


def test_bars_are_as_long_as_their_values_and_hold_no_markup_of_others() -> None:
    bars = part_bars([("a", "4", [Part("compute", "<b>", 1.0), Part("wait", "w", 3.0)])], 4.0, "t", lambda v: f"{v:g}")
    assert "width:25.00%" in bars
    assert "width:75.00%" in bars
    assert "<b>" not in bars
    ranked = ranked_bars([Ranked("0", "<i>", 2.0, "2"), Ranked("1", "n", 1.0, "1", "train.py:3")], "slow", "t")
    assert "width:50.00%" in ranked
    assert ranked.count("<small>") == 1
    assert "&lt;i&gt;" in ranked


def test_a_note_is_serious_unless_it_tells_of_method() -> None:
    found = Grades([], [], [])
    found.add(["nothing fits", "tracker x is blind to y"])
    assert found == Grades(["Nothing fits."], [], ["Tracker x is blind to y."])
    assert sentence("is it?") == "Is it?"


def test_the_terminal_tells_the_first_of_what_the_page_shows() -> None:
    slow = "the emulated link from fast to cxl was to carry 8 GiB a second, and this host copied 2 GiB a second"
    told = full_report(
        dataclasses.replace(SETUP, notes=(slow, "the session ended by itself: why", "a saved plan differs"))
    )
    assert any("emulated link" in said for said in told.grades.method)
    assert worst(told) == ["The session ended by itself: why.", "A saved plan differs."]
    yellow = page(told).split('aria-label="Caveats"')[1].split("</ul>")[0]
    assert re.findall("<li>(.*?)</li>", yellow) == worst(told)
    assert "emulated link" not in yellow


def test_a_wait_and_a_move_that_was_waited_for_look_unlike() -> None:
    style = (resources.files("sentinel.reports.html") / "style.css").read_text("utf-8")
    looks = {name: re.search(rf"\.part\.{name}\{{([^}}]*)\}}", style) for name in ("wait", "unhidden")}
    assert all(looks.values())
    assert len({look[1] for look in looks.values() if look}) == 2


def test_later_reports_of_a_session_need_no_plan_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    known, real = KnownPoints(), points_module.curve
    made: list[Any] = []

    def counted(*given: Any) -> Any:
        made.append(given)
        return real(*given)

    monkeypatch.setattr(points_module, "curve", counted)

    def report(plan: Plan) -> Report:
        setup = dataclasses.replace(SETUP, more_plans_s=600.0, known_points=known)
        return build_report(profile=PROFILE, plan=plan, machine=MACHINE, simulated=SIMULATED, setup=setup)

    first = report(PLAN).fast_memory_points
    assert first is not None
    assert made
    made.clear()
    assert report(PLAN).fast_memory_points is first
    assert not made
    again = report(dataclasses.replace(PLAN)).fast_memory_points
    assert made
    assert again == first


def test_no_plan_is_made_while_the_job_trains_or_where_one_takes_too_long() -> None:
    assert curve_report(0.0).fast_memory_points is None
    assert "fast_memory_curve" not in curve_report(0.0).frames()
    slow = dataclasses.replace(SETUP, more_plans_s=5.0, plan_ns=6_000_000_000)
    report = build_report(profile=PROFILE, plan=PLAN, machine=MACHINE, simulated=SIMULATED, setup=slow)
    assert report.fast_memory_points is None
    assert "<code>sentinel compare</code> of a saved profile" in page(report)


def test_the_picture_of_tensors_has_those_that_hurt() -> None:
    specs = [param(f"big{i}", MIB, [0]) for i in range(60)] + [param("small", PAGE_BYTES, [0])]
    profile = make_profile(specs, 2)
    costs = np.zeros(61)
    assert 60 not in chosen(profile, costs)
    costs[60] = 5.0
    found = chosen(profile, costs)
    assert found[0] == 60
    assert len(found) == len(set(found.tolist())) == MAX_TENSORS


def test_caveats_have_three_grades_and_next_to_nothing_is_not_serious() -> None:
    small = full_report()  # 4 KiB stayed in place, of 14 MiB
    assert not any("stayed in place" in caveat for caveat in small.grades.serious)
    assert any("stayed in place" in caveat for caveat in small.grades.method)
    large = full_report(dataclasses.replace(SETUP, in_place=(("w", MIB, "shared"),)))
    assert any("stayed in place" in caveat for caveat in large.grades.serious)
    assert small.caveats == list(dict.fromkeys([*small.grades.serious, *small.grades.notes, *small.grades.method]))


def test_the_page_shows_three_caveats_and_folds_the_rest() -> None:
    report = full_report(dataclasses.replace(SETUP, notes=("one", "two", "three", "four", "tracker x saw little")))
    html = page(report)
    top, _, rest = html.partition("Before you read the numbers")[2].partition("<details>")
    assert top.count("<li>") == 3
    assert "Four." in rest
    assert "Tracker x saw little." in rest
    for caveat in report.caveats:
        assert caveat == report.heading.done or f"<li>{caveat}</li>" in html.replace("&#x27;", "'")


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("first", [["Misread."], []])
def test_what_is_folded_says_what_it_is_be_it_one_note_or_more(first: list[str], n: int) -> None:
    notes, s = [f"Note {i}." for i in range(n)], "s" if n > 1 else ""
    html = graded_caveats(first, notes, [f"Way {i}." for i in range(n)])
    more = "more " if first else ""
    found = re.findall("<summary>(.*?)</summary>", html)
    assert found == [f"{n} {more}note{s}", f"{n} note{s} on how the numbers were made"]
    assert html.count("<li>") == len(first) + 2 * n
    twice = graded_caveats([], [], ["Way.", "Way."])
    assert "<summary>1 note on" in twice, "what is said twice is one note"


def test_the_text_tells_how_numbers_were_made_apart_from_caveats() -> None:
    report = full_report(dataclasses.replace(SETUP, notes=("one", "tracker x saw little")))
    above, _, below = report.text().partition(f"\n{len(report.grades.method)} notes on how the numbers were made\n")
    assert "\nCaveats\n" in above
    assert "  ! One." in above
    assert "  - Tracker x saw little." in below.partition("\n\n")[0]


def test_a_late_move_is_told() -> None:
    run = dataclasses.replace(SIMULATED)
    late = run.migrations.copy()
    late["outcome"] = OUTCOMES.index("late")
    report = build_report(
        profile=PROFILE, plan=PLAN, machine=MACHINE, simulated=dataclasses.replace(run, migrations=late)
    )
    frame = report.frames()["moved_tensors"]
    assert len(frame)
    assert (frame["late"] == frame["out"] + frame["back"]).all()


def test_the_page_names_the_timeline_that_was_written(tmp_path: Any) -> None:
    report = full_report()
    report.write(tmp_path / "before.html")
    report.write(tmp_path / "steps.trace")
    report.write(tmp_path / "after.html")
    assert "steps.trace" not in (tmp_path / "before.html").read_text()
    assert "<code>steps.trace</code>" in (tmp_path / "after.html").read_text()
