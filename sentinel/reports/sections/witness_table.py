"""Who moved which pages of the managed memory, by the witness, beside what the engine claims."""

from __future__ import annotations

from collections import Counter

import pandas as pd

from sentinel.core.run import SYSCALL, Run, Witnessed
from sentinel.core.units import PAGE_BYTES, format_bytes
from sentinel.reports.facts import Facts
from sentinel.reports.headline import claimed_pages
from sentinel.reports.html.tables import text_as_pairs
from sentinel.reports.section import NO_TEXT, Document, Section, TextTable

TITLE = "Who moved what (pages of managed memory, by an independent witness)"


OWN, ANOTHER = "this process", "another process"
MOVERS = {
    "mempolicy_mbind": "a change of memory policy",
    "numa_misplaced": "NUMA balancing",
    "demotion": "reclaim (demotion)",
    "compaction": "compaction",
    "contig_range": "compaction",
    "memory_hotplug": "memory hotplug",
    "memory_failure": "memory failure",
    "longterm_pin": "pinning",
    "damon": "DAMON",
}
"""The kernel's reason -> who that is, in words."""


def rows_of(seen: Witnessed) -> list[tuple[str, int, int]]:
    """(who, node, pages), ours first."""
    pages: Counter[tuple[str, int]] = Counter()
    for row in seen.moved_by:
        asker = OWN if row.own else ANOTHER
        pages[asker if row.reason == SYSCALL else MOVERS.get(row.reason, row.reason), row.node] += row.pages
    rows = [(who, node, n) for (who, node), n in pages.items()]
    return sorted(rows, key=lambda row: (row[0] != OWN, row[0], row[1]))


def verdict(run: Run | None) -> str:
    """Whether engine and witness agree, in a sentence; "" where there was no witness."""
    claimed = claimed_pages(run)
    if run is None or run.witnessed is None or claimed is None:
        return ""
    witnessed = run.witnessed
    seen = witnessed.own_pages
    if witnessed.watching:
        said = f"the session runs on: the engine claims {claimed:,} pages in steps that have ended, the witness saw"
        said += f" {seen:,} until now; after stop() they are comparable"
    elif seen == claimed:
        said = f"engine and witness agree: {seen:,} pages"
    else:
        said = f"the engine claims {claimed:,} pages, the witness saw {seen:,}: {abs(seen - claimed):,}"
        said += f" {'more' if seen > claimed else 'fewer'}, {_explained(witnessed, seen - claimed)}"
    if witnessed.lost or witnessed.unmatched:
        said += f"; {witnessed.lost:,} records were lost and {witnessed.unmatched:,} have no beginning,"
        said += " so the witness may miss pages"
    return said


def _explained(witnessed: Witnessed, more: int) -> str:
    """What may explain that the witness saw so many `more` pages move, or fewer; in words."""
    others = sum(row.pages for row in witnessed.moved_by) - witnessed.own_pages
    if more > 0 and witnessed.huge_pages:
        huge = f"{witnessed.huge_pages:,} of those it saw in huge pages"
        return f"{huge}: the kernel moves a whole huge page if a part is asked for"
    if more < 0 and others:
        return f"while others moved {others:,}: a page that they had moved to its target before counts as the engine's"
    return "and no other count explains the difference"


def _frame(facts: Facts) -> pd.DataFrame | None:
    """who, node, pages, nbytes: a row each; None without a witness."""
    if facts.executed is None or facts.executed.witnessed is None:
        return None
    found = rows_of(facts.executed.witnessed)
    table = pd.DataFrame(
        {
            "who": pd.array([who for who, _, _ in found], "string"),
            "node": pd.array([node for _, node, _ in found], "Int64"),
            "pages": pd.array([pages for _, _, pages in found], "Int64"),
        }
    )
    table["nbytes"] = table["pages"] * PAGE_BYTES
    return table


def _text(report: Document[Facts]) -> TextTable:
    """(who, pages and bytes, node), with the verdict last."""
    run = report.facts.executed
    said = verdict(run)
    if run is None or run.witnessed is None or not said:
        return NO_TEXT
    rows = [
        (who, f"{pages:,} pages, {format_bytes(pages * PAGE_BYTES)}", f"to node {node}")
        for who, node, pages in rows_of(run.witnessed)
    ]
    return TextTable(TITLE, [*rows, ("verdict", said, "")])


WITNESS = Section[Facts]("Who moved what", "who_moved", _frame, _text, text_as_pairs(_text, TITLE))
