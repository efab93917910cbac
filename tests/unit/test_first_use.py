"""What the benchmark of the first use tells from lines and their times, and what the page says of that."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import costs_page, first_use

LINES = [
    (2.0, "sentinel: compiling sentinel_torch, once, into /cache, 2 s so far"),
    (3.0, "sentinel: the step after 1 optimizer step is profiled"),
    (9.5, "sentinel: planned: 6.1 MiB of fast memory, 20% of the footprint"),
    (9.6, "sentinel: planned: a second plan"),
    (12.0, ""),
]


def test_moments_are_when_the_first_such_line_came() -> None:
    assert first_use.moments(LINES) == {"begins_s": 3.0, "watched_s": 9.5, "whole_s": 12.0}


def test_a_run_that_did_not_say_so_has_no_figures() -> None:
    with pytest.raises(SystemExit, match="no line begins with 'sentinel: planned: '"):
        first_use.moments([LINES[1], LINES[-1]])


def test_lines_of_a_process_come_with_their_seconds_and_a_failure_is_told(tmp_path: Path) -> None:
    said = "import sys\nprint('to stdout')\nfor word in ('one', 'two'): print(word, file=sys.stderr)\n"
    told = first_use.timed([sys.executable, "-c", said], tmp_path, tmp_path / "cache")
    assert [line for _, line in told] == ["one", "two", ""]
    assert [second for second, _ in told] == sorted(second for second, _ in told)
    with pytest.raises(SystemExit, match="ended with 3:\none"):
        first_use.timed([sys.executable, "-c", f"{said}sys.exit(3)"], tmp_path, tmp_path)


def test_neither_a_checkout_nor_settings_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PYTHONPATH", "SENTINEL_FAST"):
        monkeypatch.setenv(name, "here")
    kept = first_use._clean(tmp_path)
    assert not {"PYTHONPATH", "SENTINEL_FAST"} & set(kept)
    assert kept["XDG_CACHE_HOME"] == str(tmp_path)


def test_the_program_is_that_of_the_readme() -> None:
    text = first_use.program()
    compile(text, "program.py", "exec")
    assert "sentinel.start_profile(fast=" in text
    assert 'write("report.html")' in text


def turn(watched: float, again: float, compiled: list[str]) -> dict[str, Any]:
    return {
        "import_torch_s": [2.0, 4.0],
        "help_s": [0.08, 0.09, 0.1],
        "first": {"begins_s": 1.0, "watched_s": watched, "whole_s": 20.0, "compiled": compiled},
        "again": {"begins_s": 1.0, "watched_s": again, "whole_s": 8.0, "compiled": compiled},
        "others_share": 0.02,
    }


def test_compiling_is_what_a_filled_cache_saves_and_nothing_where_nothing_was_compiled() -> None:
    compiled = [turn(16.0, 6.0, ["sentinel_torch"]), turn(18.0, 6.0, ["sentinel_torch"])]
    found = first_use.medians(compiled)
    assert found["watched_s"] == 17.0
    assert found["compiling_s"] == 11.0
    assert found["rest_s"] == 17.0 - 11.0 - 3.0
    assert first_use.medians([turn(7.0, 6.0, [])])["compiling_s"] == 0.0


def test_the_page_says_of_each_wheel_whether_its_goal_is_met() -> None:
    told = {
        "when": "2026-11-24T04:30:00Z",
        "commit": "abc",
        "machine": {"cores": 2, "cpu": "a CPU", "memory_bytes": 2**30, "kernel": "6.1"},
        "versions": {"python": "3.11", "torch": "2.13"},
        "rounds": 1,
        "most_s": first_use.MOST_S,
        "most_help_s": first_use.MOST_HELP_S,
        "results": [
            {"brings": brings, "medians": first_use.medians(rounds), "rounds": rounds}
            for brings, rounds in ((["a.so"], [turn(7.0, 6.5, [])]), ([], [turn(17.0, 6.5, ["a"])]))
        ],
    }
    page = costs_page.page({"first-use": told})
    assert "| brings what is compiled (`make wheel`) | 7.0 (7.0–7.0) | 3.0 | 0.0 | 4.0 | 1.0 | 0.09 | 2% |" in page
    assert "| compiles at first use | 17.0 (17.0–17.0) | 3.0 | 10.5 | 3.5 | 1.0 | 0.09 | 2% |" in page
    assert "with a wheel that brings it (7.0): met" in page
    assert "with one that compiles (17.0): **missed**" in page
    assert "in at most 0.1 s (0.09): met" in page
