"""Which package of Sentinel may import which: the one table of ranks.

tests/unit/test_layers_of_code.py holds the code to it; docs/architecture.md shows it. `python -m tools.layers` rewrites
the page's table.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
BEGIN = "<!-- ranks: made by `python -m tools.layers` -->"
END = "<!-- end of ranks -->"


@dataclass(frozen=True)
class Rank:
    """Packages that may import those of lower ranks. A package is a folder of sentinel/, or a file at its top.

    `packages`: of each, the modules from outside that it may import. `pure`: they read no clock, file, environment or
    device.
    """

    name: str
    packages: dict[str, tuple[str, ...]]
    pure: bool = False


RANKS = (
    Rank("nouns", {"core": ("numpy",)}, pure=True),
    Rank(
        "planning, simulation",
        {"planner": ("numpy", "highspy"), "simulator": ("numpy",), "samples": ("numpy",)},
        pure=True,
    ),
    Rank(
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
    Rank(
        "migration, reports",
        {"calibrate": ("numpy", "torch"), "migration": ("numpy", "torch"), "reports": ("numpy", "pandas")},
    ),
    Rank(
        "session, training data",
        {"session": ("numpy", "torch"), "data": ("numpy", "pandas", "torch", "pyarrow", "fsspec", "PIL")},
    ),
    Rank("package, comparison, proof", {"__init__": ("torch",), "executed": ("numpy", "torch"), "proving": ("torch",)}),
    Rank(
        "command line, callbacks",
        {"cli": (), "integrations": ("transformers", "lightning", "pytorch_lightning")},
    ),
    Rank("program", {"__main__": ()}),
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
"""(who, whom): imports within a rank, one way only."""

RANK_OF = {package: number for number, rank in enumerate(RANKS) for package in rank.packages}
THIRD_PARTY = {package: modules for rank in RANKS for package, modules in rank.packages.items()}
PURE = tuple(package for rank in RANKS if rank.pure for package in rank.packages)


def path_of(package: str) -> str:
    """Where a package lies: its folder, or its file at the top of sentinel/."""
    return f"sentinel/{package}.py" if package.startswith("__") else f"sentinel/{package}"


def table() -> str:
    """The ranks as a Markdown table, with a line break at its end."""
    lines = ["| rank | packages | third party | does I/O |", "| --- | --- | --- | --- |"]
    for number, rank in enumerate(RANKS):
        packages = ", ".join(f"`{path_of(package)}`" for package in rank.packages)
        lines.append(f"| {number} {rank.name} | {packages} | {_third_party(rank)} | {'no' if rank.pure else 'yes'} |")
    return "\n".join(lines) + "\n"


def _third_party(rank: Rank) -> str:
    """`numpy; torch in profiler`: each module, and its users where not all packages of the rank may import it."""
    users: dict[str, list[str]] = {}
    for package, modules in rank.packages.items():
        for module in modules:
            users.setdefault(module, []).append(package)
    everywhere = len(rank.packages)
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
