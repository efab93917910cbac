"""What docs/messages.md quotes is what the program says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUOTED = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs" / "messages.md").read_text(), re.M)


def texts(node: ast.AST) -> Iterator[str]:
    """The strings of a program; of what is put into one, a gap."""
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value
        elif isinstance(each, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in each.values)


@cache
def said() -> list[str]:
    files = sorted((ROOT / "sentinel").rglob("*.py"))
    return [text for file in files for text in texts(ast.parse(file.read_text()))]


def is_said(message: str) -> bool:
    wanted = ".*".join(map(re.escape, message.split("…")))
    return any(re.search(wanted, text, re.S) for text in said())


@pytest.mark.parametrize("message", QUOTED)
def test_each_message_is_one_of_ours(message: str) -> None:
    assert is_said(message)


def test_what_nobody_says_is_found() -> None:
    assert len(QUOTED) > 20
    assert not is_said("the moon is in the way")
    assert is_said("so nothing is … kept") is False
