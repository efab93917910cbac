"""Two reports compared: what changed by tensor, what it cost, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sentinel import planner
from sentinel.cli import main
from sentinel.cli.compare_reports import are_reports
from sentinel.core.errors import FormatError
from sentinel.core.profile import Profile
from sentinel.reports import build_report
from sentinel.reports.html.page import page
from sentinel.reports.report_difference import Difference, DifferenceReport
from sentinel.reports.saved_report import SavedReport, load_report
from sentinel.reports.text import text_of
from sentinel.simulator import simulate
from tests.builders import GB, MIB, make_machine, make_profile, param, persistent_plan
from tests.unit.report_builders import report_on_a_file

MACHINE = make_machine(64 * MIB, fast_bw=100 * GB, slow_bw=10 * GB)


def profile(*more: str) -> Profile:
    names = ["h.0.w", "h.1.w", "head", *more]
    return make_profile([param(name, 8 * MIB, [k % 4]) for k, name in enumerate(names)], 4)


def written(path: Path, tiers: list[int], moves: Any = (), more: tuple[str, ...] = ()) -> Path:
    made = profile(*more)
    plan = persistent_plan(made, tiers, moves)
    run = simulate(plan, made, MACHINE, steps=2)
    build_report(profile=made, plan=plan, machine=MACHINE, simulated=run).write(path)
    return path


def difference(a: Path, b: Path) -> Difference:
    return Difference(load_report(a), load_report(b))


def test_sessions_on_a_file_are_compared_by_memory_and_time(tmp_path: Path) -> None:
    for name, step_ns, pool in (("a", 4_000_000, 32 * MIB), ("b", 3_000_000, 48 * MIB)):
        report_on_a_file(most_pool_bytes=pool, tensor_peak_bytes=96 * MIB, step_ns=step_ns).write(
            tmp_path / f"{name}.json"
        )
    found = DifferenceReport(difference(tmp_path / "a.json", tmp_path / "b.json"))
    assert found.heading.done == (
        "A step takes 3.00 ms instead of 4.00 ms (-25.0%), with 48.00 MiB of fast memory instead of 32.00 MiB."
    )
    assert not found.caveats


def test_what_went_to_fast_memory_gains_what_it_lost(tmp_path: Path) -> None:
    a, b = written(tmp_path / "a.json", [1, 1, 0]), written(tmp_path / "b.json", [0, 0, 1])
    found = difference(a, b)
    lost = 8 * MIB * (1e9 / (10 * GB) - 1e9 / (100 * GB))
    rows = {row["tensor"]: row for row in found.tensors.to_dict("records")}
    assert {name: round(row["change_ns"]) for name, row in rows.items()} == {
        "h.0.w": round(-lost),
        "h.1.w": round(-lost),
        "head": round(lost),
    }
    assert rows["head"]["what"] == "begins in slow instead of fast"
    text = text_of(DifferenceReport(found))
    assert "h.*.w ×2" in text
    assert "cost 754.98 µs less" in text
    assert "a step takes" in found.answer().lower()


@pytest.mark.parametrize(
    ("kinds", "badge"),
    [
        (("executed", "executed"), '<span class="badge">executed</span>'),
        (("executed", "emulated"), '<span class="badge dashed">executed, emulated</span>'),
        (("emulated", "emulated"), '<span class="badge dashed">emulated</span>'),
        ((None, None), '<span class="badge dashed">profiled only</span>'),
        ((" ", " "), '<span class="badge dashed"> </span>'),
    ],
)
def test_a_comparison_is_not_marked_as_executed_unless_both_reports_are(kinds: tuple[str, str], badge: str) -> None:
    """Whatever else their headlines have: files may be of anybody."""
    a, b = (
        SavedReport(name, {"kind": kind, "busy_applied_share": "x"}, {}) for name, kind in zip("ab", kinds, strict=True)
    )
    assert badge in page(DifferenceReport(Difference(a, b)))


def test_an_applied_step_is_not_compared_with_a_predicted_one() -> None:
    """One run has no step that ran as planned."""
    ran = {"kind": "executed", "step_ns_applied": 3_000_000, "step_ns_predicted": 1_000_000}
    astray = {"kind": "executed", "step_ns_applied": None, "step_ns_predicted": 2_000_000}
    a, b = (SavedReport(name, headline, {}) for name, headline in (("a", ran), ("b", astray)))
    assert Difference(a, b).answer().startswith("As predicted, a step takes 2.00 ms instead of 1.00 ms (+100.0%)")
    assert Difference(a, a).answer().startswith("A step takes 3.00 ms instead of 3.00 ms (+0.0%)")
    unknown = SavedReport("c", astray | {"step_ns_predicted": None}, {})
    assert "step" not in Difference(a, unknown).answer()


def test_equal_reports_differ_in_nothing(tmp_path: Path) -> None:
    a, b = (written(tmp_path / name, [1, 0, 0]) for name in ("a.json", "b.json"))
    found = difference(a, b)
    assert len(found.tensors) == 0
    assert "0 tensors changed" in found.answer()


def test_tensors_that_come_go_and_move_are_told(tmp_path: Path) -> None:
    a = written(tmp_path / "a.json", [0, 0, 0, 0], more=("old",))
    b = written(tmp_path / "b.json", [0, 0, 0, 0], [(0, 0, 1, 1, 2), (0, 1, 0, 3, 4)], more=("new",))
    told = dict(difference(a, b).tensors[["tensor", "what"]].to_numpy().tolist())
    assert told["old"] == "gone"
    assert told["new"] == "new"
    assert "moves now" in told["h.0.w"]
    back = dict(difference(b, a).tensors[["tensor", "what"]].to_numpy().tolist())
    assert "moves no more" in back["h.0.w"]


def test_the_verb_prints_text_object_and_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = written(tmp_path / "a.json", [1, 1, 0]), written(tmp_path / "b.json", [0, 1, 0])
    assert main(["compare", str(a), str(b), "--html", str(tmp_path / "c.html")]) == 0
    assert "Tensors that changed" in capsys.readouterr().out
    assert "<h2>Tensors that changed</h2>" in (tmp_path / "c.html").read_text()
    assert main(["compare", str(a), str(b), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["reports"] == ["a.json", "b.json"]
    assert found["frames"]["tensors"]["tensor"] == ["h.0.w"]


def test_unlike_reports_say_so(tmp_path: Path) -> None:
    a = written(tmp_path / "a.json", [1, 1, 0])
    build_report(profile=profile()).write(tmp_path / "b.json")
    report = DifferenceReport(difference(a, tmp_path / "b.json"))
    assert any("does not say what its tensors lose" in caveat for caveat in report.caveats)
    assert any("what was done" in caveat for caveat in report.caveats)
    assert text_of(report)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[]", "no report"),
        ('{"format": "sentinel-plan"}', "is a sentinel-plan"),
        ('{"format": "sentinel-report", "version": 99}', "version"),
        ('{"format": "sentinel-report", "version": 1}', "headline"),
        (
            '{"format": "sentinel-report", "version": 1, "headline": {}, "frames": {"t": {"a": [1], "b": []}}}',
            "frames.t",
        ),
        ("{", "not JSON"),
    ],
)
def test_what_is_no_report_is_refused_in_one_line(
    content: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = written(tmp_path / "a.json", [1, 1, 0]), tmp_path / "b.json"
    bad.write_text(content)
    with pytest.raises(FormatError, match=words):
        load_report(bad)
    assert main(["compare", str(good), str(bad)]) == 1
    assert words in capsys.readouterr().err


def test_a_report_alone_or_beside_a_machine_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = written(tmp_path / "a.json", [1, 1, 0])
    assert main(["compare", str(a)]) == 2
    assert "give two" in capsys.readouterr().err
    assert main(["compare", str(a), str(a), "--machine", "cxl-m5"]) == 2
    assert "leave it out" in capsys.readouterr().err


def test_reports_are_told_from_profiles_by_their_names() -> None:
    assert are_reports(["a.json", "b.JSON"])
    assert not are_reports(["a.safetensors", "b.json"])
    assert not are_reports([])


def test_values_of_other_kinds_are_unknown(tmp_path: Path) -> None:
    """A report that was edited is read as far as it makes sense."""
    a = written(tmp_path / "a.json", [1, 1, 0])
    value = json.loads(a.read_text())
    value["frames"]["tensors"]["nbytes"][0] = "many"
    value["frames"]["slow_tensors"]["slow_ns"][0] = True
    (tmp_path / "b.json").write_text(json.dumps(value))
    assert text_of(DifferenceReport(difference(a, tmp_path / "b.json")))


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("frames", "tensors", "tensor"), None),
        (("frames", "tensors", "tensor"), ["h.0.w"]),
        (("frames", "slow_tensors", "tensor"), None),
        (("frames", "tensors", "nbytes"), 10**400),
        (("headline", "step_ns_predicted"), 10**400),
        (("headline", "fast_capacity_bytes"), 10**400),
        (("headline", "fast_served_fraction"), 10**400),
    ],
    ids=lambda told: ".".join(told) if isinstance(told, tuple) else type(told).__name__,
)
def test_values_that_no_table_holds_are_unknown(
    where: tuple[str, ...], value: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = written(tmp_path / "a.json", [1, 1, 0])
    told = json.loads(a.read_text())
    place: Any = told
    for key in where[:-1]:
        place = place[key]
    if where[0] == "frames":
        place[where[-1]][0] = value
    else:
        place[where[-1]] = value
    (tmp_path / "b.json").write_text(json.dumps(told))
    for pair in (("a.json", "b.json"), ("b.json", "a.json"), ("b.json", "b.json")):
        for form in ([], ["--json"], ["--html", str(tmp_path / "c.html")]):
            assert main(["compare", *(str(tmp_path / name) for name in pair), *form]) == 0
            assert capsys.readouterr().out


def test_the_plan_of_another_policy_is_compared(tmp_path: Path) -> None:
    made, paths = profile(), []
    small = MACHINE.with_fast_capacity(12 * MIB)
    for policy in ("all-slow", "first-touch"):
        plan = planner.plan(made, small, policy)
        report = build_report(profile=made, plan=plan, machine=small, simulated=simulate(plan, made, small))
        paths.append(report.write(tmp_path / f"{policy}.json")[0])
    change = difference(*paths).tensors["change_ns"]
    assert len(change)
    assert (change < 0).all()
