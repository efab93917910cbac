"""`sentinel compare`: an order known beforehand, the knee of curves made by hand, every form, refusals that show."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from sentinel import files
from sentinel.cli import compare as verb
from sentinel.cli import main
from sentinel.core.errors import UsageError
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.units import format_bytes
from sentinel.planner import POLICIES, check_policies, plan, sweep
from sentinel.planner.sweep import (
    DEFAULT_POLICIES,
    Comparison,
    Point,
    cells,
    curve,
    knee,
    make_subject,
    near_knee,
)
from sentinel.reports.html.policy_comparison_page import comparison_page
from sentinel.reports.policy_comparison import answer, text
from tests.builders import MIB, act, make_machine, make_profile, param

MACHINE = make_machine(512 * MIB)
VOID = {"meta", "input", "link", "br", "img"}


def built_profile() -> Profile:
    """Eight layers of 1 ms, 4 MiB of weights each, used forward and back, and activations in between."""
    specs = [param(f"w{k}", 4 * MIB, [k, 7 - k]) for k in range(4)]
    specs += [act(f"a{k}", 2 * MIB, k, 8 - k, [7 - k]) for k in range(4)]
    return make_profile(specs, 8, layer_ns=1_000_000)


PROFILE = built_profile()


def points(*speeds: float | None) -> list[Point]:
    return [
        Point("p", f"{k}0%", k * MIB, None if s is None else int(1000 / s), s, 0, "" if s else "no room")
        for k, s in enumerate(speeds, 1)
    ]


def compared(tmp_path: Path, capsys: pytest.CaptureFixture[str], *more: str, code: int = 0) -> str:
    files.save(PROFILE, tmp_path / "small.safetensors")
    files.save(MACHINE, tmp_path / "machine.json")
    given = ["compare", "--machine", str(tmp_path / "machine.json"), str(tmp_path / "small.safetensors"), *more]
    assert main(given) == code
    return capsys.readouterr().out if code == 0 else capsys.readouterr().err


def test_the_knee_is_the_least_amount_with_95_percent() -> None:
    found = knee(points(0.5, 0.94, 0.95, 0.99))
    assert found is not None
    assert (found.fast, found.fast_bytes, found.too_little_bytes) == ("30%", 3 * MIB, 2 * MIB)


def test_a_curve_that_stays_low_has_no_knee_and_a_high_one_has_it_first() -> None:
    assert knee(points(0.5, 0.7, 0.9)) is None
    assert knee([]) is None
    found = knee(points(0.99, 1.0))
    assert found is not None
    assert found.too_little_bytes is None


def test_a_refused_amount_is_too_little() -> None:
    for less in (None, 0.9):
        found = knee(points(less, 0.97))
        assert found is not None
        assert found.too_little_bytes == MIB
        assert answer(found).endswith("; the next smaller amount tried, 1.00 MiB, is not enough for 95%.")


def test_all_fast_sentinel_and_all_slow_come_in_that_order() -> None:
    subject = make_subject("p", PROFILE, MACHINE)
    assert subject.all_fast_step_ns == 8_000_000  # the recorded time: nothing is slow
    (point,) = curve(subject, PROFILE, MACHINE, {"40%": subject.footprint_bytes * 2 // 5 // 4096 * 4096})
    found = {cell.policy: cell for cell in cells(subject, PROFILE, MACHINE, point, tuple(POLICIES))}
    ours, slow = found["sentinel"], found["all-slow"]
    assert ours.step_ns is not None
    assert slow.step_ns is not None
    assert subject.all_fast_step_ns < ours.step_ns < slow.step_ns
    assert all(c.of_bound is None or c.of_bound <= 1 for c in found.values())
    assert all(c.step_ns is None or c.step_ns >= ours.step_ns for c in found.values())
    assert (ours.step_ns, ours.migrated_bytes_per_step) == (point.step_ns, point.migrated_bytes_per_step)
    assert found["all-fast"].step_ns is None  # not hidden: it has a cell, and the cell says why
    assert f"needs {format_bytes(subject.footprint_bytes)} of fast memory" in found["all-fast"].refused


def test_every_plan_is_tried_on_a_worse_machine_and_says_what_it_holds() -> None:
    """Slow: 0.10 ns a byte read or written against 0.01 in fast memory; there 0.15. Eight layers take 8 ms."""
    subject = make_subject("p", PROFILE, MACHINE)
    (point,) = curve(subject, PROFILE, MACHINE, {"40%": subject.footprint_bytes * 2 // 5 // 4096 * 4096})
    found = {cell.policy: cell for cell in cells(subject, PROFILE, MACHINE, point, DEFAULT_POLICIES)}
    for cell in found.values():
        assert cell.step_ns is not None
        assert cell.worse_step_ns is not None
        assert cell.step_ns < cell.worse_step_ns
        assert cell.worse_speed == subject.all_fast_step_ns / cell.worse_step_ns
        assert cell.half_links_step_ns is not None
        assert cell.step_ns <= cell.half_links_step_ns <= cell.worse_step_ns
        assert cell.half_links_speed == subject.all_fast_step_ns / cell.half_links_step_ns
        assert (cell.step_ns == cell.half_links_step_ns) or cell.migrated_bytes_per_step
        assert cell.fast_mean_bytes is not None
        assert cell.fast_mean_bytes <= (cell.fast_peak_bytes or 0) <= cell.fast_bytes
    slow = found["all-slow"]
    assert ((slow.worse_step_ns or 0) - 8e6) / ((slow.step_ns or 0) - 8e6) == pytest.approx(14 / 9, rel=1e-3)
    assert slow.fast_mean_bytes == slow.mean_share == 0
    for cell in found.values():
        assert cell.exchange_step_ns is not None
        assert cell.exchange_step_ns <= cell.bound_step_ns * 1.0001
    ours = found["sentinel"]
    assert (ours.worse_step_ns, ours.fast_mean_bytes) == (point.worse_step_ns, point.fast_mean_bytes)


def test_the_best_placement_that_moves_nothing_is_a_rival() -> None:
    """Room for half of what is read once, or of what is read in each of 8 layers."""
    profile = make_profile([param("once", 4 * MIB, [0]), param("often", 4 * MIB, range(8))], 8)
    subject = make_subject("p", profile, MACHINE)
    (point,) = curve(subject, profile, MACHINE, {"50%": 4 * MIB})
    found = {cell.policy: cell for cell in cells(subject, profile, MACHINE, point, DEFAULT_POLICIES)}
    best = found["best-static"]
    assert best.migrated_bytes_per_step == 0
    for name in ("static", "first-touch", "interleave", "weighted-interleave", "all-slow"):
        assert found[name].migrated_bytes_per_step == 0
        assert (best.step_ns or 0) < (found[name].step_ns or 0)


def test_every_policy_may_use_a_plan_for_less_fast_memory_again_or_none_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more than 20 % each policy is made to forget all that it knows."""
    subject = make_subject("p", PROFILE, MACHINE)
    less, more = (subject.footprint_bytes * share // 10 // 4096 * 4096 for share in (2, 4))
    made = sweep.plan

    def forgetful(profile: Profile, machine: Machine, policy: str, **more: float | None) -> Plan:
        return made(profile, machine, policy if machine.fast.capacity_bytes <= less else "all-slow", **more)

    monkeypatch.setattr(sweep, "plan", forgetful)
    policies = ("sentinel", "sentinel-2021", "first-touch", "best-static")
    at = {nbytes: Point("p", f"{nbytes}B", nbytes, None, None, None, "") for nbytes in (less, more)}
    best: dict[str, Plan] = {}
    first, second = (cells(subject, PROFILE, MACHINE, at[nbytes], policies, best=best) for nbytes in (less, more))
    alone = cells(subject, PROFILE, MACHINE, at[more], policies)
    for policy, small, large, by_itself in zip(policies, first, second, alone, strict=True):
        assert small.policy == large.policy == policy
        assert small.step_ns is not None
        assert by_itself.step_ns is not None
        assert large.step_ns == small.step_ns < by_itself.step_ns
        assert large.fast_bytes == more
        assert large.migrated_bytes_per_step == small.migrated_bytes_per_step


def test_a_point_of_the_curve_is_the_best_plan_up_to_it_and_the_last_is_all_fast() -> None:
    subject = make_subject("p", PROFILE, MACHINE)
    budgets = [subject.footprint_bytes * k // 5 // 4096 * 4096 for k in (1, 3, 5)]
    found = list(curve(subject, PROFILE, MACHINE, {f"b{b}": b for b in reversed(budgets)} | {"again": budgets[0]}))
    assert [point.fast_bytes for point in found] == budgets
    alone = [plan(PROFILE, MACHINE.with_fast_capacity(nbytes)).predicted_step_ns or 0 for nbytes in budgets]
    assert [point.step_ns for point in found] == list(accumulate(alone, min))
    assert found[-1].speed == 1
    assert found[0].speed is not None
    assert found[0].speed < 1


def test_what_lies_below_the_knee_is_halved_twice_and_the_curve_stays_one() -> None:
    subject = make_subject("p", PROFILE, MACHINE)
    shares = {f"{k}0%": subject.footprint_bytes * k // 10 // 4096 * 4096 for k in range(1, 11)}
    coarse = list(curve(subject, PROFILE, MACHINE, shares))
    fine = near_knee(subject, PROFILE, MACHINE, coarse)
    before, after = knee(coarse), knee(fine)
    assert before is not None
    assert after is not None
    assert {point.fast for point in coarse} < {point.fast for point in fine}
    assert len(fine) == len(coarse) + 2
    assert (before.too_little_bytes or 0) <= (after.too_little_bytes or 0) < after.fast_bytes <= before.fast_bytes
    assert after.fast_bytes - (after.too_little_bytes or 0) <= subject.footprint_bytes * 0.026
    assert [p.fast_bytes for p in fine] == sorted(p.fast_bytes for p in fine)
    times = [point.step_ns or 0 for point in fine]
    assert times == sorted(times, reverse=True)


def test_a_curve_without_a_knee_or_with_nothing_below_it_is_left_alone() -> None:
    subject = make_subject("p", PROFILE, MACHINE)
    for made in (points(0.5, 0.7), points(0.99, 1.0), []):
        assert near_knee(subject, PROFILE, MACHINE, made) == made


def test_where_slow_memory_cannot_be_addressed_too_small_amounts_are_refused_not_raised() -> None:
    machine = make_machine(512 * MIB, addressable=False)
    subject = make_subject("p", PROFILE, machine)
    first, last = curve(subject, PROFILE, machine, {"4KiB": 4096, "100%": subject.footprint_bytes})
    assert first.step_ns is None
    assert "fast memory" in first.refused
    assert last.speed == 1
    assert all(cell.refused for cell in cells(subject, PROFILE, machine, first, ("sentinel", "sentinel-2021")))


def test_a_step_of_one_nanosecond_has_no_speed_at_its_bound() -> None:
    """The bound, rounded down, is 0 ns."""
    profile = make_profile([param("w", MIB, [])], 1, layer_ns=1)
    subject = make_subject("p", profile, MACHINE)
    (point,) = curve(subject, profile, MACHINE, {"100%": MIB})
    (cell,) = cells(subject, profile, MACHINE, point, ("static",))
    assert (cell.step_ns, cell.bound_step_ns, cell.bound_speed) == (1, 0, None)
    found = Comparison("m", ("static",), (subject,), (cell,), (point,), ())
    assert re.search(r"^\(the bound\) +-$", text(found), re.MULTILINE)
    comparison_page(found)


def test_a_step_without_tensors_and_an_unknown_policy_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="no managed tensor"):
        make_subject("empty", make_profile([], 3), MACHINE)
    with pytest.raises(UsageError, match=r"'nope'.*choose one of"):
        check_policies(["sentinel", "nope"])


def test_json_is_one_object_with_cells_curve_and_knee(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = compared(tmp_path, capsys, "--fast", "20%,50%", "--curve", "20%,100%", "--json")
    found: dict[str, Any] = json.loads(out)
    assert found["kind"] == "simulated"
    assert found["policies"] == list(DEFAULT_POLICIES)
    assert {"sentinel", "sentinel-2021", "first-touch", "static", "next-use", "interleave", "all-slow"} <= set(
        found["policies"]
    )
    places = [(cell["fast"], cell["policy"]) for cell in found["cells"]]
    assert places == [(fast, policy) for fast in ("20%", "50%") for policy in DEFAULT_POLICIES]
    for cell in found["cells"]:
        assert cell["of_bound"] == pytest.approx(cell["bound_step_ns"] / cell["step_ns"])
        assert cell["speed"] == pytest.approx(cell["bound_speed"] * cell["of_bound"])
        assert cell["worse_step_ns"] > cell["step_ns"]
        assert cell["fast_mean_bytes"] <= cell["fast_peak_bytes"]
        assert cell["step_ns"] <= cell["half_links_step_ns"] <= cell["worse_step_ns"]
    assert "half" in found["worse_machine"]
    assert "alone carry half" in found["half_links"]
    assert "counted as 0" in found["price_of_moves"]
    assert [point["fast"] for point in found["curve"]] == ["20%", "50%", "75%", "87.5%", "100%"]  # two near the knee
    speeds = [point["speed"] for point in found["curve"]]
    assert speeds == sorted(speeds)
    (bend,) = found["knee"]
    assert bend["fast"] == next(p["fast"] for p in found["curve"] if p["speed"] >= 0.95)
    (subject,) = found["profiles"]
    assert (subject["profile"], subject["n_tensors"], subject["n_layers"]) == ("small", 8, 8)


def test_text_says_simulated_marks_the_knee_and_shows_refusals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = compared(tmp_path, capsys, "--fast", "20%", "--curve", "100%", "--policies", "sentinel,all-fast")
    assert out.startswith("simulated on built: predictions, nothing was run\nThe time that moves between fast and slow")
    assert "as described / the same plan where links alone carry half / the same plan on a worse machine" in out
    assert "links carry half, slow accesses take 1.5 times as long" in out
    (row,) = [line for line in out.splitlines() if line.startswith("sentinel") and line.count("ms") >= 3]
    assert row.count(" / ") == 2
    assert "Fast memory held, simulated: at most / in the mean over the step" in out
    assert out.count("<- knee") == 1
    assert "all-fast at 20%: " in out
    assert "keeps everything in the fast tier" in out


def test_the_gap_of_a_search_stands_below_the_table_of_its_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all forms, of one search: it takes seconds."""
    search = verb._compared
    searched: list[sweep.Comparison] = []

    def once(*given: Any) -> sweep.Comparison:
        if not searched:
            searched.append(search(*given))
        return searched[0]

    monkeypatch.setattr(verb, "_compared", once)
    path = tmp_path / "out.html"
    more = ("--fast", "20%,50%", "--curve", "100%", "--policies", "sentinel,autotm", "--search-limit", "600")
    found = json.loads(compared(tmp_path, capsys, *more, "--json"))
    gaps = {(cell["policy"], cell["fast"]): cell["gap"] for cell in found["cells"]}
    assert gaps["sentinel", "20%"] is gaps["sentinel", "50%"] is None
    told = (
        f"autotm: the gap of its search is {gaps['autotm', '20%']:.2%} with 20%, {gaps['autotm', '50%']:.2%} with 50%;"
    )
    assert told in compared(tmp_path, capsys, *more, "--html", str(path))
    assert told in path.read_text()


class Elements(HTMLParser):
    """Fails on an end tag that does not close what was opened last."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_fetches_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.html"
    more = ("--fast", "20%", "--curve", "100%", "--policies", "sentinel,all-fast,<b>")
    assert "'<b>'" in compared(tmp_path, capsys, *more, code=2)
    assert not path.exists()
    compared(tmp_path, capsys, *more[:-1], "sentinel,all-fast", "--html", str(path))
    page = path.read_text()
    elements = Elements()
    elements.feed(page)
    assert elements.open == []
    assert {"svg", "circle", "table"} <= set(elements.seen)
    assert "http://" not in page
    assert "https://" not in page
    assert "simulated" in page
    assert "knee: 100%" in page
    assert "on a worse machine" in page
    assert "with half the links (simulated)" in page
    assert "on built is counted as 0" in page
    assert "in the mean over the step" in page
    assert "Knee (simulated): 100%" in page.split("Before you read")[0], "the answer comes first"
    assert "keeps everything in the fast tier" in page


def test_a_page_that_cannot_be_written_is_told_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.planner.sweep.make_subject", lambda *_: pytest.fail("work was done"))
    assert "no/folder" in compared(tmp_path, capsys, "--html", str(tmp_path / "no/folder/x.html"), code=1)


def test_a_profile_given_twice_and_a_file_of_another_kind_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twice = compared(tmp_path, capsys, str(tmp_path / "small.safetensors"), code=2)
    assert "given twice" in twice
    other = compared(tmp_path, capsys, str(tmp_path / "machine.json"), code=1)
    assert "not a profile" in other
    assert len(twice.splitlines()) == len(other.splitlines()) == 1


def test_two_profiles_of_one_name_are_told_by_their_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other").mkdir()
    files.save(PROFILE, tmp_path / "other" / "small.safetensors")
    more = ("--fast", "50%", "--curve", "50%", "--policies", "all-slow", "--json")
    found = json.loads(compared(tmp_path, capsys, str(tmp_path / "other" / "small.safetensors"), *more))
    names = [subject["profile"] for subject in found["profiles"]]
    assert names == [str(tmp_path / "small.safetensors"), str(tmp_path / "other" / "small.safetensors")]
    assert [cell["profile"] for cell in found["cells"]] == names


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--fast", "8GB"), "GiB?"),
        (("--bound-limit", "0"), "above 0"),
        (("--search-limit", "0"), "above 0"),
        (("--fast", ""), "amount"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SystemExit) as leaving:
        compared(tmp_path, capsys, *more)
    assert leaving.value.code == 2
    assert said in capsys.readouterr().err
