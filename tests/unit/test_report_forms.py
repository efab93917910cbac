"""The forms of a report: text, JSON, CSV, timeline and page say the same and cope with what is missing."""

from __future__ import annotations

import dataclasses
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sentinel import planner
from sentinel.core.errors import FormatError, UsageError
from sentinel.core.run import OUTCOMES
from sentinel.core.trace import Quality
from sentinel.reports import Report, build_report
from sentinel.reports.html.page import page
from sentinel.simulator import simulate
from tests.builders import make_machine, make_profile, param, persistent_plan
from tests.unit.report_builders import MACHINE, PLAN, PROFILE, SIMULATED, executed, full_report


@pytest.fixture(scope="module")
def full() -> Report:
    return full_report()


def test_text_cannot_drive_the_terminal(full: Report) -> None:
    assert "\x1b" not in full.text()
    assert "\u202e" not in full.text()
    assert all(len(line) < 160 for line in full.text().splitlines())


def test_the_text_tells_what_was_to_move_from_what_moved() -> None:
    moves = SIMULATED.migrations[:1].copy()
    assert moves["nbytes"] == 2 << 20
    moves["outcome"], moves["moved_bytes"] = OUTCOMES.index("failed"), 0
    failed = build_report(profile=PROFILE, plan=PLAN, executed=executed(migrations=moves)).text()
    assert re.search(r"count  to move +moved\n .* failed +1 +2\.00 MiB +0 B\n", failed)
    planned = build_report(profile=PROFILE, plan=PLAN).text()
    assert re.search(r"count  to move +moved\n .* planned +\d+ +\S+ MiB\n", planned)


def test_json_gives_every_table_back(full: Report, tmp_path: Path) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in JSON")

    assert full.write(tmp_path / "r.json") == [tmp_path / "r.json"]
    found = json.loads((tmp_path / "r.json").read_text(), parse_constant=refuse)
    assert found["headline"] == full.headline
    for name, table in full.frames().items():
        again = pd.DataFrame(found["frames"][name]).astype(table.dtypes.to_dict())
        pd.testing.assert_frame_equal(again, table)


def test_csv_writes_a_file_a_table_and_says_which(full: Report, tmp_path: Path) -> None:
    paths = full.write(tmp_path / "r.csv")
    assert [p.name for p in paths] == ["r.csv", *(f"r-{name}.csv" for name in full.frames())]
    assert sorted(paths) == sorted(tmp_path.iterdir())
    for name, table in full.frames().items():
        again = pd.read_csv(tmp_path / f"r-{name}.csv", keep_default_na=False, na_values=[""], lineterminator="\n")
        assert len(again) == len(table)
        assert list(again.columns) == list(table.columns)
    headline = pd.read_csv(tmp_path / "r.csv").set_index("name")["value"]
    assert int(headline["peak_bytes"]) == PLAN.footprint_bytes


def test_csv_leaves_no_table_of_an_earlier_report(full: Report, tmp_path: Path) -> None:
    assert "step_time" in full.frames()
    full.write(tmp_path / "r.csv")
    (tmp_path / "r-mine.csv").touch()
    paths = build_report(plan=PLAN).write(tmp_path / "r.csv")
    assert tmp_path / "r-step_time.csv" not in paths
    assert sorted([*paths, tmp_path / "r-mine.csv"]) == sorted(tmp_path.iterdir())


def test_the_timeline_has_each_layer_and_migration_once(full: Report, tmp_path: Path) -> None:
    full.write(tmp_path / "r.trace")
    events = json.loads((tmp_path / "r.trace").read_text())["traceEvents"]
    names = [e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"]
    assert names == ["emulated", "simulated"]
    spans = [e for e in events if e["ph"] == "X" and e["pid"] == 1]
    assert len([e for e in spans if e["tid"] == 1]) == len(SIMULATED.layers)
    assert len([e for e in spans if e["tid"] != 1]) == len(SIMULATED.migrations)
    took = sum(e["dur"] for e in spans if e["tid"] == 1)
    assert took == pytest.approx(SIMULATED.layers["duration_ns"].sum() / 1000)


class _Page(HTMLParser):
    """Elements in order; fails on an end tag that does not fit."""

    VOID = ("meta", "input", "rect", "line", "circle", "path")

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_is_whole_and_needs_nothing_from_outside(full: Report, tmp_path: Path) -> None:
    full.write(tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    page = _Page(text)
    for tag, attributes in page.seen:
        assert not {"src", "href", "srcset", "action", "style:url"} & set(attributes), tag
        assert not any(name.startswith("on") for name in attributes), "no script in attributes"
    assert "http" not in text.replace("http-equiv", "")
    assert "@import" not in text
    assert ("meta", "default-src 'none'") in [(t, str(a.get("content", ""))[:18]) for t, a in page.seen]
    assert len([1 for tag, _ in page.seen if tag == "script"]) == 1
    assert len([1 for tag, _ in page.seen if tag == "b"]) == 0, "a tensor's name became markup"
    pictures = [a for tag, a in page.seen if tag == "svg" and a.get("role") == "img"]
    assert len(pictures) >= 6
    assert all(a["aria-label"] for a in pictures)
    assert len([1 for tag, _ in page.seen if tag == "desc"]) == len(pictures)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"profile": PROFILE},
        {"plan": PLAN},
        {"executed": executed()},
        {"profile": PROFILE, "plan": planner.plan(PROFILE, make_machine(1 << 30))},
        {"profile": make_profile([], 1)},
        {"profile": make_profile([param("w", 1, [])], 1, layer_ns=0)},
        {
            "plan": PLAN,
            "simulated": dataclasses.replace(SIMULATED, steps=SIMULATED.steps[:0], layers=SIMULATED.layers[:0]),
        },
    ],
)
@pytest.mark.parametrize("suffix", [".txt", ".html", ".json", ".csv", ".trace"])
def test_every_form_copes_with_what_is_missing(given: dict[str, Any], suffix: str, tmp_path: Path) -> None:
    paths = build_report(**given).write(tmp_path / f"r{suffix}")
    assert all(path.stat().st_size > 0 for path in paths)
    if suffix == ".html":
        _Page(paths[0].read_text())


