"""A file of Sentinel is found by its name: no two modules of the package have one."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "sentinel"
VERBS = "cli/"
"""Modules of the command line are named by their verb: cli/plan.py is `sentinel plan`, core/plan.py is Plan."""


def modules_of_one_name(names: list[str]) -> set[tuple[str, ...]]:
    """The paths in `names`, relative to the package, that share a file name; not `__init__.py`, nor verbs."""
    found = defaultdict(list)
    for name in names:
        if not name.startswith(VERBS) and not name.endswith("__init__.py"):
            found[Path(name).name].append(name)
    return {tuple(sorted(alike)) for alike in found.values() if len(alike) > 1}


def test_no_two_modules_have_one_name() -> None:
    found = modules_of_one_name([path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")])
    assert found == set(), "name each after what it owns"


def test_two_modules_of_one_name_are_found() -> None:
    names = ["a/__init__.py", "b/__init__.py", "cli/plan.py", "core/plan.py", "a/late.py", "b/c/late.py", "b/later.py"]
    assert modules_of_one_name(names) == {("a/late.py", "b/c/late.py")}
