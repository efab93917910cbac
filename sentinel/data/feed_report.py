"""The report of a loader: what was delivered, where it came from, and what was read for it."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentinel.core.units import counted
from sentinel.data.feed_facts import FeedFacts
from sentinel.reports import forms
from sentinel.reports.section import Frames, Heading, Section, tables_of
from sentinel.reports.text import text_of
from sentinel.samples import Feed

if TYPE_CHECKING:
    import pandas as pd


class FeedReport(FeedFacts):
    """Shows counts of a loader; `report()` makes it."""

    @property
    def feed(self) -> Feed:
        """Counts of all epochs."""
        return self.all_epochs.feed

    @property
    def epoch(self) -> Feed:
        """Counts of the epoch that is under way or ended last."""
        return self.last.feed

    @property
    def headline(self) -> dict[str, float]:
        """Name -> count of all epochs, among them samples, hits, source_reads, source_bytes, direct_reads,
        reads_per_chunk (of an epoch, in the mean), peak_bytes and wait_ns (added up over workers)."""
        return self.all_epochs.headline

    @property
    def hits_by_tier(self) -> dict[str, int]:
        """Memory of this machine -> hits of all epochs that lay there: a node, a file, a server; they add up to the
        hits."""
        return {self.tiers.get(place, ""): samples for place, (samples, _) in self.all_epochs.served.by_place.items()}

    def checked(self) -> FeedReport:
        """This report. Raises ReportError where its sums do not agree."""
        self.all_epochs.checked()
        self.last.checked()
        return self

    @property
    def heading(self) -> Heading:
        """What was done, and the answer in short."""
        all_epochs = self.all_epochs
        done = f"{counted(all_epochs.served.samples, 'sample')} delivered, up to epoch {self.number}"
        summary = (
            ("read", self._read),
            ("saved", f"{all_epochs.reads_saved:.1%} of the reads that the same order takes without memory"),
            ("hits", f"{all_epochs.hit_ratio:.1%} of the samples were in memory for an earlier read"),
        )
        how = "`report.write('NAME.trace')` writes a timeline of the last epoch for ui.perfetto.dev: reads and waits."
        return Heading("training data report", "executed", done, "", summary, files=(how,))

    @property
    def facts(self) -> FeedFacts:
        """What its sections are drawn from: itself."""
        return self

    @property
    def sections(self) -> tuple[Section[FeedFacts], ...]:
        """Its parts, in the order in which they are read."""
        from sentinel.data.feed_sections import FEED_SECTIONS

        return FEED_SECTIONS

    @cached_property
    def tables(self) -> Frames:
        """The tables by name."""
        return tables_of(self.sections, self)

    def frames(self) -> dict[str, pd.DataFrame]:
        """Tables by name: requests, counts, direct_reads, mixing, nodes."""
        return dict(self.tables)

    def values(self) -> dict[str, Any]:
        """What the JSON form has beside the tables."""
        return {
            "headline": self.headline,
            "caveats": self.caveats,
            "epoch": self.number,
            "hits_by_tier": self.hits_by_tier,
        }

    def timeline(self) -> dict[str, Any]:
        """Reads, batches, waits and direct reads of the last epoch, in the Trace Event Format. Raises ReportError where
        their sums are not those of the report."""
        from sentinel.data.feed_timeline import timeline

        return timeline(self)

    def text(self) -> str:
        """The report for a terminal."""
        return text_of(self)

    def write(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write the report in the form that the suffix names: `.txt`, `.html`, `.json`, `.csv`, or `.trace` for a
        timeline of the last epoch; returns the paths.

        Raises UsageError for another suffix, FormatError if the file cannot be written.
        """
        return forms.write(self, path)

    def _repr_html_(self) -> str:
        """The page, for notebooks."""
        from sentinel.reports.html.page import in_notebook

        return in_notebook(self, 40)

    def __repr__(self) -> str:
        """One line."""
        return f"<FeedReport {self.feed.samples} samples, {self._read}: print(report.text())>"

    @property
    def _read(self) -> str:
        if not self.feed.n_chunks:
            return "each sample was read alone, in no chunks"
        reads, ranges = self.feed.source_reads, self.feed.source_ranges
        parts = f", in {ranges / reads:.1f} ranges each" if ranges > reads > 0 else ""
        return f"{self.feed.reads_per_chunk:.2f} reads a chunk in an epoch{parts}"
