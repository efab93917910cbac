"""Who moved what: pages of the managed memory that changed nodes, by the witness, beside what the engine claims."""

from __future__ import annotations

import re

from sentinel.core.run import Run
from sentinel.core.units import PAGE_BYTES

COUNTER = "pages moved by {who} to node {node}"
_PATTERN = re.compile(r"pages moved by (.+) to node (-?\d+)")
LOST, UNMATCHED = "witness records lost", "witness records unmatched"
HUGE = "witness pages in huge pages"
"""Counter: of the pages that this process moved, those that went along in huge pages."""
RUNNING = "witness still watches"
"""Counter: 1 in what is told of a session that runs on, whose step under way the engine has not counted yet."""
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
"""The kernel's reason (sentinel.migration.sightings) -> who that is."""


def rows(run: Run | None) -> list[tuple[str, int, int]]:
    """(who, node, pages), ours first; empty where there was no witness, or nothing moved."""
    found = []
    for name, pages in (run.counters if run is not None else {}).items():
        matched = _PATTERN.fullmatch(name)
        if matched:
            found.append((matched[1], int(matched[2]), pages))
    return sorted(found, key=lambda row: (row[0] != OWN, row[0], row[1]))


def witness_pages(run: Run | None) -> int | None:
    """Pages that the witness saw this process move; None where there was no witness."""
    if run is None or LOST not in run.counters:
        return None
    return sum(pages for who, _, pages in rows(run) if who == OWN)


def claimed_pages(run: Run | None) -> int | None:
    """Pages that the engine says it moved, in all steps and at the beginning and end, by whatever plan of the session;
    None without an executed run."""
    if run is None or run.kind != "executed":
        return None
    by_others = run.counters.get("migrated_bytes_by_other_plans", 0)
    return (run.counters.get("migrated_bytes", 0) + by_others) // PAGE_BYTES


def verdict(run: Run | None) -> str:
    """Whether engine and witness agree, in a sentence; "" where there was no witness."""
    seen, claimed = witness_pages(run), claimed_pages(run)
    if run is None or seen is None or claimed is None:
        return ""
    if run.counters.get(RUNNING):
        said = f"the session runs on: the engine claims {claimed:,} pages in steps that have ended, the witness saw"
        said += f" {seen:,} until now; after stop() they are comparable"
    elif seen == claimed:
        said = f"engine and witness agree: {seen:,} pages"
    else:
        said = f"the engine claims {claimed:,} pages, the witness saw {seen:,}: {abs(seen - claimed):,}"
        said += f" {'more' if seen > claimed else 'fewer'}, {_kind(run, seen - claimed)}"
    lost, unmatched = run.counters.get(LOST, 0), run.counters.get(UNMATCHED, 0)
    if lost or unmatched:
        said += f"; {lost:,} records were lost and {unmatched:,} have no beginning, so the witness may miss pages"
    return said


def _kind(run: Run, more: int) -> str:
    """What may explain that the witness saw so many `more` pages move, or fewer; in words."""
    huge = run.counters.get(HUGE, 0)
    others = sum(pages for who, _, pages in rows(run) if who != OWN)
    if more > 0 and huge:
        return f"{huge:,} of those it saw in huge pages: the kernel moves all of one where a part is asked for"
    if more < 0 and others:
        return f"while others moved {others:,}: a page that is there when the engine looks counts as moved by it"
    return "which nothing that was counted explains"
