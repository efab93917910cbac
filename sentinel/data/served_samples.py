"""Served: how the samples of a batch were got, and when."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from sentinel.data.hit_places import HitsByPlace


@dataclass
class Moments:
    """When a batch was got, by CLOCK_MONOTONIC, which all processes of a machine have alike. `worker`: which one got
    it, -1 the main process. 0 for what was not."""

    worker: int = -1
    began_ns: int = 0
    ended_ns: int = 0
    wait_began_ns: int = 0
    """Its wait takes `wait_ns`."""
    alone_ns: int = 0
    """When the first of its samples that are read alone was to be read."""


@dataclass
class Served:
    """How the samples of a batch were got. `samples` = `hits` + `remote_hits` + `brought` + `direct_reads`, and so
    their bytes (`alone_bytes`)."""

    samples: int = 0
    sample_bytes: int = 0
    hits: int = 0
    hit_bytes: int = 0
    remote_hits: int = 0
    """From the memory of a peer."""
    remote_bytes: int = 0
    brought: int = 0
    """From the arena, by the read that was due for this sample."""
    brought_bytes: int = 0
    direct_reads: int = 0
    direct_bytes: int = 0
    """Read for these: of a chunk that is decoded as a whole all of it, once for those of a batch that no plan had."""
    alone_bytes: int = 0
    """Of these samples themselves."""
    unstaged_bytes: int = 0
    """What reading each of the samples alone would take from the source."""
    waits: int = 0
    """Samples that were not there when they were asked for."""
    wait_ns: int = 0
    late: int = 0
    """Of the direct reads that the plan did not have: the reader had made no progress for too long."""
    lost: int = 0
    """Their reads failed, or a peer did not bring them."""
    ended: int = 0
    """The reader had ended."""
    again: int = 0
    """A worker that was killed had got them, and their place was given to others."""
    apart: int = 0
    """The job that reads for this one was elsewhere in the epoch."""
    damaged: int = 0
    """Somebody else wrote to the memory."""
    of_jobs: int = 0
    """Of the hits, those from the memory of other jobs that select."""
    gone: int = 0
    """Another job that selects had them as the epoch was planned."""
    by_place: HitsByPlace = field(default_factory=HitsByPlace)
    """The hits, by where they lay."""
    when: Moments = field(default_factory=Moments)
    """Of one batch."""

    @property
    def counts(self) -> dict[str, int]:
        """Name -> count."""
        return {name: getattr(self, name) for name in COUNTS}

    def add(self, other: Served) -> None:
        """Counts the other's too."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.by_place = self.by_place + other.by_place


COUNTS = tuple(each.name for each in fields(Served) if each.name not in ("by_place", "when"))
MOMENTS = tuple(each.name for each in fields(Moments))
