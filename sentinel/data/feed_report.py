"""The report of a loader: what was delivered, and what was read for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from sentinel.core.units import format_bytes, format_ns
from sentinel.samples import Feed


@dataclass(frozen=True)
class FeedReport:
    """`feed`: counts of all epochs, `epoch`: of the one that is under way or ended last, and its number in `number`."""

    feed: Feed
    epoch: Feed
    number: int
    caveats: list[str] = field(default_factory=list)

    @property
    def headline(self) -> dict[str, float]:
        """Name -> count of all epochs, among them samples, hits, source_reads, source_bytes, direct_reads,
        reads_per_chunk (of an epoch, in the mean), peak_bytes and wait_ns (added up over workers)."""
        return self.feed.headline

    def text(self) -> str:
        """The report for a terminal."""
        rows = [("", "all epochs", f"epoch {self.number}")]
        for name, value in self.headline.items():
            rows.append((name, _shown(name, value), _shown(name, self.epoch.headline[name])))
        width = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [f"{a.ljust(width[0])}  {b.rjust(width[1])}  {c.rjust(width[2])}".rstrip() for a, b, c in rows]
        return "\n".join([*(f"note: {sentence}" for sentence in self.caveats), *lines]) + "\n"

    def __repr__(self) -> str:
        """One line."""
        reads = f"{self.feed.reads_per_chunk:.2f} reads a chunk"
        return f"<FeedReport {self.feed.samples} samples, {reads}: print(report.text())>"


def _shown(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith("_ns"):
        return format_ns(value)
    return f"{value:.2f}" if name == "reads_per_chunk" else f"{value:,.0f}"
