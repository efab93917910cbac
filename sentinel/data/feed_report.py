"""The report of a loader: what was delivered, where it came from, and what was read for it."""

from __future__ import annotations

from typing import Any

from sentinel.core.units import counted
from sentinel.data.feed_facts import FeedFacts
from sentinel.data.feed_sections import FEED_SECTIONS
from sentinel.data.feed_timeline import timeline
from sentinel.reports.forms import Written
from sentinel.reports.html.page import in_notebook
from sentinel.reports.section import Heading
from sentinel.samples import Feed


class FeedReport(FeedFacts, Written):
    """Shows counts of a loader; `report()` makes it. Its tables are requests, counts, direct_reads, mixing and nodes;
    its timeline is of the last epoch."""

    sections = FEED_SECTIONS
    """Its parts, in the order in which they are read."""

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
        return timeline(self)

    def _repr_html_(self) -> str:
        """The page, for notebooks."""
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
