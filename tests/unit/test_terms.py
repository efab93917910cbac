"""Words explained where they stand on a page: as the glossary has them, and nothing else is touched."""

from __future__ import annotations

import dataclasses
import re
from html import unescape
from pathlib import Path

from sentinel.reports.html.page import page
from sentinel.reports.html.terms import MEANINGS, explained
from tests.unit.report_builders import SETUP, full_report

GLOSSARY = " ".join((Path(__file__).parents[2] / "docs/glossary.md").read_text().split())


def test_each_meaning_is_the_glossarys() -> None:
    assert all(meaning in GLOSSARY for meaning in MEANINGS.values())


def test_words_are_explained_where_they_stand_on_a_page() -> None:
    html = page(full_report(dataclasses.replace(SETUP, in_place=(("w", 8 << 20, "shared"),))))
    found = {(word.lower(), unescape(said)) for said, word in re.findall(r'<abbr title="(.*?)">(.*?)</abbr>', html)}
    assert found >= {(word, MEANINGS[word]) for word in ("case 1", "case 2", "case 3", "managed", "falsely shared")}
    assert ("mil", MEANINGS["MIL"]) in found


def test_parts_of_words_and_markup_are_left_alone() -> None:
    for name in ("milestone", "block.managed", "managed_bytes", "a/managed"):
        assert explained(name) == name
    assert explained("<managed>") == f'&lt;<abbr title="{MEANINGS["managed"]}">managed</abbr>&gt;'
    assert explained("1 × case 2").startswith("1 × <abbr")
