"""The page of missed goals has each that another page marks, and is as the pages are."""

from __future__ import annotations

import re

from benchmarks.missed_goals import MARKS, PAGE, ROOT, missed, page

PAGE_OF_GOALS = """# Times

Goal: the mean is at most 1.5,
of all: **missed**; least 1.2 (one). Another sentence.

## Costs

Goals, by the medians: a step at most 2 (3): **missed**; in all at most 4 (3.5): met.

| goal | found | |
| --- | --- | --- |
| reads | 7 | **missed** |
| writes | 8 | met |
"""


def test_each_goal_is_told_with_what_was_found() -> None:
    assert list(missed(PAGE_OF_GOALS)) == [
        "Times: the mean is at most 1.5, of all; least 1.2 (one)",
        "Costs: a step at most 2 (3)",
        "Costs: reads, found 7",
    ]


def test_the_page_is_made_of_the_pages_beside_it() -> None:
    assert (ROOT / "docs" / PAGE).read_text() == page()


def test_no_mark_of_another_page_is_left_out() -> None:
    made = page()
    for path in (path for path in (ROOT / "docs").glob("*.md") if path.name != PAGE):
        if any(mark in path.read_text() for mark in MARKS):
            assert f"({path.name})" in made, path.name


def test_every_miss_is_spelt_as_it_is_looked_for_and_listed() -> None:
    for path in (path for path in (ROOT / "docs").glob("*.md") if path.name != PAGE):
        text = path.read_text()
        told = re.findall(r"(?i)\*\*(?:missed|not held)[^|]*?\*\*", text)
        assert set(told) <= set(MARKS), path.name
        assert len(list(missed(text))) >= len(told), path.name


def test_the_last_goal_of_a_sentence_has_no_stop() -> None:
    goals = "Goals: a step at most 2 (3): **missed**; in all at most 4 (5): **missed**.\nMore."
    assert list(missed(f"# Times\n\n{goals}\n")) == ["Times: a step at most 2 (3)", "Times: in all at most 4 (5)"]
