"""Each section of the report by itself: what its table, its text and its markup say of a report of known content."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

from sentinel.core.counters import Counters
from sentinel.core.false_sharing import FalseSharing
from sentinel.core.run import MovedBy, Witnessed
from sentinel.reports import Report, build_report
from sentinel.reports.frame_columns import of_names, truths, whole, words
from sentinel.reports.headline import claimed_pages, migrated_by_step, served_fraction, steady_steps
from sentinel.reports.outside_plan import live_by_layer
from sentinel.reports.perfetto import timeline
from sentinel.reports.section import Section
from sentinel.reports.sections.false_sharing_table import FALSE_SHARING
from sentinel.reports.sections.footprint import FOOTPRINT, OCCUPANCY
from sentinel.reports.sections.key_figures import KEY_FIGURES, headline_rows
from sentinel.reports.sections.layer_times import LAYER_TIMES
from sentinel.reports.sections.migrations import MIGRATIONS, TIMELINE
from sentinel.reports.sections.origin import ORIGIN
from sentinel.reports.sections.page_range_table import PAGE_RANGES
from sentinel.reports.sections.steps_and_blocks import BLOCKS, STEPS
from sentinel.reports.sections.tensor_tables import ACCESSES, HEAT, TENSORS
from sentinel.reports.sections.unmanaged_tables import IN_PLACE, UNMANAGED
from tests.builders import MIB
from tests.unit.report_builders import MACHINE, PLAN, PROFILE, SETUP, SIMULATED, executed, full_report


@pytest.fixture(scope="module")
def full() -> Report:
    return full_report()


def frame(section: Section, report: Report) -> pd.DataFrame:
    found = section.frame(report.facts)
    assert found is not None
    return found


def test_columns_keep_what_is_unknown_apart() -> None:
    assert whole([1, 2], [True, False]).tolist() == [1, pd.NA]
    assert words(["a", "", None]).tolist() == ["a", pd.NA, pd.NA]
    assert truths(np.array([0, 1])).tolist() == [False, True]
    assert of_names(("a", "b"), np.array([1, -1, 0])).tolist() == ["b", pd.NA, "a"]


def test_footprint_and_occupancy_add_up_to_the_nouns(full: Report) -> None:
    footprint = frame(FOOTPRINT, full)
    by_layer = footprint.groupby("layer")["nbytes"].sum().tolist()
    managed, live = live_by_layer(PROFILE)
    assert by_layer == live.tolist()
    assert (live - managed).tolist() == [4096] * 8  # alias.weight
    occupancy = frame(OCCUPANCY, full)
    assert occupancy["held_bytes"].tolist() == PLAN.held_bytes.reshape(-1).tolist()
    assert (occupancy["ran_bytes"][occupancy["tier"] == "fast"] <= 8 * MIB).all()


def test_steps_layers_and_migrations_are_those_of_the_run(full: Report) -> None:
    steps, layers, moves = (frame(section, full) for section in (STEPS, LAYER_TIMES, MIGRATIONS))
    assert steps["duration_ns"].tolist() == SIMULATED.steps["duration_ns"].tolist()
    assert steps["migrated_bytes"].tolist() == [migrated_by_step(SIMULATED)[step] for step in range(3)]
    assert steady_steps(SIMULATED) == [0, 1, 2]
    assert layers["duration_ns"].sum() == SIMULATED.step_ns
    assert layers["plain_ns"].tolist() == [10_000_000] * 8
    assert moves["nbytes"].sum() == SIMULATED.migrations["nbytes"].sum()
    assert set(moves["errno"].isna()) == {True}
    assert TIMELINE.html(full).count("<rect") >= len(SIMULATED.migrations) // 3


def test_blocks_and_tensors_are_those_of_the_plan(full: Report) -> None:
    blocks, tensors, accesses = (frame(section, full) for section in (BLOCKS, TENSORS, ACCESSES))
    assert blocks["nbytes"].tolist() == [block.nbytes for block in PLAN.blocks]
    assert blocks["migrations"].sum() == len(PLAN.migrations)
    assert tensors["nbytes"].sum() == PROFILE.tensors["nbytes"].sum()
    assert len(accesses) == len(PROFILE.accesses)
    assert "layer2.weight" in HEAT.html(full)


def test_what_no_plan_covers_is_told_with_its_reason(full: Report) -> None:
    assert frame(IN_PLACE, full).values.tolist() == [["alias.weight", 4096, "shared"]]
    assert frame(UNMANAGED, full).values.tolist() == [["no slot", 4097]]
    assert UNMANAGED.text(full).rows == [("4.00 KiB", "no slot")]


def test_tables_that_a_profile_may_lack_are_left_out(full: Report) -> None:
    assert PAGE_RANGES.frame(full.facts) is None
    assert FALSE_SHARING.frame(full.facts) is None
    sharing = FalseSharing(3, (3, *[0] * 7), (5000, *[0] * 7), 9, "as malloc would")
    shared = build_report(profile=dataclasses.replace(PROFILE, sharing=sharing), plan=None, machine=None)
    table = frame(FALSE_SHARING, shared)
    assert (table["pages"].tolist(), table["cold_bytes"].tolist()) == ([3, *[0] * 7], [5000, *[0] * 7])
    assert "3 pages" in str(FALSE_SHARING.text(shared).rows)


def test_the_headline_says_what_was_done_first(full: Report) -> None:
    rows = headline_rows(full.headline)
    assert rows[0][:2] == ("what was done", "emulated")
    assert KEY_FIGURES.text(full).rows == rows
    served = f"{served_fraction(SIMULATED):.1%}"
    assert ("served from fast", served, "of the bytes touched") in rows
    assert served in KEY_FIGURES.html(full)
    estimated = headline_rows({**full.headline, "step_ns_profiled": 0})
    assert ("step, profiled", "unknown", "") in estimated


def test_counters_and_the_witness_are_told_with_units() -> None:
    seen = Witnessed((MovedBy("syscall", True, 1, 7),), lost=3)
    run = executed(emulated=False, witnessed=seen, counters=Counters(migrated_bytes=3 * MIB, held_back=5))
    report = build_report(profile=PROFILE, plan=PLAN, machine=MACHINE, executed=run, setup=SETUP)
    markup = ORIGIN.html(report)
    assert "migrated</th>" in markup or "migrated</td>" in markup
    assert all(word in markup for word in ("3.00 MiB", "held back", "witness, records lost"))
    assert ("plan made from this profile", "proved by digest") in ORIGIN.text(report).rows
    assert (claimed_pages(run), claimed_pages(SIMULATED)) == (3 * 256, None)


def test_the_timeline_has_a_span_for_each_layer_and_migration(full: Report) -> None:
    found = timeline(full.facts)
    spans = [event for event in found["traceEvents"] if event["ph"] == "X"]
    assert len(spans) == 2 * (len(SIMULATED.layers) + len(SIMULATED.migrations))  # as executed, and as predicted
    held = [event["args"]["fast"] for event in found["traceEvents"] if event["ph"] == "C"]
    assert held == [*SIMULATED.layers["fast_bytes"].tolist()] * 2
