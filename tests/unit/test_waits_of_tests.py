"""No test waits for a process for ever: what hangs is named, and ends."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
RUNS = {f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output")}
WAITS = {"communicate": (), "wait": ("process", "running", "job"), "join": ("process", "child", "worker", "rank")}
"""Methods, and how the names of what has them end; without names, all."""


def endless_waits(source: str) -> Iterator[int]:
    """Lines in which a process is waited for without a limit."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or any(word.arg in ("timeout", None) for word in node.keywords):
            continue
        called = node.func
        if ast.unparse(called) in RUNS:
            yield node.lineno
        elif isinstance(called, ast.Attribute) and called.attr in WAITS and not node.args:
            names = WAITS[called.attr]
            if not names or ast.unparse(called.value).endswith(names):
                yield node.lineno


def test_each_process_is_waited_for_with_a_limit() -> None:
    files = sorted(TESTS.rglob("*.py"))
    assert len(files) > 200
    found = {f"{path.relative_to(TESTS)}:{line}" for path in files for line in endless_waits(path.read_text())}
    assert found == set()


def test_waits_without_a_limit_are_found() -> None:
    assert list(endless_waits("import subprocess\nsubprocess.run([])\nsubprocess.run([], timeout=1)")) == [2]
    assert list(endless_waits("a.process.wait()\na.process.wait(5)\nchild.join()\n'x'.join(y)\nthread.join()")) == [
        1,
        3,
    ]
    assert list(endless_waits("running.communicate()\nrunning.communicate(timeout=1)\nevent.wait()")) == [1]
