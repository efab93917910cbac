"""Imports go down only, and what plans and simulates touches no world outside it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tools.layers import LEVEL_OF, PAGE, PURE, SIDEWAYS, THIRD_PARTY, path_of, rewritten
from tools.tests_of_modules import importing_tests

ROOT = Path(__file__).parents[2]

# What the pure packages may not ask: clocks, files, environments, devices, other processes, chance.
IMPURE = {"ctypes", "glob", "mmap", "multiprocessing", "pathlib", "random", "secrets", "shutil", "socket", "subprocess"}
IMPURE |= {"tempfile", "threading", "time", "uuid", "platform", "sys", "datetime"}
WORDS_OF_IO = ("input", "open", "print")
OS_ALLOWED = {"PathLike", "fspath", "strerror"}


def modules_of(package: Path) -> Iterator[Path]:
    """Python files of the source tree below `package`."""
    yield from sorted(package.rglob("*.py"))


def box_of(path: Path, package: Path) -> str:
    """The box of the drawing that a file belongs to: its folder or, at the top, its own name."""
    first = path.relative_to(package).parts[0]
    return first.removesuffix(".py")


@cache
def tree_of(path: Path) -> ast.Module:
    """Parsed once for all tests of this file, which leave it as it is."""
    return ast.parse(path.read_text(), str(path))


@cache
def imports_of(tree: ast.Module) -> list[tuple[str, int]]:
    """(module, line) of every import, those inside functions and under TYPE_CHECKING too."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(name.name, node.lineno) for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: write absolute imports"
            if node.module == "sentinel":
                found += [(f"sentinel.{name.name}", node.lineno) for name in node.names]
            else:
                found.append((node.module or "", node.lineno))
    return found


