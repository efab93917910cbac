"""What docs/messages.md quotes is what the program says."""

from __future__ import annotations

import ast
import re
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from sentinel import cli
from sentinel.cli import common
from sentinel.cli.common import INFEASIBLE, INTERRUPTED

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "messages.md").read_text()
QUOTED = re.findall(r"^\| `([^`]+)` \|", PAGE, re.M)


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


def test_the_page_has_all_exit_codes() -> None:
    """Beside the script's own, and that of a process that SIGTERM ends."""
    ours = {value for name, value in vars(common).items() if name.isupper() and type(value) is int}
    codes = re.findall(r"^\| (\d+|any) \|", PAGE, re.M)
    assert {INTERRUPTED, INFEASIBLE} < ours
    assert set(codes) == {*map(str, ours), str(128 + signal.SIGTERM), "any"}
    assert set(codes) - {"any"} == set(re.findall(r"^  (\d+) ", cli._EPILOG, re.M))


def test_what_nobody_says_is_found() -> None:
    assert len(QUOTED) > 20
    assert not is_said("the moon is in the way")
    assert is_said("so nothing is … kept") is False
