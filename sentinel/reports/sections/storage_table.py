"""What a session under a memory budget, with the rest in a file, read and wrote, and what it waited for."""

from __future__ import annotations

import pandas as pd

from sentinel.core.units import HUGE_PAGE_BYTES, format_bytes, format_ns
from sentinel.reports.facts import Facts
from sentinel.reports.html.tables import text_as_pairs
from sentinel.reports.section import NO_TEXT, Document, Section, TextTable
from sentinel.reports.setup import StorageFigures

TITLE = "Memory budget, and the file"


def _frame(facts: Facts) -> pd.DataFrame | None:
    """figure, value: a row for each field of StorageFigures but the name of an operator; None without a file."""
    told = facts.setup.storage
    if told is None:
        return None
    rows = {name: int(value) for name, value in told._asdict().items() if not isinstance(value, str)}
    return pd.DataFrame({"figure": pd.array(list(rows), "string"), "value": pd.array(list(rows.values()), "Int64")})


def _text(report: Document[Facts]) -> TextTable:
    told = report.facts.setup.storage
    if told is None:
        return NO_TEXT
    wait = told.waited_ns / max(told.operators, 1)
    least, most = format_bytes(told.least_pool_bytes), format_bytes(told.most_pool_bytes)
    beside, spare = format_bytes(told.most_taken_bytes), format_bytes(told.spare_bytes)
    cap = [("cap", format_bytes(told.cap_bytes), f"{least} to {most} for tensors, up to {beside} beside, {spare} free")]
    cached = f", and {format_bytes(told.cached_bytes)} of the file in its page cache" if told.cached_bytes else ""
    before, after = format_ns(told.wait_before_ns), format_ns(told.wait_after_ns)
    ahead = [
        ("read ahead", format_bytes(told.hit_bytes), f"there in time; {format_bytes(told.late_bytes)} came late"),
        ("read on demand", format_bytes(told.demanded_bytes), "an operator waited for all of it"),
        ("read in vain", format_bytes(told.vain_bytes), "it left again, or died, before it was needed"),
        ("records of steps", f"{told.recorded:,}", f"{told.matched:,} operators followed one, {told.missed:,} did not"),
        ("waits of a step", after, f"{before} without reading ahead"),
    ]
    bound = [
        ("a step", format_ns(told.step_ns), "the median of the last 64"),
        ("  at least", format_ns(told.bound_ns), _bounded(told)),
    ]
    return TextTable(
        TITLE,
        [
            *(cap if told.cap_bytes else []),
            (
                "memory promised",
                format_bytes(told.pool_bytes),
                f"the kernel counts {format_bytes(told.resident_bytes - told.cached_bytes)}{cached}",
            ),
            ("file", format_bytes(told.file_bytes), "reserved on its disk; file:DIR=SIZE gives another size"),
            ("tensors in it, peak", format_bytes(told.tensor_peak_bytes), "resident and away, of 1 MiB and more"),
            ("other tensors, peak", format_bytes(told.elsewhere_peak_bytes), "ordinary memory, beside the budget"),
            ("read", format_bytes(told.read_bytes), "from the file"),
            *(ahead if told.recorded else []),
            *(bound if told.bound_ns else []),
            ("written", format_bytes(told.written_bytes), f"to it, {format_bytes(told.fork_bytes)} for forks"),
            ("left unwritten", format_bytes(told.dropped_granules * HUGE_PAGE_BYTES), "the file held the same"),
            ("came unread", format_bytes(told.unread_bytes), "an operator was about to make it zero"),
            ("beside it, peak", format_bytes(told.beside_peak_bytes), "pages of stores that nobody announced"),
            ("carried", f"{told.carried_pages:,} pages", "written to unforeseen"),
            ("operators", f"{told.operators:,}", f"waited {format_ns(told.waited_ns)}, {format_ns(wait)} each"),
            ("in slices", f"{told.sliced:,} operators", "elementwise, of operands beyond half of the memory"),
            ("stores that waited", f"{told.waited_stores:,}", "some microseconds each"),
            ("beyond the budget", format_bytes(told.refused_bytes), f"{told.refused:,} allocations"),
        ],
    )


def _bounded(told: StorageFigures) -> str:
    ways = (
        (told.bound_read_bytes, "read", told.read_alone_bytes_per_s),
        (told.bound_written_bytes, "written", told.write_alone_bytes_per_s),
    )
    moved = [f"{format_bytes(nbytes)} {verb} at {format_bytes(rate)}/s" for nbytes, verb, rate in ways if rate]
    return f"in whatever order: {' beside '.join(moved)}"


STORAGE = Section[Facts](TITLE, "storage", _frame, _text, text_as_pairs(_text, TITLE))
