"""A report shows what the nouns say, in every form, and refuses sums that disagree."""

from __future__ import annotations

import dataclasses
import html
import json
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sentinel import planner
from sentinel.core.errors import FormatError, UsageError
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.run import OUTCOMES, Run
from sentinel.core.trace import LayerId, Quality
from sentinel.files import with_origin
from sentinel.reports import Report, ReportError, Setup, build_report
from sentinel.reports.html.page import page
from sentinel.simulator import simulate
from tests.builders import MIB, act, make_machine, make_profile, param, persistent_plan

NASTY = "<b>\"'&\u202e\x1b[31m\n</script>é"
MACHINE = make_machine(8 * MIB)


def _profile() -> Profile:
    specs = [param(f"layer{k}.weight", 2 * MIB, [k, 7 - k]) for k in range(4)]
    specs += [param(NASTY, 5000, [3]), param("alias.weight", 4096, [0], managed=False)]
    specs += [act(f"out{k}", MIB, k, 8 - k, [7 - k]) for k in range(4)]
    specs += [act("round", 4096, 6, 9, [0])]  # alive across the end of the step
    profile = make_profile(specs, 8, layer_ns=10_000_000)
    phases = [LayerId(f"h.{k}", 0, "forward") for k in range(4)] + [
        LayerId(f"h.{3 - k}", 0, "backward") for k in range(4)
    ]
    return dataclasses.replace(
        profile,
        layers=tuple(phases),
        step_ns_plain=81_000_000,
        step_ns_profiled=200_000_000,
        live_peak_bytes=9 * MIB,
        unmanaged_peak_bytes=4097,
    )


PROFILE = _profile()
PLAN = with_origin(planner.plan(PROFILE, MACHINE, "sentinel-2021"), profile=PROFILE, machine=MACHINE)
SIMULATED = with_origin(simulate(PLAN, PROFILE, MACHINE, steps=3), plan=PLAN)
SETUP = Setup("ops", "emulated:cxl-asic-x8", "50%", None, 7, 11, (("alias.weight", 4096, "shared"),), {"no slot": 4097})


def executed(emulated: bool = True, **tables: Any) -> Run:
    """The simulated run, called executed, with some tables replaced."""
    return dataclasses.replace(SIMULATED, kind="executed", emulated=emulated, **tables)


@pytest.fixture(scope="module")
def full() -> Report:
    return build_report(
        profile=PROFILE, plan=PLAN, machine=MACHINE, executed=executed(), simulated=SIMULATED, setup=SETUP
    )


# --- headline ---

CONTRACT = (
    *(
        "peak_bytes",
        "live_peak_bytes",
        "unmanaged_bytes",
        "fast_capacity_bytes",
        "fast_peak_bytes",
        "fast_needed_bytes",
    ),
    *("fast_served_fraction", "migrated_bytes_per_step", "stall_ns_per_step", "step_ns_plain", "step_ns_profiled"),
    *("step_ns_applied", "step_ns_predicted", "setup_ns", "plan_ns", "mil", "cases", "optimality_gap", "tracker"),
    *("slow", "kind"),
)


def test_the_headline_has_every_promised_figure(full: Report) -> None:
    assert set(CONTRACT) <= set(full.headline)
    h = full.headline
    assert h["kind"] == "emulated"
    assert (h["setup_ns"], h["plan_ns"], h["tracker"], h["slow"]) == (7, 11, "ops", "emulated:cxl-asic-x8")
    assert h["peak_bytes"] == PLAN.footprint_bytes
    assert h["fast_capacity_bytes"] == 8 * MIB
    assert h["step_ns_applied"] == h["step_ns_predicted"] == SIMULATED.step_ns
    assert h["step_ns_plain"] == 81_000_000
    assert h["unmanaged_bytes"] == 4097
    assert 0 < h["fast_served_fraction"] <= 1
    assert h["fast_peak_bytes"] <= 8 * MIB
    assert sum(h["cases"].values()) == sum(SIMULATED.counters.values())


def test_what_is_unknown_is_none_and_never_a_word_or_zero() -> None:
    words = {"tracker", "slow", "kind", "policy", "fast"}
    for report in (
        build_report(),
        build_report(profile=PROFILE),
        build_report(plan=PLAN),
        build_report(executed=executed()),
    ):
        assert set(CONTRACT) <= set(report.headline)
        for name, value in report.headline.items():
            assert value is None or isinstance(value, dict) or isinstance(value, str) == (name in words), name
    empty = build_report().headline
    assert {name for name in CONTRACT if empty[name] is not None} == set()
    only_profile = build_report(profile=PROFILE).headline
    assert only_profile["step_ns_applied"] is None
    assert only_profile["stall_ns_per_step"] is None
    assert only_profile["step_ns_plain"] == 81_000_000