def test_at_a_prompt_nouns_are_one_line(full: Report) -> None:
    for shown, begins in (
        (repr(full), "<Report emulated, "),
        (repr(build_report(profile=PROFILE)), "<Report profiled and planned only: "),
        (repr(PLAN), f"<Plan sentinel-2021: 8 layers, {len(PLAN.slots)} slots, "),
        (repr(dataclasses.replace(PLAN, provisional=True)), "<Plan sentinel-2021, provisional: "),
        (repr(executed()), "<Run executed, emulated: 3 steps, "),
        (repr(SIMULATED), "<Run simulated: 3 steps, "),
    ):
        assert shown.startswith(begins)
        assert len(shown) < 160
        assert "\n" not in shown


def test_a_notebook_shows_the_page(full: Report) -> None:
    shown = full._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert html.unescape(shown).count(page(full)) == 1


def test_the_page_says_where_sums_of_medians_are_shown(full: Report) -> None:
    said = "Medians of layers need not add up to the headline's median step."
    assert said in html.unescape(page(full))
    alone = build_report(profile=PROFILE, plan=PLAN, machine=MACHINE, simulated=SIMULATED)
    assert "Sum over the layers" in page(alone)
    assert said not in html.unescape(page(alone))


def test_an_unknown_suffix_and_an_impossible_path(full: Report, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.csv, \.html, \.json, \.trace, \.txt"):
        full.write(tmp_path / "report.pdf")
    with pytest.raises(FormatError, match="no folder"):
        full.write(tmp_path / "absent" / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_a_large_model_fits_in_a_page_of_two_megabytes(tmp_path: Path) -> None:
    length, n = 1200, 20_000
    specs = [
        param(f"model.block.{i}.attention.weight", 4096 * (1 + i % 7), [i % length, (i * 7) % length]) for i in range(n)
    ]
    profile = make_profile(specs, length)
    moves = [(i, 1, 0, i % (length - 2), i % (length - 2) + 1) for i in range(3000)]
    moves += [(i, 0, 1, i % (length - 2) + 1, i % (length - 2) + 2) for i in range(3000)]
    plan = persistent_plan(profile, [1] * n, moves, fast_bytes=1 << 40)
    report = build_report(profile=profile, plan=plan, simulated=simulate(plan, profile, make_machine(1 << 40)))
    report.write(tmp_path / "r.html")
    assert (tmp_path / "r.html").stat().st_size < 2 << 20
    text = (tmp_path / "r.html").read_text()
    assert "The first 500 of 20000 rows" in text
    assert "smallest are not drawn" in text


def test_every_form_says_what_was_counted_lost_and_spent(tmp_path: Path) -> None:
    quality = Quality(
        "perf",
        "touched layers",
        ("touches",),
        lost=3,
        late=5,
        overhead_ns=36_000_000,
        layer_overhead_ns=tuple(range(1_000_000, 9_000_000, 1_000_000)),
        granularity_bytes=4096,
        blind_to=("accesses of devices",),
    )
    report = build_report(profile=dataclasses.replace(PROFILE, quality=quality))
    assert report.headline["quality"] == {
        "counts": "touched layers",
        "sees": "touches",
        "granularity_bytes": 4096,
        "lost": 3,
        "late": 5,
        "tracker_ns": 36_000_000,
    }
    assert report.frames()["layers"]["tracker_ns"].tolist() == [n * 1_000_000 for n in range(1, 9)]
    for form, words in {
        "txt": ("counts touched layers (touches); 3 lost, 5 late; own time 36.00 ms", "blind to accesses of devices"),
        "html": ("touched layers", "3; 5", "36.00 ms", "accesses of devices"),
        "json": ('"late": 5', '"blind_to": ["accesses of devices"]', '"layer_overhead_ns": [1000000, 2000000'),
        "csv": ("quality.counts,touched layers", "quality.lost,3", "quality.tracker_ns,36000000"),
    }.items():
        report.write(tmp_path / f"r.{form}")
        text = (tmp_path / f"r.{form}").read_text()
        for word in words:
            assert word in text, (form, word)
    assert build_report(plan=PLAN).headline["quality"] is None
    assert build_report(profile=PROFILE).frames()["layers"]["tracker_ns"].isna().all()
