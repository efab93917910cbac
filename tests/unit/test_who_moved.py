"""Who moved what: from what the witness saw to the run, to the tables, to the verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from sentinel.core.counters import Counters
from sentinel.core.run import LAYER_DTYPE, MIGRATION_DTYPE, STEP_DTYPE, MovedBy, Run, Witnessed
from sentinel.migration.sightings import MOVE_DTYPE, REASONS, Sightings
from sentinel.reports import build_report
from sentinel.reports.html.page import page
from sentinel.reports.sections.witness_table import MOVERS, TITLE, rows_of, verdict
from sentinel.session.witnessing import added, huge_pages, moved_by

EMPTY = Run(
    kind="executed",
    emulated=False,
    tier_names=("fast", "node1"),
    fast_capacity_bytes=0,
    steps=np.zeros(0, STEP_DTYPE),
    layers=np.zeros(0, LAYER_DTYPE),
    migrations=np.zeros(0, MIGRATION_DTYPE),
)


def move(pages: int, to_node: int, reason: str, *, own: bool, moved: bool = True) -> tuple[object, ...]:
    return (4096, pages, 1 - to_node, to_node, REASONS.index(reason), own, moved)


def test_pages_are_counted_by_mover_and_node_and_those_that_stayed_are_not() -> None:
    moves = [
        move(1, 1, "syscall", own=True),
        move(512, 1, "syscall", own=True),
        move(3, 0, "syscall", own=True),
        move(5, 0, "syscall", own=False),
        move(7, 0, "numa_misplaced", own=True),
        move(11, 1, "demotion", own=False),
        move(13, 1, "demotion", own=False, moved=False),
    ]
    seen = Sightings(np.array(moves, MOVE_DTYPE), 0, 0, {})
    assert set(moved_by(seen)) == {
        MovedBy("syscall", True, 1, 513),
        MovedBy("syscall", True, 0, 3),
        MovedBy("syscall", False, 0, 5),
        MovedBy("numa_misplaced", True, 0, 7),
        MovedBy("demotion", False, 1, 11),
    }
    assert huge_pages(seen) == 512 + 3  # of this process only
    found = Witnessed(moved_by(seen))
    assert found.own_pages == 516
    assert rows_of(found) == [
        ("this process", 0, 3),
        ("this process", 1, 513),
        ("NUMA balancing", 0, 7),
        ("another process", 0, 5),
        ("reclaim (demotion)", 1, 11),
    ]


def test_what_one_mover_did_for_several_reasons_is_one_row() -> None:
    rows = (MovedBy("compaction", False, 0, 3), MovedBy("contig_range", True, 0, 5), MovedBy("swap_out", False, -1, 7))
    assert rows_of(Witnessed(rows)) == [("compaction", 0, 8), ("swap_out", -1, 7)]
    assert set(MOVERS) < set(REASONS)


def test_what_is_read_later_is_added() -> None:
    first = (MovedBy("syscall", True, 1, 5), MovedBy("demotion", False, 1, 7))
    later = (MovedBy("syscall", True, 1, 11), MovedBy("syscall", False, 1, 13))
    assert set(added(first, later)) == {
        MovedBy("syscall", True, 1, 16),
        MovedBy("syscall", False, 1, 13),
        MovedBy("demotion", False, 1, 7),
    }


def test_a_reason_that_only_a_newer_kernel_has_is_told_by_its_number() -> None:
    moves = np.array([move(3, 1, "damon", own=False), move(5, 1, "damon", own=False)], MOVE_DTYPE)
    moves["reason"] = len(REASONS), -1
    found = moved_by(Sightings(moves, 0, 0, {}))
    assert set(found) == {
        MovedBy(f"reason {len(REASONS)}", False, 1, 3),
        MovedBy("reason -1", False, 1, 5),
    }


def test_nothing_seen_is_nothing_counted() -> None:
    seen = Sightings(np.zeros(0, MOVE_DTYPE), 0, 0, {})
    assert (moved_by(seen), huge_pages(seen)) == ((), 0)


def witnessed(claimed: int, seen: int, **counted: Any) -> Run:
    moved = (MovedBy("syscall", True, 1, seen), MovedBy("numa_misplaced", True, 0, 2))
    return replace(EMPTY, counters=Counters(migrated_bytes=claimed * 4096), witnessed=Witnessed(moved, **counted))


def test_agreement_and_disagreement_are_said_in_numbers() -> None:
    assert verdict(witnessed(17, 17)) == "engine and witness agree: 17 pages"
    assert "claims 17 pages, the witness saw 13: 4 fewer" in verdict(witnessed(17, 13))
    assert "claims 17 pages, the witness saw 19: 2 more" in verdict(witnessed(17, 19))
    several = witnessed(17, 19)
    by_another_plan = replace(several.counters, migrated_bytes_by_other_plans=2 * 4096)
    assert verdict(replace(several, counters=by_another_plan)) == "engine and witness agree: 19 pages"
    under_way = witnessed(17, 19, watching=True)
    assert "claims 17 pages in steps that have ended, the witness saw 19 until now" in verdict(under_way)
    assert "3 records were lost" in verdict(witnessed(17, 17, lost=3))


def test_a_disagreement_says_of_which_kind_it_may_be() -> None:
    huge = witnessed(17, 19, huge_pages=512)
    assert verdict(huge).endswith("the kernel moves a whole huge page if a part is asked for")
    assert "while others moved 2: a page that they had moved to its target before" in verdict(witnessed(17, 13))
    assert verdict(witnessed(17, 19)).endswith("2 more, and no other count explains the difference")


def test_the_report_has_it_in_every_form_and_null_without_a_witness() -> None:
    report = build_report(executed=witnessed(17, 17))
    assert report.headline["witness_pages"] == report.headline["moved_pages"] == 17
    assert report.frames()["who_moved"]["pages"].tolist() == [17, 2]
    assert "engine and witness agree: 17 pages" in report.text()
    assert "NUMA balancing" in report.text()
    assert "NUMA balancing" in page(report)
    assert report.values()["witnessed"]["moved_by"][1]["reason"] == "numa_misplaced"
    without = build_report(executed=EMPTY)
    assert without.headline["witness_pages"] is without.values()["witnessed"] is None
    assert "who_moved" not in without.frames()
    assert TITLE not in without.text()