@pytest.mark.parametrize("odd", [None, "x", {"1": {}}, {"1": "x", "2": 0}, [1, 2, 3], True, {}])
def test_details_that_are_not_what_they_should_be_are_unknown(odd: Any) -> None:
    """A plan's details are the policy's own, and may come from a file."""
    details = {"mil": odd, "cases": odd, "optimality_gap": odd}
    report = build_report(plan=dataclasses.replace(PLAN, details=details))
    assert report.headline["mil"] is None
    assert report.headline["optimality_gap"] is None
    assert report.headline["cases"] == ({"1": 0, "2": 0, "3": 0} if odd == {} else None)
    assert "unknown" in report.text()


@pytest.mark.parametrize(
    ("given", "setup", "kind", "word"),
    [
        ({"executed": executed(False)}, Setup(), "executed", "Executed"),
        ({"executed": executed()}, Setup(), "emulated", "Emulated"),
        ({"executed": executed(), "simulated": SIMULATED}, Setup(), "emulated", "Emulated"),
        ({"simulated": SIMULATED}, Setup(), "simulated", "Simulated"),
        ({"simulated": SIMULATED}, Setup(kind="declared"), "declared", "Declared"),
        ({"executed": executed(steps=SIMULATED.steps[:0]), "simulated": SIMULATED}, Setup(), "simulated", "Simulated"),
        ({}, Setup(), None, "nothing was applied"),
    ],
)
def test_the_kind_says_exactly_what_was_done(given: dict[str, Run], setup: Setup, kind: str | None, word: str) -> None:
    report = build_report(profile=PROFILE, plan=PLAN, machine=MACHINE, setup=setup, **given)
    assert report.headline["kind"] == kind
    text = report.text()
    assert word in text.split("Headline")[0]
    first_row = text.split("Headline\n")[1].splitlines()[0]
    assert first_row.split("what was done")[1].split()[0] == (kind or "profiled")


def test_figures_of_a_step_leave_out_steps_that_went_astray() -> None:
    steps = SIMULATED.steps.copy()
    steps["duration_ns"][0], steps["in_step"][0] = 10**12, False
    assert build_report(executed=executed(steps=steps)).headline["step_ns_applied"] == SIMULATED.step_ns
    steps["in_step"] = False
    astray = build_report(executed=executed(steps=steps))
    assert astray.headline["step_ns_applied"] is None
    assert any("No step ran as planned" in caveat for caveat in astray.caveats)


# --- frames ---

COLUMNS = {
    "tensors": "tensor role nbytes first_layer last_layer touched_layers tier managed reason",
    "accesses": "tensor layer pages_touched pages_written reads writes",
    "migrations": "step layer block source target nbytes reason start_ns stop_ns outcome",
    "layers": "layer name phase duration_ns flops nbytes_touched stall_ns",
    "footprint": "layer role nbytes",
    "steps": "step duration_ns stall_ns",
}


@pytest.mark.parametrize(("name", "columns"), COLUMNS.items())
def test_frames_have_the_promised_columns(full: Report, name: str, columns: str) -> None:
    assert set(columns.split()) <= set(full.frames()[name].columns)
    assert set(map(str, full.frames()[name].dtypes)) <= {"Int64", "Float64", "string", "boolean"}


def test_frames_say_what_the_nouns_say(full: Report) -> None:
    frames = full.frames()
    tensors = frames["tensors"].set_index("tensor")
    assert list(tensors.index) == list(PROFILE.names)
    assert tuple(tensors.loc["layer1.weight", ["role", "nbytes", "first_layer", "last_layer", "touched_layers"]]) == (
        *("param", 2 * MIB, 0, 7),
        2,
    )
    assert tuple(tensors.loc["round", ["first_layer", "last_layer", "lifetime_layers"]]) == (6, 0, 3)
    assert set(tensors["tier"].dropna()) <= {"fast", "slow"}
    assert tensors.loc["alias.weight", "reason"] == "shared"
    assert not tensors.loc["alias.weight", "managed"]
    assert pd.isna(tensors.loc["alias.weight", "tier"])
    accesses = frames["accesses"]
    assert accesses["pages_touched"].isna().all(), "this tracker does not see pages"
    assert set(accesses["tensor"]) <= set(PROFILE.names)
    assert frames["layers"]["name"].tolist() == ["h.0", "h.1", "h.2", "h.3", "h.3", "h.2", "h.1", "h.0"]
    assert frames["layers"]["flops"].isna().all()
    assert len(frames["migrations"]) == len(SIMULATED.migrations)
    assert set(frames["migrations"]["outcome"]) <= set(OUTCOMES)
    touched = {layer: rows["touched_bytes"].sum() for layer, rows in accesses.groupby("layer")}
    assert frames["layers"].set_index("layer")["nbytes_touched"].to_dict() == touched