def imported_boxes(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """(box, line) of every import of Sentinel itself; `import sentinel` is the front."""
    for module, line in imports_of(tree):
        parts = module.split(".")
        if parts[0] == "sentinel":
            yield (parts[1] if len(parts) > 1 and parts[1] in LEVEL_OF else "__init__"), line


def faults_of(package: Path) -> list[str]:
    """Every broken rule under `package`, as `file:line: what`."""
    found = []
    for path in modules_of(package):
        box = box_of(path, package)
        where = path.relative_to(package).as_posix()
        if box not in LEVEL_OF:
            found.append(f"{where}:1: {box} has no level; the drawing has no such box")
            continue
        tree = tree_of(path)
        for target, line in imported_boxes(tree):
            if target != box and LEVEL_OF[target] >= LEVEL_OF[box] and (box, target) not in SIDEWAYS:
                found.append(
                    f"{where}:{line}: {box} (level {LEVEL_OF[box]}) imports {target} (level {LEVEL_OF[target]})"
                )
        found += [f"{where}:{line}: {what}" for line, what in third_party_faults(tree, box)]
        if box in PURE:
            found += [f"{where}:{line}: {what}" for line, what in impurities(tree)]
    return found


def modules_imported(path: Path, package: Path) -> set[Path]:
    """The files of `package` that a file of it imports when it runs, within functions too; not for types only."""
    found: set[Path | None] = set()
    nodes = list(ast.walk(tree_of(path)))
    branches = [node for node in nodes if isinstance(node, ast.If) and _for_types(node)]
    for_types = {child for branch in branches for each in branch.body for child in ast.walk(each)}
    for node in nodes:
        if node in for_types:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {
                _file(package, f"{node.module}.{name.name}") or _file(package, node.module) for name in node.names
            }
        elif isinstance(node, ast.Import):
            found |= {_file(package, name.name) for name in node.names}
    return {file for file in found if file is not None and file != path}


def _for_types(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _file(package: Path, module: str) -> Path | None:
    """The file of a module of Sentinel below `package`; None for any other."""
    first, *rest = module.split(".")
    if first != "sentinel":
        return None
    folder = package.joinpath(*rest)
    candidates = (folder.with_suffix(".py"), folder / "__init__.py")
    return next((path for path in candidates if rest and path.exists()), None)


def in_circles(package: Path) -> list[str]:
    """The files that import each other in a circle: what is left once those that import, or are imported by, none of
    the rest are taken away, again and again. Files between two circles are left too."""
    imports = {path: modules_imported(path, package) for path in modules_of(package)}
    while True:
        imported = set().union(*imports.values())
        kept = {path for path, those in imports.items() if those and path in imported}
        if len(kept) == len(imports):
            return sorted(path.relative_to(package).as_posix() for path in kept)
        imports = {path: imports[path] & kept for path in kept}


def third_party_faults(tree: ast.Module, box: str) -> Iterator[tuple[int, str]]:
    """Third-party modules that `box` may not import."""
    for module, line in imports_of(tree):
        top = module.split(".")[0]
        if top in sys.stdlib_module_names or top == "sentinel":
            continue
        if top not in THIRD_PARTY[box]:
            yield line, f"{box} imports {top}"


def impurities(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Uses of a clock, a file, the environment or a device."""
    for module, line in imports_of(tree):
        if module.split(".")[0] in IMPURE:
            yield line, f"a pure package imports {module}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in WORDS_OF_IO:
            yield node.lineno, f"a pure package calls {node.func.id}"
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "os"
            and node.attr not in OS_ALLOWED
        ):
            yield node.lineno, f"a pure package asks os.{node.attr}"


def test_imports_go_down_only() -> None:
    assert faults_of(ROOT / "sentinel") == []


def test_no_files_import_each_other_in_a_circle() -> None:
    assert in_circles(ROOT / "sentinel") == []


def test_a_circle_is_found_where_a_function_imports(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    texts = {
        "a": "from sentinel.core import b",
        "b": "def f():\n    from sentinel.core.c import g",
        "c": "import sentinel.core.a",
        "user": "from sentinel.core.a import f",
        "used": "import os",
        "typed": "if TYPE_CHECKING:\n    from sentinel.core import typed_back",
        "typed_back": "from sentinel.core import typed, used",
    }
    for name, text in texts.items():
        (tmp_path / "core" / f"{name}.py").write_text(text)
    assert in_circles(tmp_path) == ["core/a.py", "core/b.py", "core/c.py"]


def test_each_module_is_imported_by_a_test() -> None:
    """`python -m tools.tests_of_modules` prints which test files hold which module."""
    untested = {module for module, tests in importing_tests(ROOT).items() if not tests}
    assert untested == set(), "write a direct test of each"


def test_a_module_without_a_test_is_found(tmp_path: Path) -> None:
    texts = {
        "sentinel/__init__.py": '"Only passes on."\nfrom sentinel.a import f, g',
        "sentinel/__main__.py": "f()",
        "sentinel/a.py": "from sentinel.c import g\ndef f(): pass",
        "sentinel/b.py": "x = 1",
        "sentinel/c.py": "def g(): pass",
        "tests/test_a.py": "def test_f():\n    from sentinel import f",
        "tests/helper.py": "import sentinel.c",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert importing_tests(tmp_path) == {"sentinel/a.py": ["tests/test_a.py"], "sentinel/b.py": [], "sentinel/c.py": []}


def test_the_table_names_only_what_is_there() -> None:
    """Each package exists, and each permission is used."""
    used: set[tuple[str, str]] = set()
    for path in modules_of(ROOT / "sentinel"):
        tree, box = tree_of(path), box_of(path, ROOT / "sentinel")
        used |= {(box, target) for target, _ in imported_boxes(tree)}
        used |= {(box, module.split(".")[0]) for module, _ in imports_of(tree)}
    assert [path_of(package) for package in LEVEL_OF if not (ROOT / path_of(package)).exists()] == []
    assert SIDEWAYS - used == set()
    assert {(package, module) for package, modules in THIRD_PARTY.items() for module in modules} - used == set()


def test_the_page_shows_the_table() -> None:
    page = PAGE.read_text()
    assert page == rewritten(page), "run `python -m tools.layers`, which rewrites the page's table"


def test_a_page_without_its_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="the page has no <!-- levels"):
        rewritten("no table")


@pytest.mark.parametrize(
    ("where", "text", "expected"),
    [
        ("core/bad.py", "from sentinel.planner import plan", "core (level 0) imports planner (level 1)"),
        ("simulator/bad.py", "import sentinel.planner", "simulator (level 1) imports planner (level 1)"),
        (
            "files/bad.py",
            "def f():\n    from sentinel.reports import build",
            "files (level 2) imports reports (level 3)",
        ),
        ("reports/bad.py", "import sentinel", "reports (level 3) imports __init__ (level 5)"),
        ("session/bad.py", "from sentinel import report", "session (level 4) imports __init__ (level 5)"),
        ("planner/bad.py", "import pandas", "planner imports pandas"),
        ("core/bad.py", "from torch import nn", "core imports torch"),
        ("reports/bad.py", "import torch", "reports imports torch"),
        ("simulator/bad.py", "import time", "a pure package imports time"),
        ("core/bad.py", "import os\nos.environ['A']", "a pure package asks os.environ"),
        ("planner/bad.py", "open('x')", "a pure package calls open"),
        ("swap/bad.py", "", "swap has no level"),
    ],
)
def test_a_broken_rule_is_found(tmp_path: Path, where: str, text: str, expected: str) -> None:
    bad = tmp_path / where
    bad.parent.mkdir()
    bad.write_text(text)
    (fault,) = faults_of(tmp_path)
    assert expected in fault


def test_what_is_allowed_is_not_a_fault(tmp_path: Path) -> None:
    (tmp_path / "planner").mkdir()
    (tmp_path / "planner" / "good.py").write_text("import numpy\nimport highspy\nfrom sentinel.core import plan\n")
    (tmp_path / "session.py").write_text("import torch\nfrom sentinel.reports import build_report\n")
    assert faults_of(tmp_path) == []
