"""Who moved what: from what the witness saw to counters, to the tables, to the verdict."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'sentinel-hm[torch]'")

from sentinel.core.run import LAYER_DTYPE, MIGRATION_DTYPE, STEP_DTYPE, Run
from sentinel.migration.sightings import MOVE_DTYPE, REASONS, Sightings
from sentinel.reports import build_report, who_moved
from sentinel.reports.sections.witness_table import TITLE
from sentinel.session.witnessing import counted

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
    assert counted(seen) == {
        "pages moved by this process to node 1": 513,
        "pages moved by this process to node 0": 3,
        "pages moved by another process to node 0": 5,
        "pages moved by NUMA balancing to node 0": 7,
        "pages moved by reclaim (demotion) to node 1": 11,
        who_moved.HUGE: 515,
    }


def test_nothing_seen_is_nothing_counted() -> None:
    assert not counted(Sightings(np.zeros(0, MOVE_DTYPE), 0, 0, {}))


def witnessed(claimed: int, seen: int, lost: int = 0) -> Run:
    counters = {
        "migrated_bytes": claimed * 4096,
        who_moved.LOST: lost,
        who_moved.COUNTER.format(who="this process", node=1): seen,
        who_moved.COUNTER.format(who="NUMA balancing", node=0): 2,
    }
    return replace(EMPTY, counters=counters)


def test_agreement_and_disagreement_are_said_in_numbers() -> None:
    assert who_moved.verdict(witnessed(17, 17)) == "engine and witness agree: 17 pages"
    assert "claims 17 pages, the witness saw 13: 4 fewer" in who_moved.verdict(witnessed(17, 13))
    assert "claims 17 pages, the witness saw 19: 2 more" in who_moved.verdict(witnessed(17, 19))
    several = witnessed(17, 19)
    by_another_plan = {**several.counters, "migrated_bytes_by_other_plans": 2 * 4096}
    assert who_moved.verdict(replace(several, counters=by_another_plan)) == "engine and witness agree: 19 pages"
    under_way = replace(witnessed(17, 19), counters={**witnessed(17, 19).counters, who_moved.RUNNING: 1})
    assert "claims 17 pages in steps that have ended, the witness saw 19 until now" in who_moved.verdict(under_way)
    assert "3 records were lost" in who_moved.verdict(witnessed(17, 17, lost=3))


def test_a_disagreement_says_of_which_kind_it_may_be() -> None:
    huge = witnessed(17, 19)
    huge = replace(huge, counters={**huge.counters, who_moved.HUGE: 512})
    assert who_moved.verdict(huge).endswith("the kernel moves all of one where a part is asked for")
    assert "while others moved 2: a page that is there" in who_moved.verdict(witnessed(17, 13))
    assert who_moved.verdict(witnessed(17, 19)).endswith("2 more, which nothing that was counted explains")


def test_the_report_has_it_in_every_form_and_null_without_a_witness() -> None:
    report = build_report(executed=witnessed(17, 17))
    assert report.headline["witness_pages"] == report.headline["moved_pages"] == 17
    assert report.frames()["who_moved"]["pages"].tolist() == [17, 2]
    assert "engine and witness agree: 17 pages" in report.text()
    assert "NUMA balancing" in report.text()
    without = build_report(executed=EMPTY)
    assert without.headline["witness_pages"] is None
    assert "who_moved" not in without.frames()
    assert TITLE not in without.text()