def test_pages_and_counts_that_are_unknown_are_missing_not_minus_one() -> None:
    rows = PROFILE.accesses.copy()
    rows["pages_touched"][0], rows["pages_written"][0], rows["reads"][1] = 3, 0, -1
    frames = build_report(profile=dataclasses.replace(PROFILE, accesses=rows)).frames()
    assert frames["accesses"]["pages_touched"].tolist()[0] == 3
    assert frames["accesses"]["pages_written"].tolist()[0] == 0
    assert frames["accesses"]["pages_touched"].isna().sum() == len(rows) - 1
    assert pd.isna(frames["accesses"]["reads"][1])
    first = frames["tensors"].set_index("tensor").loc[PROFILE.names[rows["tensor"][1]]]
    assert pd.isna(first["reads"]), "a sum with an unknown part is unknown"


def test_without_a_run_the_migrations_are_the_planned_ones() -> None:
    moves = build_report(profile=PROFILE, plan=PLAN).frames()["migrations"]
    assert len(moves) == len(PLAN.migrations) > 0
    for column in ("step", "start_ns", "stop_ns", "outcome", "moved_bytes"):
        assert moves[column].isna().all()


def test_callers_cannot_spoil_the_report(full: Report) -> None:
    full.frames().pop("tensors")
    assert "tensors" in full.frames()


# --- sums ---


def _changed(table: str, column: str, value: Any, row: int = 0) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        rows = getattr(SIMULATED, table).copy()
        rows[column][row] = value
        return {"executed": executed(**{table: rows})}

    return make


def _plan(**fields: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"plan": dataclasses.replace(PLAN, **fields), "executed": executed()}


@pytest.mark.parametrize(
    ("inputs", "numbers"),
    [
        (_changed("migrations", "moved_bytes", 1), ("1 bytes", "were to be moved")),
        (_changed("migrations", "moved_bytes", 1 << 40), (str(1 << 40), "were to be")),
        (_changed("migrations", "block", 999), ("999", str(len(PLAN.blocks)))),
        (_changed("layers", "served_fast_bytes", 1 << 40), (str(1 << 40), "were touched")),
        (_changed("layers", "fast_bytes", 9 * MIB), (str(9 * MIB), str(8 * MIB))),
        (_changed("layers", "stall_ns", 10**10), (str(10**10), "the step")),
        (_changed("layers", "duration_ns", 10**10), ("ns", str(int(SIMULATED.steps["duration_ns"][0])))),
        (_changed("layers", "layer", 8, row=7), ("layer 8", "8 layers")),
        (_changed("steps", "fast_peak_bytes", 1), ("the step says 1",)),
        (_changed("steps", "step", 1), ("3 rows", "2 numbers")),
        (lambda: {"executed": executed(tier_names=("a", "b"))}, ("a, b", "fast, slow")),
        (_plan(capacity_bytes=(4096, 1 << 40)), ("4096",)),
        (_plan(layers=PLAN.layers[:3]), ("8", "3")),
        (lambda: {"profile": dataclasses.replace(PROFILE, live_peak_bytes=1 << 50)}, (str(1 << 50), "alive")),
    ],
)
def test_sums_that_disagree_are_refused_naming_both(
    inputs: Callable[[], dict[str, Any]], numbers: tuple[str, ...]
) -> None:
    build_report(profile=PROFILE, plan=PLAN, executed=executed())  # the control: unchanged, they agree
    with pytest.raises(ReportError) as caught:
        build_report(**{"profile": PROFILE, "plan": PLAN, **inputs()})
    assert all(number in str(caught.value) for number in numbers), caught.value
    assert caught.value.left
    assert caught.value.right


def test_a_budget_that_the_run_says_it_broke_is_shown_on_top() -> None:
    rows, steps = SIMULATED.layers.copy(), SIMULATED.steps.copy()
    rows["fast_bytes"][0] = steps["fast_peak_bytes"][0] = 9 * MIB
    report = build_report(plan=PLAN, executed=executed(layers=rows, steps=steps, counters={"overflows": 1}))
    assert report.headline["fast_peak_bytes"] == 9 * MIB
    assert any("1.00 MiB more than its budget" in caveat for caveat in report.caveats)


