"""The report's table of hot and cold ranges, against a table of known content."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pandas")

from sentinel import planner
from sentinel.reports import build_report
from sentinel.simulator import simulate
from tests.builders import GB, MIB, make_machine
from tests.unit.test_extents import TABLE_BYTES, table_profile

MACHINE = make_machine(MIB + 200_000, slow_bw=GB, promote=10**6, demote=10**6)


@pytest.fixture(scope="module")
def report():
    profile = table_profile()
    plan = planner.plan(profile, MACHINE)
    return build_report(profile=profile, plan=plan, machine=MACHINE, simulated=simulate(plan, profile, MACHINE))


def test_each_range_has_its_density_its_share_and_its_tier(report):
    rows = report.frames()["ranges"].astype(object).to_dict("records")
    assert [(r["tensor"], r["first_page"], r["stop_page"], r["tier"]) for r in rows] == [
        ("table", 0, 32, "fast"),
        ("table", 32, 512, "slow"),
    ]
    hot, cold = rows
    assert (hot["page_touches"], hot["touched_layers"], hot["density"]) == (62, 2, 62 / 64)
    assert cold["density"] == pytest.approx(108 / 960)
    assert hot["share_of_touches"] == pytest.approx(62 / 170)
    assert hot["nbytes"] + cold["nbytes"] == TABLE_BYTES
    assert (hot["fast_bytes"], cold["fast_bytes"], hot["migrations"]) == (32 * 4096, 0, 0)


def test_both_placements_are_shown_everywhere(report, tmp_path):
    ranged, whole = (report.headline[f"fast_served_fraction_{name}"] for name in ("ranged", "whole"))
    assert ranged == pytest.approx(report.headline["fast_served_fraction"])
    assert ranged > whole
    text = report.text()
    assert f"page ranges {ranged:.1%}" in text
    assert f"whole tensors {whole:.1%}" in text
    assert "[32:512]" in text
    report.write(tmp_path / "r.html")
    assert "Hot and cold ranges of large tensors" in (tmp_path / "r.html").read_text()
    report.write(tmp_path / "r.json")
    told = json.loads((tmp_path / "r.json").read_text())
    assert told["headline"]["fast_served_fraction_whole"] == whole
    assert told["frames"]["ranges"]["stop_page"] == [32, 512]
    assert told["details"]["page_ranges"]["chosen"] == "ranged"
    report.write(tmp_path / "r.csv")
    assert (tmp_path / "r-ranges.csv").read_text().startswith("tensor,first_page")


def test_ranges_without_a_plan_have_no_tier():
    report = build_report(profile=table_profile())
    assert report.frames()["ranges"]["tier"].isna().all()
    assert report.frames()["ranges"]["fast_bytes"].isna().all()
    assert "unknown" in report.text()


def test_without_ranges_nothing_is_said():
    profile = table_profile(ranged=False)
    plan = planner.plan(profile, MACHINE, "first-touch")
    report = build_report(profile=profile, plan=plan, machine=MACHINE, simulated=simulate(plan, profile, MACHINE))
    assert "ranges" not in report.frames()
    assert report.headline["fast_served_fraction_ranged"] is None
    assert "ranges" not in report.text()
