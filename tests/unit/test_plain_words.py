"""Sentences that docs/style.md gives as bad examples are not in the code, and a constant's sentence has its number."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "sentinel").rglob("*.py"))
NATIVE = sorted(path for path in (ROOT / "kernel_profiler").rglob("*") if path.suffix in (".cpp", ".h"))
BAD = re.compile(r"\bits like will\b|in vain hurting|one part in so many|what may as well be fast", re.IGNORECASE)


def sentences_of_constants(text: str) -> list[tuple[int, str]]:
    """Line and text of each docstring that follows an assignment in a module or a class."""
    bodies = [node.body for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Module | ast.ClassDef)]
    return [
        (after.lineno, after.value.value)
        for body in bodies
        for node, after in pairwise(body)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    ]


def test_no_bad_example_of_the_guide_is_in_the_code() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line}"
        for path in (*MODULES, *NATIVE)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if BAD.search(line)
    ]
    assert found == []


def test_the_sentence_of_a_constant_has_its_number() -> None:
    """ "So many" sends the reader to the line above."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {said}"
        for path in MODULES
        for line, said in sentences_of_constants(path.read_text())
        if re.match(
            r"(.*\W)?(in|at most|at least|after|before|beyond|of|by) so many\b", said, re.IGNORECASE | re.DOTALL
        )
        or said.lower().startswith("so many")
    ]
    assert found == []


def test_a_bad_sentence_is_found() -> None:
    module = 'STEPS = 4\n"""Looked at after so many steps."""\n\n\nclass A:\n    n: int = 3\n    """Three."""\n'
    assert sentences_of_constants(module) == [(2, "Looked at after so many steps."), (7, "Three.")]
