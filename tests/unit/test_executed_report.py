"""An executed comparison in text, JSON and HTML: a placement that was skipped is named, what is unknown is null."""

from __future__ import annotations

import json
from dataclasses import replace

from sentinel.reports.html.placement_comparison_page import executed_page
from sentinel.reports.placement_comparison import Ours, PlacementComparison, Row, as_object, text

OURS = Ours(1000, 5000, 0.995, 0.02, 900, 17, 17, "ops", elsewhere=(("h.0:forward", "w<1>", 4096),))
FOUND = PlacementComparison(
    script="train.py --small",
    fast="20%",
    slow="numa:1",
    fast_bytes=1 << 20,
    beside_bytes=1 << 21,
    emulated=True,
    where={"kernel": "6.12"},
    rows=(
        Row(
            "sentinel",
            "plan",
            0.93,
            100,
            0,
            1,
            {"syscall": 17},
            0,
            "",
            10,
            same_losses=True,
            same_parameters=True,
            ours=OURS,
            migrated_pages_by_step=({"syscall": 11}, {"syscall": 2}, {"syscall": 1, "compaction": 9}, {"syscall": 3}),
        ),
        Row("first-touch", "default", 0.31, 100, 0, 1, {}, 23, "", 10, 1 << 20, same_losses=True, same_parameters=True),
        Row(
            "interleave",
            "in turn",
            0.3,
            others_demoted_pages=29,
            left_bytes=1 << 20,
            least_left_bytes=1 << 19,
            mean_left_bytes=1 << 20,
            most_left_bytes=1 << 21,
            same_losses=True,
            same_parameters=True,
        ),
        Row("kernel-tiering", "mode 2", skipped="no right to write <sysctl>"),
        Row(
            "all-slow", "slow", 0.0, 100, 0, 1, None, None, "no eBPF here", 10, same_losses=True, same_parameters=False
        ),
    ),
)


def test_the_text_has_a_line_a_placement_and_says_what_is_emulated_and_what_was_skipped() -> None:
    lines = text(FOUND).splitlines()
    assert any(line.startswith("sentinel ") and "93.0%" in line and "syscall 17" in line for line in lines)
    assert any(line.startswith("sentinel ") and "68.00 KiB" in line and "8.00 KiB" in line for line in lines)
    assert any(line.startswith("kernel-tiering ") and "skipped" in line for line in lines)
    assert any(line.startswith("all-slow ") and "DIFFER" in line for line in lines)
    said = text(FOUND)
    assert "emulated machine" in said
    assert "no right to write <sysctl>" in said
    assert "17 by the engine, 17 by the witness" in said
    assert "first-touch: the kernel demoted 23 pages that are not the job's (92.00 KiB)" in said
    assert "29 pages" not in said  # its ballast grew with them
    assert any(line.startswith("interleave ") and "1.00 MiB (512.00 KiB to 2.00 MiB)" in line for line in lines)
    assert "99.50% of managed bytes" in said
    assert "emulated machine" not in text(replace(FOUND, emulated=False))


def test_the_object_is_json_with_null_for_the_unknown() -> None:
    told = json.loads(json.dumps(as_object(FOUND), allow_nan=False))
    rows = {row["name"]: row for row in told["rows"]}
    assert told["kind"] == "executed"
    assert rows["sentinel"]["migrated_bytes"] == 17 * 4096
    assert rows["sentinel"]["later_migrated_bytes"] == 2 * 4096  # the second half of the steps, between nodes
    assert rows["first-touch"]["migrated_bytes"] == 0
    assert rows["first-touch"]["later_migrated_bytes"] is None
    assert rows["all-slow"]["migrated_bytes"] is None
    assert rows["kernel-tiering"]["served_share"] is None


def test_the_page_shows_every_placement_and_escapes_what_it_shows() -> None:
    page = executed_page(FOUND)
    for row in FOUND.rows:
        assert row.name in page
    assert "emulated" in page
    assert "<sysctl>" not in page
    assert "w<1>" not in page
