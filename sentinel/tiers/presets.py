"""Described tiers by name. Every number is declared, none measured here; each says by whom."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.core.machine import TierKind, TierSpec

GB = 1_000_000_000


@dataclass(frozen=True)
class Preset:
    """One class of memory as its source describes it. Bandwidths in bytes per second, idle latency in ns."""

    name: str
    latency_ns: float
    read_bytes_per_s: int
    write_bytes_per_s: int
    source: str
    addressable: bool = True

    def spec(self, name: str, kind: TierKind, capacity_bytes: int, *, node: int | None = None) -> TierSpec:
        """A tier called `name` with these numbers."""
        return TierSpec(
            name=name,
            kind=kind,
            capacity_bytes=capacity_bytes,
            latency_ns=self.latency_ns,
            read_bytes_per_s=self.read_bytes_per_s,
            write_bytes_per_s=self.write_bytes_per_s,
            node=node,
            addressable=self.addressable,
            measured=False,
            source=f"declared ({self.name}): {self.source}",
        )


def _row(name: str, latency_ns: float, read: float, write: float, source: str, *, addressable: bool = True) -> Preset:
    return Preset(name, latency_ns, round(read * GB), round(write * GB), source, addressable)


def _read_only(name: str, latency_ns: float, read: float, source: str) -> Preset:
    """The source gives no write bandwidth: half the read bandwidth is assumed."""
    return _row(name, latency_ns, read, read / 2, f"{source}; write: not given, taken as half of read")


def _mixed(name: str, latency_ns: float, read: float, one_to_one: float, source: str) -> Preset:
    """The source gives reads and writes mixed 1:1: half of it is writes."""
    return _row(name, latency_ns, read, one_to_one / 2, f"{source}; write: half of the 1:1 mix of {one_to_one:g} GB/s")


MOVER_BYTES_PER_S = 2 * GB
"""What one mover carries between nodes in pages of 4 KiB, one way, where nobody measured it. Published for an idle
host: 3.31 GB/s from DRAM to DRAM of two sockets on Linux 7.1-rc1 (S. Garg, linux-mm, 2026-05-08); 0.04 to 0.75 GB/s on
a kernel of 2019 (Nimble). Slower memory is at one end of ours, and no core of a job in training is idle."""

_ALL = (
    _row("dram-local-clx", 88, 113, 93, "Intel MLC logs, Cascade Lake"),
    _read_only("numa-remote-clx", 140, 34, "Intel MLC logs, Cascade Lake"),
    _row("dram-local-icx", 89, 176, 147, "Intel MLC logs, Ice Lake"),
    _read_only("numa-remote-icx", 143, 56, "Intel MLC logs, Ice Lake"),
    _row("dram-local-spr", 117, 160, 147, "Intel MLC log, Sapphire Rapids 4410Y"),
    _read_only("numa-remote-spr", 184, 63, "Intel MLC log, Sapphire Rapids 4410Y"),
    _mixed("cxl-asic-x8", 250, 17.8, 27.2, "CacheLib wiki, OCP demo of a CXL ASIC on x8"),
    _mixed("cxl-fpga", 391, 18.6, 13.2, "Intel MLC log, Agilex"),
    _read_only("cxl-fpga-remote", 562, 7.1, "Intel MLC log, Agilex behind another socket"),
    _read_only("cxl-worst", 564, 4.8, "Micron cxl-reskit"),
    _row("optane-6dimm", 305, 39.4, 13.9, "Izraelevitz et al. and Yang et al., six DIMMs"),
    _row("nvme-gen4", 80_000, 7, 5, "data sheets; calibrate", addressable=False),
)
PRESETS: dict[str, Preset] = {entry.name: entry for entry in _ALL}
"""Name -> preset."""

DEFAULT_FAST = "dram-local-clx"
DEFAULT_SLOW = "cxl-asic-x8"
DEFAULT_NODE = "numa-remote-clx"
