"""Which package of Sentinel may import which: the one table of levels.

tests/unit/test_layers_of_code.py holds the code to it; docs/architecture.md shows it. `python -m tools.layers` rewrites
the page's table.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
BEGIN = "<!-- levels: made by `python -m tools.layers` -->"
END = "<!-- end of levels -->"


@dataclass(frozen=True)
class Level:
    """Packages that may import those of lower levels. A package is a folder of sentinel/, or a file at its top.

    `packages`: of each, the modules from outside that it may import. `pure`: they read no clock, file, environment or
    device.
    """

    name: str
    packages: dict[str, tuple[str, ...]]
    pure: bool = False


LEVELS = (
    Level("nouns", {"core": ("numpy",)}, pure=True),
    Level(
        "planning, simulation",
        {"planner": ("numpy", "highspy"), "simulator": ("numpy",), "samples": ("numpy",)},
        pure=True,
    ),
    Level(
        "host, files, profiling",
        {
            "files": ("numpy", "safetensors"),
            "machines": (),
            "system": ("numpy",),
            "tiers": ("numpy",),
            "profiler": ("numpy", "torch"),
            "runtime": ("torch",),
        },
    ),
    Level(
        "migration, reports",
        {"calibrate": ("numpy", "torch"), "migration": ("numpy", "torch"), "reports": ("numpy", "pandas")},
    ),
    Level(
        "session, training data",
        {"session": ("numpy", "torch"), "data": ("numpy", "pandas", "torch", "pyarrow", "fsspec", "PIL")},
    ),
    Level(
        "package, comparison, proof", {"__init__": ("torch",), "executed": ("numpy", "torch"), "proving": ("torch",)}
    ),
    Level(
        "command line, callbacks",
        {"cli": (), "integrations": ("transformers", "lightning", "pytorch_lightning")},
    ),
    Level("program", {"__main__": ()}),
)
SIDEWAYS = {
    ("planner", "simulator"),
    ("machines", "files"),
    ("tiers", "system"),
    ("profiler", "system"),
    ("profiler", "runtime"),
    ("calibrate", "migration"),  # what moving takes is measured with what moves
    ("proving", "executed"),
    ("proving", "__init__"),  # the small workloads are scripts as users write them
    ("system", "files"),  # the calibration that is kept is a Machine on disk
}
"""(who, whom): imports within a level, one way only."""

LEVEL_OF = {package: number for number, level in enumerate(LEVELS) for package in level.packages}
THIRD_PARTY = {package: modules for level in LEVELS for package, modules in level.packages.items()}
PURE = tuple(package for level in LEVELS if level.pure for package in level.packages)


def path_of(package: str) -> str:
    """Where a package lies: its folder, or its file at the top of sentinel/."""
    return f"sentinel/{package}.py" if package.startswith("__") else f"sentinel/{package}"


def table() -> str:
    """The levels as a Markdown table, with a line break at its end."""
    lines = ["| level | packages | third party | does I/O |", "| --- | --- | --- | --- |"]
    for number, level in enumerate(LEVELS):
        packages = ", ".join(f"`{path_of(package)}`" for package in level.packages)
        lines.append(
            f"| {number} {level.name} | {packages} | {_third_party(level)} | {'no' if level.pure else 'yes'} |"
        )
    return "\n".join(lines) + "\n"


def _third_party(level: Level) -> str:
    """`numpy; torch in profiler`: each module, and its users where not all packages of the level may import it."""
    users: dict[str, list[str]] = {}
    for package, modules in level.packages.items():
        for module in modules:
            users.setdefault(module, []).append(package)
    everywhere = len(level.packages)
    words = [name if len(of) == everywhere else f"{name} in {', '.join(of)}" for name, of in users.items()]
    return "; ".join(words) or "none"


def rewritten(page: str) -> str:
    """The page's text with the table as it is now; ValueError without its two marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {END if begin else BEGIN}")
    return f"{before}{BEGIN}\n\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