def test_swapped_runs_are_refused() -> None:
    with pytest.raises(UsageError, match="simulated="):
        build_report(executed=SIMULATED)
    with pytest.raises(UsageError, match="executed="):
        build_report(simulated=executed())


def test_a_report_proves_where_its_plan_came_from(full: Report) -> None:
    assert {state for _, _, state in full.provenance} == {True}
    other = make_profile([param("w", 4096, range(8))], 8)
    mixed = build_report(profile=other, plan=PLAN, simulated=dataclasses.replace(SIMULATED, origin={}))
    assert mixed.provenance == [("plan", "profile", False), ("simulated run", "plan", None)]
    assert "NOT the one shown here" in mixed.text()


# --- caveats ---


def test_a_plan_of_another_machine_is_a_caveat() -> None:
    """Control: without the origin of another one there is none."""
    stranger = with_origin(PLAN, machine=dataclasses.replace(MACHINE, name="another"))
    assert (
        "The plan was made from another machine than is shown here."
        in build_report(plan=stranger, machine=MACHINE).caveats
    )
    own = with_origin(PLAN, machine=MACHINE)
    assert not any("another machine" in caveat for caveat in build_report(plan=own, machine=MACHINE).caveats)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"profile": dataclasses.replace(PROFILE, quality=Quality("perf", "faults", ("reads",)))},
            "does not see writes",
        ),
        (
            {"profile": dataclasses.replace(PROFILE, quality=Quality("perf", "touched layers", ("touches",)))},
            "sees that memory was touched, not whether it was read or written",
        ),
        ({"profile": dataclasses.replace(PROFILE, quality=Quality("perf", "faults", period=7, lost=3))}, "3 events"),
        ({"profile": dataclasses.replace(PROFILE, quality=Quality("perf", "faults", period=7))}, "one event of 7"),
        ({"profile": dataclasses.replace(PROFILE, notes=("odd step",))}, "Odd step."),
        ({"profile": PROFILE}, "estimate"),
        ({"plan": dataclasses.replace(PLAN, provisional=True)}, "provisional"),
        ({"plan": dataclasses.replace(PLAN, fast_needed_bytes=9 * MIB)}, "1.00 MiB below the paper's bound"),
        ({"machine": MACHINE}, "declared, not measured"),
        ({"setup": Setup(notes=("beware",))}, "Beware."),
        ({"executed": executed(events=((2, "a page stayed"),))}, "Step 2: a page stayed"),
        ({"setup": SETUP}, "1 tensor (4.00 KiB) stayed in place"),
    ],
)
def test_each_caveat_stands_on_top_of_every_form(given: dict[str, Any], words: str, tmp_path: Path) -> None:
    assert not any(words in caveat for caveat in build_report().caveats), "the control has it too"
    report = build_report(**given)
    assert any(words in caveat for caveat in report.caveats)
    text = " ".join(report.text().split())
    assert text.index(words) < text.index("Headline")
    report.write(tmp_path / "out.html")
    page = (tmp_path / "out.html").read_text()
    assert page.index(words.replace("'", "&#x27;")) < page.index("<h2>Headline")


# --- forms ---


def test_text_cannot_drive_the_terminal(full: Report) -> None:
    assert "\x1b" not in full.text()
    assert "\u202e" not in full.text()
    assert all(len(line) < 160 for line in full.text().splitlines())


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
        if tag not in ("meta", "input"):
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


def test_reports_need_no_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from sentinel.reports import build_report\n"
        "from tests.unit.test_reports import PROFILE, PLAN\n"
        "report = build_report(profile=PROFILE, plan=PLAN)\n"
        "assert report.text() and report.headline['peak_bytes']\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], check=True, timeout=120)


def test_a_headline_needs_no_pandas() -> None:
    program = (
        "import sys; sys.modules['pandas'] = None\n"
        "from sentinel.reports import build_report\n"
        "assert build_report().headline['kind'] is None\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], check=True, timeout=120)


def test_the_plan_of_the_tests_migrates() -> None:
    """Else most tests above would pass on empty tables."""
    assert isinstance(PLAN, Plan)
    assert len(PLAN.migrations) >= 2
    assert np.unique(SIMULATED.migrations["target"]).tolist() == [0, 1]


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
