"""AllRanks: one report over the ranks of a job, drawn from what each of them has written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Any

from sentinel.core.errors import UsageError
from sentinel.core.units import counted, format_bytes, format_ns
from sentinel.reports import forms
from sentinel.reports.caveats import busy
from sentinel.reports.html.tables import Column, of_share, pairs, plain, table
from sentinel.reports.outside_plan import compared
from sentinel.reports.rank_rows import RankRow, absent
from sentinel.reports.section import Document, Heading, Section, TextTable

if TYPE_CHECKING:
    import pandas as pd

Rows = tuple[RankRow, ...]
_MOST_NAMED = 8
"""Ranks that a sentence names; of more it says how many."""
_MEMORY: tuple[tuple[str, str], ...] = (
    ("fast_capacity_bytes", "fast budget"),
    ("fast_peak_bytes", "fast peak"),
    ("peak_bytes", "footprint"),
    ("outside_bytes", "outside of the plan"),
    ("unmanaged_bytes", "unmanaged"),
    ("migrated_bytes_per_step", "moved a step"),
)
_OF_ALL = ("job_fast_bytes", "job_bytes")
_TIMES: tuple[tuple[str, str], ...] = (
    ("step_ns_applied", "step, applied"),
    ("step_ns_plain", "step, plain"),
    ("stall_ns_per_step", "stall a step"),
)
_STEP = "step_ns_applied"


class AllRanks(forms.Written):
    """See Document. `rows`: of the ranks that left something; the others are named. Sums are over those alone. `size`:
    how many ranks there are at least. Raises UsageError for two rows of one rank."""

    def __init__(self, rows: Sequence[RankRow], size: int = 0) -> None:
        by_rank: dict[int, RankRow] = {}
        for row in rows:
            other = by_rank.setdefault(row.rank, row)
            if other is not row:
                jobs = {each.told.get("job") for each in (other, row)}
                raise UsageError(
                    f"two reports are of rank {row.rank}{', and of different jobs' if len(jobs) > 1 else ''}",
                    "give the report of each rank of one job once",
                )
        self.size = max([size, *(row.told["size"] for row in rows), *(row.rank + 1 for row in rows)])
        self.facts: Rows = tuple(by_rank.get(rank) or absent(rank) for rank in range(self.size))

    @property
    def headline(self) -> dict[str, Any]:
        """Sums of bytes, the slowest rank, and how many ranks there are; unknown is None."""
        slowest = max(
            (row for row in self.facts if _value(row, _STEP) is not None),
            key=lambda row: row.headline[_STEP],
            default=None,
        )
        kinds = {row.headline.get("kind") for row in self.facts if row.headline}
        steps = [value for row in self.facts if (value := _value(row, _STEP)) is not None]
        return {
            "kind": kinds.pop() if len(kinds) == 1 else None,
            "ranks": self.size,
            "ranks_ended": sum(row.state == "ended" for row in self.facts),
            **{name: _sum(self.facts, name) for name in (*(name for name, _ in _MEMORY), *_OF_ALL)},
            "slowest_rank": None if slowest is None else slowest.rank,
            "slowest_step_ns_applied": None if slowest is None else slowest.headline[_STEP],
            "median_step_ns_applied": int(median(steps)) if steps else None,
            "plans": len({row.told["placement"] for row in self.facts if row.told.get("placement")}) or None,
        }

    @cached_property
    def heading(self) -> Heading:
        """What stands on top."""
        h = self.headline
        badge = h["kind"] or "of unlike kinds"
        done = f"{counted(self.size, 'rank')}, {h['ranks_ended']} of them ended normally. {_in_words(h['kind'])}"
        scripts = [str(row.told["script"]) for row in self.facts if row.told.get("script")]
        summary = [("memory", _memory(h, self.facts)), ("speed", _speed(h, self.facts)), ("plans", _plans(h))]
        return Heading(
            "report of all ranks", badge, done, scripts[0] if scripts else "", [each for each in summary if each[1]]
        )

    @cached_property
    def caveats(self) -> list[str]:
        """Sentences to read before the numbers."""
        found = _by_ranks((f"{row.state}.", row.rank) for row in self.facts if row.state != "ended")
        if len({row.told["job"] for row in self.facts if row.told.get("job")}) > 1:
            found.append("These reports are of different jobs: sums over them mean nothing.")
        return found + _by_ranks((caveat, row.rank) for row in self.facts for caveat in row.caveats)

    @property
    def sections(self) -> tuple[Section[Rows], ...]:
        """Its parts."""
        return SECTIONS

    def values(self) -> dict[str, Any]:
        """See Document."""
        return {"headline": self.headline, "caveats": self.caveats}


def _in_words(kind: str | None) -> str:
    from sentinel.reports.sections.key_figures import in_words

    return f"What was done: {in_words(kind)}." if kind else "The ranks did different things: see the table."


def _value(row: RankRow, name: str) -> int | None:
    value = row.headline.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _sum(rows: Rows, name: str) -> int | None:
    values = [value for row in rows if (value := _value(row, name)) is not None]
    return sum(values) if values else None


def _memory(h: dict[str, Any], rows: Rows) -> str:
    if h["fast_capacity_bytes"] is None:
        return ""
    # Rank by rank: one that needs less than its budget leaves nothing to the others.
    told = [each for row in rows if (each := compared(row.headline)) is not None]
    held = "" if h["fast_peak_bytes"] is None else f"; at most {format_bytes(h['fast_peak_bytes'])} were held"
    if not told:
        return f"{format_bytes(h['fast_capacity_bytes'])} of fast memory over all ranks{held}"
    fast, whole, outside = (sum(column) for column in zip(*told, strict=True))
    held += " within the plans" if held and outside else ""
    but = f"; both include {format_bytes(outside)} outside of the plans, which no budget covers" if outside else ""
    return f"{format_bytes(fast)} of fast memory over all ranks instead of {format_bytes(whole)}{held}{but}"


def _speed(h: dict[str, Any], rows: Rows) -> str:
    step, typical = h["slowest_step_ns_applied"], h["median_step_ns_applied"]
    if step is None:
        return ""
    slowest = f"rank {h['slowest_rank']} is the slowest: {format_ns(step)} a step"
    alike = "where ranks reduce gradients together, all take as long, and the others wait"
    ratio = f", {step / max(typical, 1):.2f} times the median over ranks"
    return f"{slowest}{'' if any(busy(row.headline) for row in rows) else ratio}; {alike}"


def _plans(h: dict[str, Any]) -> str:
    if h["plans"] is None:
        return ""
    return "the same on all ranks" if h["plans"] == 1 else f"{h['plans']} that differ, each from its rank's own step"


def _by_ranks(told: Iterable[tuple[str, int]]) -> list[str]:
    """Each of the sentences that ranks tell, once, with those that tell it."""
    ranks: dict[str, list[int]] = {}
    for sentence, rank in told:
        ranks.setdefault(sentence, []).append(rank)
    return [f"{_named(each)}: {sentence}" for sentence, each in ranks.items()]


def _named(ranks: Sequence[int]) -> str:
    if len(ranks) > _MOST_NAMED:
        return f"{len(ranks)} ranks from {ranks[0]} on"
    return f"Rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _frame(rows: Rows) -> pd.DataFrame:
    import pandas as pd

    columns: dict[str, Any] = {
        "rank": pd.array([row.rank for row in rows], "Int64"),
        "node": pd.array([row.told.get("node") for row in rows], "string"),
        "state": pd.array([row.state for row in rows], "string"),
        "steps": pd.array([_value(row, "steps") for row in rows], "Int64"),
        **{name: pd.array([_value(row, name) for row in rows], "Int64") for name, _ in (*_MEMORY, *_TIMES)},
        "fast_served_fraction": pd.array([row.headline.get("fast_served_fraction") for row in rows], "Float64"),
        "placement": pd.array([row.told.get("placement") for row in rows], "string"),
    }
    return pd.DataFrame(columns)


_COLUMNS: tuple[Column, ...] = (
    ("rank", "rank", plain),
    ("node", "node", str),
    ("steps", "steps in its tables", plain),
    *((name, title, format_bytes) for name, title in _MEMORY),
    *((name, title, format_ns) for name, title in _TIMES),
    ("fast_served_fraction", "from fast", of_share),
    ("state", "what became of it", str),
)


def _text(report: Document[Rows]) -> TextTable:
    frame = report.tables["ranks"]
    shown = [[_cell(value, show) for value in frame[name]] for name, _, show in _COLUMNS]
    return TextTable("Ranks", [[title for _, title, _ in _COLUMNS], *zip(*shown, strict=True)])


def _cell(value: Any, show: Callable[[Any], str]) -> str:
    import pandas as pd

    return "" if pd.isna(value) else show(value)


def _together(report: Document[Rows]) -> TextTable:
    values = report.values()["headline"]
    rows = [(title, format_bytes(values[name])) for name, title in _MEMORY if values[name] is not None]
    return TextTable("Over all ranks", rows)


SECTIONS: tuple[Section[Rows], ...] = (
    Section(
        "Over all ranks",
        text=_together,
        html=lambda report: pairs(rows, "Sums") if (rows := _together(report).rows) else "",
    ),
    Section("Ranks", "ranks", _frame, _text, lambda report: table(report.tables["ranks"], _COLUMNS, "Ranks")),
)
