"""What each noun was made from, what the tracker's counts mean, and what the run counted."""

from __future__ import annotations

from sentinel.core.units import format_bytes, format_ns
from sentinel.reports.facts import Facts
from sentinel.reports.html.tables import pairs
from sentinel.reports.section import Document, Section, TextTable

TITLE = "Quality and origin"


def _text(report: Document[Facts]) -> TextTable:
    words = {True: "proved by digest", False: "NOT the one shown here", None: "not recorded"}
    rows = [(f"{what} made from this {source}", words[state]) for what, source, state in report.facts.provenance]
    quality = report.facts.profile.quality if report.facts.profile else None
    if quality:
        sees, spent = " and ".join(quality.sees) or "nothing", format_ns(quality.overhead_ns)
        rows.append(("tracker counts", f"{quality.counts} ({sees}), one of {quality.period}; {spent} spent"))
    return TextTable("Origin and quality", rows)


def _html(report: Document[Facts]) -> str:
    words = {True: "proved by digest", False: "not the one shown here", None: "not recorded"}
    rows = [(f"{what} made from this {source}", words[state], "") for what, source, state in report.facts.provenance]
    quality = report.facts.profile.quality if report.facts.profile else None
    if quality is not None:
        rows += [
            ("tracker", quality.tracker, ""),
            ("what a count means", quality.counts, f"one of {quality.period} counted"),
            ("sees", " and ".join(quality.sees) or "nothing", ""),
            ("granularity", format_bytes(quality.granularity_bytes), ""),
            ("lost; attributed late", f"{quality.lost:,}; {quality.late:,}", "events"),
            ("own cost in the profiled step", format_ns(quality.overhead_ns), "subtracted from the layers' times"),
            ("blind to", ", ".join(quality.blind_to) or "nothing known", ""),
        ]
    if report.facts.run is not None:
        rows += [(*_counter(name, n), "counted in the run") for name, n in report.facts.run.counters.counted().items()]
    executed = report.facts.executed
    if executed is not None and (seen := executed.witnessed) is not None:
        counts = [
            ("records lost", seen.lost),
            ("records unmatched", seen.unmatched),
            ("pages in huge pages", seen.huge_pages),
        ]
        rows += [(f"witness, {what}", f"{n:,}", "counted in the run") for what, n in counts]
    return pairs(rows, TITLE) if rows else ""


def _counter(name: str, count: int) -> tuple[str, str]:
    """A counter's name and value, the unit taken from the name to the value."""
    words = name.replace("_", " ")
    if name.endswith("_bytes"):
        return words.removesuffix(" bytes"), format_bytes(count)
    if name.endswith("_ns"):
        return words.removesuffix(" ns"), format_ns(count)
    return words, f"{count:,}"


ORIGIN = Section[Facts](TITLE, text=_text, html=_html)
