"""Feed: what a staging did, simulated or carried out by the reader."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal


@dataclass
class Feed:
    """Counts of an epoch or of several, for one rank. Bytes of samples are those that the layout tells.

    `samples` = `hits` + `remote_hits` + reads that a sample had to wait for (`source_reads`) + `direct_reads`.
    """

    kind: Literal["simulated", "executed"] = "simulated"
    n_chunks: int = 0
    """Chunks of the layout."""
    samples: int = 0
    """Delivered."""
    sample_bytes: int = 0
    hits: int = 0
    """Delivered from the arena, and brought there by a read that an earlier sample needed."""
    remote_hits: int = 0
    """Delivered from the memory of a peer."""
    source_reads: int = 0
    """Chunks read from the source into the arena, whole or in part."""
    source_ranges: int = 0
    """Ranges of files that these reads asked for: more than `source_reads` where only parts of chunks are read."""
    source_bytes: int = 0
    """Bytes that the source gave, direct reads included."""
    direct_reads: int = 0
    """Samples read alone, past the arena."""
    direct_bytes: int = 0
    peak_bytes: int = 0
    """Most bytes of the arena in use at once, in whole pages."""
    wait_ns: int = 0
    """Time that delivery waited for reads; in a simulation that of the reads alone, as if nothing else took time."""

    read_ns: int = 0
    """Time in which at least one chunk was being read; in a simulation what that takes by the costs of the source."""

    @property
    def reads_per_chunk(self) -> float:
        """Reads of the source, direct ones included, over chunks of the layout. A chunk that is read in several ranges
        counts once."""
        return (self.source_reads + self.direct_reads) / self.n_chunks if self.n_chunks else 0.0

    @property
    def headline(self) -> dict[str, float]:
        """Name -> count of all that was counted, and `reads_per_chunk`."""
        counts = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("kind", "n_chunks")}
        return {**counts, "reads_per_chunk": self.reads_per_chunk}
