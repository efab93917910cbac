"""DiskRates: how fast granules go to and from a file. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.core.units import HUGE_PAGE_BYTES


@dataclass(frozen=True)
class DiskRates:
    """`read_bytes_per_s`, `write_bytes_per_s`: each with nothing else under way. Both directions share the disk: in the
    time of a read nothing is written. `origin`: who measured them, a sentence's end.

    Raises ValueError for a rate that is not above 0.
    """

    read_bytes_per_s: float
    write_bytes_per_s: float
    origin: str = "as declared"

    def __post_init__(self) -> None:
        if not (self.read_bytes_per_s > 0 and self.write_bytes_per_s > 0):
            raise ValueError(f"rates of {self.read_bytes_per_s} and {self.write_bytes_per_s} bytes/s: expected above 0")

    @property
    def read_ns(self) -> float:
        """Of one granule, in ns."""
        return HUGE_PAGE_BYTES * 1e9 / self.read_bytes_per_s

    @property
    def write_ns(self) -> float:
        """Of one granule, in ns."""
        return HUGE_PAGE_BYTES * 1e9 / self.write_bytes_per_s
