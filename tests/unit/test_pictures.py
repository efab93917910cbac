"""Pictures and pages as markup: what is escaped, where a value lies, what a reader is told of each column."""

from __future__ import annotations

import dataclasses
import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from sentinel.core.run import OUTCOMES
from sentinel.core.trace import LayerId
from sentinel.planner.sweep import Cell, Comparison, Knee, Point, Subject
from sentinel.reports import build_report
from sentinel.reports.html.heat import MAX_TENSORS, heat
from sentinel.reports.html.lanes import lanes
from sentinel.reports.html.layer_axis import MAX_COLUMNS, Columns
from sentinel.reports.html.layer_charts import footprint, frame_of, occupancy
from sentinel.reports.html.policy_comparison_page import comparison_page
from sentinel.reports.html.shell import caveat_list, document, section
from sentinel.reports.html.svg import Frame, byte_ticks, escape, figure, tag, time_ticks
from sentinel.reports.policy_comparison import answer, as_object, knee_of, text
from sentinel.simulator.served import tier_shares
from tests.builders import GB, MIB, act, make_profile, param, persistent_plan
from tests.unit.report_builders import PLAN, PROFILE, SIMULATED, executed, full_report

HOSTILE = "<b>\"'&\x1b\u202e"


def test_what_comes_from_outside_is_escaped() -> None:
    assert escape(HOSTILE) == "&lt;b&gt;&quot;&#x27;&amp;\ufffd\ufffd"
    assert tag("line", x1=1.04, class_="a", data_t=HOSTILE, missing=None).startswith(
        '<line x1="1" class="a" data-t="&lt;'
    )
    for markup in (figure(HOSTILE, HOSTILE, "", 9), section(HOSTILE, "x", note=HOSTILE), caveat_list([HOSTILE])):
        assert "<b>" not in markup
        assert "&lt;b&gt;" in markup


def test_a_section_without_parts_is_nothing() -> None:
    assert section("Title", "", "") == caveat_list([]) == ""
    assert caveat_list(["a", "b", "c"], shown=1).count("<li>") == 3
    assert "<summary>2 more</summary>" in caveat_list(["a", "b", "c"], shown=1)


def test_a_page_fetches_nothing() -> None:
    page = document("a title", "<p>body</p>")
    assert "default-src &#x27;none&#x27;" in page or "default-src 'none'" in page
    assert "<p>body</p>" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page


def test_ticks_are_round_and_within_the_axis() -> None:
    assert byte_ticks(5 * MIB) == [(n * MIB, f"{n} MiB" if n else "0") for n in range(6)]
    assert [label for _, label in time_ticks(2_300_000)] == ["0", "500 µs", "1 ms", "1.5 ms", "2 ms"]


def test_a_frame_has_zero_at_its_bottom() -> None:
    frame = Frame(10, 20, 100, 50, 4.0)
    assert (frame.y(0), frame.y(4), frame.bottom, frame.x(0.5)) == (70, 20, 70, 60)
    assert frame_of(0).y_max == 1.0  # nothing is divided by nothing


