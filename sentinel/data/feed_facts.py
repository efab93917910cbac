"""FeedFacts: what the report of a loader is drawn from."""

from __future__ import annotations

from dataclasses import dataclass, field

from sentinel.data.feed_log import FeedLog
from sentinel.data.served_samples import Served
from sentinel.reports import ReportError
from sentinel.samples import Feed, ShuffleQuality


@dataclass(frozen=True)
class Fed:
    """Counts of some epochs. `feed`: as the simulator has them. `served`: what workers say of the samples that were
    delivered. `requested`, `requested_bytes`: samples that the loader asked for, and their bytes by the index."""

    feed: Feed
    served: Served
    requested: int
    requested_bytes: int

    @property
    def hit_ratio(self) -> float:
        """Samples that were in memory for an earlier read, of all that were delivered."""
        return self.served.hits / max(self.served.samples, 1)

    @property
    def reads_saved(self) -> float:
        """Of the reads of the same order without memory, a read a sample, the share that was not done; below 0 if more
        were."""
        return 1 - (self.feed.source_ranges + self.feed.direct_reads) / max(self.feed.samples, 1)

    @property
    def bytes_saved(self) -> float:
        """Of the bytes that the same order takes without memory, the share that was not read; below 0 if more was, 0
        where sizes are not known. Each sample of a chunk that is decoded as a whole takes all of it."""
        return 1 - self.feed.source_bytes / self.served.unstaged_bytes if self.served.unstaged_bytes else 0.0

    @property
    def headline(self) -> dict[str, float]:
        """Name -> count."""
        saved = {"hit_ratio": self.hit_ratio, "reads_saved": self.reads_saved, "bytes_saved": self.bytes_saved}
        return {**self.served.counts, **self.feed.headline, **saved}

    def checked(self) -> Fed:
        """This. Raises ReportError unless what was delivered is what was asked for, and each sample came from one
        place."""
        served = self.served
        for what, asked, delivered, places in (
            (
                "samples",
                self.requested,
                served.samples,
                (served.hits, served.remote_hits, served.brought, served.direct_reads),
            ),
            (
                "bytes",
                self.requested_bytes,
                served.sample_bytes,
                (served.hit_bytes, served.remote_bytes, served.brought_bytes, served.alone_bytes),
            ),
        ):
            if asked != delivered:
                raise ReportError(f"{what} of a loader", f"{asked} were asked for", f"{delivered} were delivered")
            if delivered != sum(places):
                raise ReportError(
                    f"{what} of a loader",
                    f"{delivered} were delivered",
                    f"{places[0]} hits, {places[1]} from peers, {places[2]} brought and {places[3]} read alone"
                    f" add up to {sum(places)}",
                )
        tiers = [sum(column) for column in zip(*served.by_place.values(), strict=True)] or [0, 0]
        for what, hits, of_tiers in zip(("hits", "bytes of hits"), (served.hits, served.hit_bytes), tiers, strict=True):
            if hits != of_tiers:
                raise ReportError(
                    f"{what} of a loader", f"there were {hits}", f"those of all tiers add up to {of_tiers}"
                )
        return self


@dataclass(frozen=True)
class FeedFacts:
    """`all_epochs`: counts of all epochs. `last`: of the one that is under way or ended last, whose number is `number`.
    `predicted`: what its plan said, where it was delivered to its end. `node_pages`: NUMA node -> pages of the memory
    for samples that the kernel says are there, -1 for those that were not touched yet. `mixing`: how well the order of
    the last epoch mixes samples, None where it is not known which lie together. `log`: of that epoch. `tiers`: the
    memory in which hits lay, as HitsByPlace numbers it, in words."""

    all_epochs: Fed
    last: Fed
    number: int
    predicted: Feed | None = None
    node_pages: dict[int, int] = field(default_factory=dict)
    caveats: list[str] = field(default_factory=list)
    mixing: ShuffleQuality | None = None
    log: FeedLog = field(default_factory=FeedLog.of_nothing)
    tiers: dict[int, str] = field(default_factory=dict)
