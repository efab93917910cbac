"""README and docs: links lead somewhere, commands are understood, code is code, files that are named are there."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from sentinel.cli import parser

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_SPAN = re.compile(r"`([^`]+)`")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, text) of each fenced block."""
    return _FENCE.findall(page.read_text())


def spans(page: Path) -> list[str]:
    """Code within lines; one that a line break cuts is put together again."""
    return [" ".join(span.split()) for span in _SPAN.findall(_FENCE.sub("", page.read_text()))]


def anchors(page: Path) -> set[str]:
    """Of each heading, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@cache
def verbs() -> dict[str, argparse.ArgumentParser]:
    actions = parser()._subparsers
    assert actions is not None
    found = next(action.choices for action in actions._group_actions)  # argparse has no public way
    assert isinstance(found, dict)
    return found


def understood(command: str) -> bool:
    """Whether the words after `sentinel` are arguments of it."""
    try:
        parser().parse_args(shlex.split(command, comments=True)[1:])
    except SystemExit:
        return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(_FENCE.sub("", page.read_text())):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} in {name_of(page)}"
        assert not anchor or anchor in anchors(target), f"{link} in {name_of(page)}: there is no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_are_understood(page: Path) -> None:
    """Whole commands in blocks; in a line, at least the verb and the options."""
    for _, text in blocks(page):
        for line in text.splitlines():
            if line.startswith("sentinel "):
                assert understood(line), line
    for span in spans(page):
        words = span.split()
        if words[0] != "sentinel" or len(words) == 1:
            continue
        for verb in re.split(r" \| ", words[1]):
            assert verb in verbs() or verb.startswith("--"), span
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        known = set(parser()._option_string_actions)
        if words[1] in verbs():
            known |= set(verbs()[words[1]]._option_string_actions)
        own = span.partition(".py")[2]  # options after a script are the script's
        assert {option for option in options if option not in own} <= known, span


def test_what_is_wrong_is_not_understood() -> None:
    assert not understood("sentinel run")
    assert not understood("sentinel simulat p.safetensors")
    assert understood("sentinel run --fast 20% train.py  # a remark")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_is_code(page: Path) -> None:
    for language, text in blocks(page):
        if language == "python":
            compile(text, name_of(page), "exec")
        if language == "json":
            json.loads(text)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_and_targets_that_are_named_are_there(page: Path) -> None:
    said = [*spans(page), *(line for _, text in blocks(page) for line in text.splitlines())]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    for text in said:
        for module in re.findall(r"python -m (benchmarks\.\w+)", text):
            assert (ROOT / f"{module.replace('.', '/')}.py").exists(), text
        for path in re.findall(r"^(?:sentinel|benchmarks|tests|examples|tools|docs)/[\w./-]+$", text):
            assert (ROOT / path).exists(), f"{path} in {name_of(page)}"
        for target in re.findall(r"^make ([a-z-]+)", text):
            assert target in targets, text