def test_many_layers_share_columns_each_showing_its_largest_value() -> None:
    few = Columns([LayerId("a", 0, "forward"), LayerId("b", 0, "forward"), LayerId("a", 0, "backward")])
    assert few.phases() == [("forward", 0, 2), ("backward", 2, 3)]
    assert few.largest(np.array([1, 7, 3])).tolist() == [1, 7, 3]
    assert few.label(1).startswith("layer 1 · b")
    many = Columns([LayerId(f"l{k}") for k in range(1009)])
    assert many.count == MAX_COLUMNS
    values = np.zeros(1009)
    values[500] = 9
    assert (many.largest(values).max(), (many.largest(values) > 0).sum()) == (9, 1)
    assert "layers" in many.label(many.count // 2)


def test_a_column_of_several_layers_stacks_the_roles_of_one_of_them() -> None:
    layers = 2 * MAX_COLUMNS
    grad = dataclasses.replace(act("g", 3 * MIB, 1, 2), role="grad")
    profile = make_profile([param("w", MIB, [0]), act("a", 4 * MIB, 0, 1), grad], layers)
    picture = footprint(profile, Columns(profile.layers))
    (first,) = re.findall(r'data-t="layers 0–1 · ([^"]*)"', picture)
    assert "activation: 4.00 MiB" in first
    assert "all: 5.00 MiB" in first
    assert "grad" not in first
    assert "A column of several layers shows the one of most bytes." in picture


def test_lines_break_where_a_value_is_not_known() -> None:
    columns, frame = Columns([LayerId(f"l{k}") for k in range(4)]), Frame(0, 0, 100, 100, 10)
    assert columns.line(frame, np.array([1, np.nan, 2, 3])).count("M") == 2
    assert columns.line(frame, np.full(4, np.nan)) == ""
    assert columns.readers(frame, lambda i: f"said {i}").count("<rect") == 4


def test_the_charts_say_their_largest_figures() -> None:
    columns = Columns(PROFILE.layers)
    live = PROFILE.live_bytes_by_role().sum(axis=0)
    assert f"Most in layer {live.argmax()}" in footprint(PROFILE, columns)
    charts = occupancy(PLAN, full_report().tables["occupancy"], columns)
    assert charts.count("<figure>") == len(PLAN.tier_names)
    assert "budget" in charts
    costs, keys = np.zeros(len(PROFILE.names)), np.arange(len(PROFILE.names))
    picture = heat(PROFILE, PLAN, columns, costs, keys)
    assert len(PROFILE.names) <= MAX_TENSORS
    served = tier_shares(PLAN, PROFILE)[1:].any(axis=0)
    assert 0 < served.sum() < len(served)
    assert f"of their touches by layer slow memory serves {served.sum()} of {len(served)}, as planned" in picture
    assert "slow memory serves" not in heat(PROFILE, None, columns, costs, keys)


def test_a_tensor_on_its_way_out_is_touched_in_slow_memory() -> None:
    """From the layer on after which it leaves, as the tables have it."""
    profile = make_profile([param("w", MIB, range(4))], 4)
    plan = persistent_plan(profile, [0], [(0, 0, 1, 1, 2), (0, 1, 0, 2, 3)])
    assert tier_shares(plan, profile)[0].tolist() == [1, 0, 0, 1]
    picture = heat(profile, plan, Columns(profile.layers), np.zeros(1), np.zeros(1, np.int64))
    assert "slow memory serves 2 of 4" in picture


def _cell(policy: str, fast: str, nbytes: int, speed: float | None) -> Cell:
    made = ("gpt", fast, nbytes, 900, speed, 0, "" if speed else "it has no plan")
    return Cell(*made, policy=policy, bound_step_ns=1000, bound_speed=0.98, of_bound=0.9, loose="")


def _comparison(speed: float | None, knee: bool) -> Comparison:
    point = Point("gpt", "20%", 2 * GB, 1000, 0.97, 7, "")
    cell = _cell("static", "20%", 2 * GB, speed)
    knees = (Knee("gpt", "20%", 2 * GB, 0.97, GB),) if knee else ()
    subject = Subject("gpt", 17, 13, 10 * GB, 970)
    return Comparison("cxl", ("sentinel", "static"), (subject,), (cell,), (point,), knees)


@pytest.mark.parametrize("speed", [0.5, None])
def test_a_comparison_is_told_alike_in_every_form(speed: float | None) -> None:
    found = _comparison(speed, knee=True)
    printed, page, values = text(found), comparison_page(found), as_object(found)
    assert values["kind"] == "simulated"
    assert (values["cells"][0]["speed"], values["knee"][0]["fast_bytes"]) == (speed, 2 * GB)
    said = answer(knee_of(found, found.profiles[0]))
    assert "97.0% of all-fast speed" in said
    assert said in printed
    assert said in page
    for form in (printed, page):
        assert ("it has no plan" in form) == (speed is None)
        assert "simulated" in form


def test_the_three_fastest_other_policies_have_a_colour_and_their_name_in_the_picture() -> None:
    names = {"best-static": 0.9, "lru": 0.4, "next-use": 0.8, "interleave": 0.7, "first-touch": 0.6}
    cells = [
        _cell(policy, fast, nbytes, speed)
        for policy, speed in names.items()
        for fast, nbytes in (("20%", 2 * GB), ("40%", 4 * GB))
    ]
    points = tuple(Point("gpt", fast, nbytes, 1000, 0.97, 7, "") for fast, nbytes in (("20%", 2 * GB), ("40%", 4 * GB)))
    subject = Subject("gpt", 17, 13, 10 * GB, 970)
    page = comparison_page(Comparison("cxl", ("sentinel", *names), (subject,), tuple(cells), points, ()))
    picture = page.split("<svg")[-1] if page.count("<figure") == 0 else page.split("<figure")[1].split("</figure")[0]
    labels = re.findall(r'<text x="[^"]*" y="([^"]*)" class="label">(.*?)</text>', picture)
    assert [name for _, name in labels] == ["sentinel", "best-static", "next-use", "interleave"]
    heights = [float(y) for y, _ in labels]
    assert all(below - above >= 14 for above, below in pairwise(heights))
    marks = re.findall(r'fill="var\(--(\w+)\)" data-t="([\w-]+), 20%', picture)
    assert {name: colour for colour, name in marks} == {
        "sentinel": "fast",
        "best-static": "activation",
        "next-use": "grad",
        "interleave": "optimizer",
        "lru": "muted",
        "first-touch": "muted",
    }


def test_without_a_knee_more_memory_is_advised() -> None:
    found = _comparison(0.5, knee=False)
    assert knee_of(found, found.profiles[0]) is None
    assert "none; no amount tried" in text(found)


@pytest.mark.parametrize(("outcome", "mark"), [("skipped", r"url\(#dots\)"), ("failed", r"url\(#cross\)")])
def test_a_move_that_never_started_is_drawn_where_it_was_given_up(outcome: str, mark: str, tmp_path: Path) -> None:
    """A run that was executed has 0 as its beginning."""
    moves = SIMULATED.migrations[SIMULATED.migrations["step"] == 1].copy()
    moves[1]["outcome"], moves[1]["start_ns"] = OUTCOMES.index(outcome), 0
    run = executed(migrations=moves)
    (drawn,) = re.findall(rf'<rect [^>]*{mark}" class="mark" data-k="[^>]*>', lanes(run, PLAN, PROFILE.layers))
    assert 'width="1.5"' in drawn
    assert "in 0 ns" in drawn
    report = build_report(profile=PROFILE, plan=PLAN, executed=run)
    report.write(tmp_path / "r.trace")
    events = json.loads((tmp_path / "r.trace").read_text())["traceEvents"]
    (given_up,) = [event for event in events if event.get("args", {}).get("outcome") == outcome]
    assert given_up["dur"] == 0
    assert given_up["ts"] == pytest.approx(moves[1]["stop_ns"] / 1000)
    frame = report.frames()["migrations"]
    assert frame["start_ns"].isna().tolist() == [row == 1 for row in range(len(moves))]
    assert frame["stop_ns"].notna().all()
