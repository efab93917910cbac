"""Which test files hold which module of Sentinel: those that import it, or one of its names, by name.

    python -m tools.tests_of_modules            every module, with its test files
    python -m tools.tests_of_modules reports    the modules whose path contains `reports`

A name that a test takes from a package, such as `from sentinel.files import load`, counts for the module that the
package has it from. tests/unit/test_layers_of_code.py fails for a module that no test file imports.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
FRONT = "__init__.py"


def importing_tests(root: Path = ROOT) -> dict[str, list[str]]:
    """Path of each module below `root`/sentinel -> the test files that import it, sorted; both relative to `root`.

    Modules without a statement, and `__main__.py`, which only starts the command line, are left out.
    """
    code = _Code(root)
    found: dict[str, set[str]] = defaultdict(set)
    for test in sorted((root / "tests").rglob("test_*.py")):
        for module in code.modules_named(ast.parse(test.read_text())):
            found[module].add(test.relative_to(root).as_posix())
    return {module: sorted(found[module]) for module in code.trees if not code.is_empty(module)}


class _Code:
    """The modules of the package, as path relative to `root` -> syntax tree."""

    def __init__(self, root: Path) -> None:
        paths = sorted((root / "sentinel").rglob("*.py"))
        self.trees = {path.relative_to(root).as_posix(): ast.parse(path.read_text()) for path in paths}

    def is_empty(self, module: str) -> bool:
        """Whether there is nothing in it to hold."""
        return module.endswith("__main__.py") or all(map(_only_passes_on, self.trees[module].body))

    def modules_named(self, tree: ast.Module) -> Iterator[str]:
        """The modules that `tree` imports, within functions too."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from (path for name in node.names if (path := self._path(name.name)))
            elif isinstance(node, ast.ImportFrom) and node.module:
                for name in node.names:
                    yield from self._owner(node.module, name.name)

    def _owner(self, module: str, name: str) -> Iterator[str]:
        """The file of `module`.`name`, or the one that defines the name; none outside of Sentinel."""
        path = self._path(f"{module}.{name}") or self._path(module)
        if path is None:
            return
        yield path
        if path == self._path(module) and path.endswith(FRONT):
            for node in ast.walk(self.trees[path]):
                if isinstance(node, ast.ImportFrom) and name in [alias.asname or alias.name for alias in node.names]:
                    yield from self._owner(node.module or "", name)

    def _path(self, module: str) -> str | None:
        path = module.replace(".", "/")
        return next((found for found in (f"{path}.py", f"{path}/{FRONT}") if found in self.trees), None)


def _only_passes_on(statement: ast.stmt) -> bool:
    """Whether a statement is an import, a text, or `__all__`."""
    names = statement.targets if isinstance(statement, ast.Assign) else []
    return isinstance(statement, ast.ImportFrom | ast.Expr) or [ast.unparse(name) for name in names] == ["__all__"]


def main(words: Sequence[str]) -> int:
    """Prints the table; returns 1 if a module of it has no test file."""
    chosen = {
        module: tests
        for module, tests in importing_tests().items()
        if not words or any(word in module for word in words)
    }
    for module, tests in chosen.items():
        print(f"{module}: {', '.join(tests) or 'NONE'}")
    return int(not all(chosen.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
