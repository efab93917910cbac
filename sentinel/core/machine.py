"""Machine: the tiers of a host, their capacities and the links between them. How much of them a job may use is its
Budget."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from sentinel.core.rules import require, require_printable

TierKind = Literal["node", "emulated", "file", "described"]
"""`node`: a NUMA node of this host. `emulated`: accounted for, what moves is copied, delays of accesses injected.
`file`: bytes leave memory. `described`: exists on paper only; plans and simulations may use it, nothing can be
applied."""


MOST_LATENCY_NS = MOST_LOST_NS = 1e12
"""1,000 s for one access, one migration or one KiB: more was given in another unit than ns."""
LEAST_FLOPS_PER_S = 1e6
"""Of a machine: 1.5 was to be 1.5 TFLOP/s."""


@dataclass(frozen=True)
class TierSpec:
    """One class of memory. Bandwidths in bytes per second, latency in ns (idle).

    `addressable`: its bytes can be used in place. `measured`: the numbers were measured on this
    host; otherwise they are declared, and `source` says by whom.
    `loaded_latency_a`: `a` in latency·(1 + a·u/(1−u)) at utilisation u; 0 ignores load.
    """

    name: str
    kind: TierKind
    capacity_bytes: int
    latency_ns: float
    read_bytes_per_s: int
    write_bytes_per_s: int
    node: int | None = None
    addressable: bool = True
    measured: bool = False
    source: str = ""
    loaded_latency_a: float = 0.0

    def __post_init__(self) -> None:
        require_printable("tier", name=self.name, source=self.source)
        amounts = {what: getattr(self, what) for what in ("capacity_bytes", "latency_ns", "loaded_latency_a")}
        require(
            (not self.name, "a tier has no name", "name every tier"),
            *(
                (not 0 <= amount < math.inf, f"tier {self.name}: {what} is {amount}", "give a number of at least 0")
                for what, amount in amounts.items()
            ),
            (
                self.latency_ns > MOST_LATENCY_NS,
                f"tier {self.name}: latency_ns is {self.latency_ns}, more than 1,000 s",
                "give ns",
            ),
            (
                self.read_bytes_per_s <= 0 or self.write_bytes_per_s <= 0,
                f"tier {self.name}: a bandwidth is not positive",
                "give bytes per second above 0",
            ),
        )


@dataclass(frozen=True)
class Link:
    """Directed path between two tiers (indexes into `Machine.tiers`) that migrations take.

    What moves costs the job besides time on the link: `lost_ns_per_kib` ns of its computation for each KiB that moves
    beside it, since whoever copies takes processor time and memory bandwidth, and `lost_ns_per_move` ns of the training
    thread for each migration, however small. 0 where nobody measured them (`sentinel calibrate` does); `lost_measured`
    where somebody did, even if 0 came out. `measured` is of the bandwidth alone. `declared_by`: the source of rate and
    price where they are declared.
    """

    source: int
    target: int
    bandwidth_bytes_per_s: int
    latency_ns: int = 0
    measured: bool = False
    lost_ns_per_kib: float = field(default=0.0, metadata={"sparse": True})
    lost_ns_per_move: float = field(default=0.0, metadata={"sparse": True})
    lost_measured: bool = field(default=False, metadata={"sparse": True})
    declared_by: str = field(default="", metadata={"sparse": True})

    def __post_init__(self) -> None:
        require_printable("link", declared_by=self.declared_by)
        require(
            (
                self.source == self.target,
                f"a link leads from tier {self.source} to itself",
                "link two different tiers",
            ),
            (
                self.bandwidth_bytes_per_s <= 0 or not 0 <= self.latency_ns <= MOST_LATENCY_NS,
                f"link {self.source}->{self.target}: bandwidth or latency is off",
                "give a bandwidth above 0, and a latency of at least 0 and at most 1,000 s, in ns",
            ),
            *(
                (
                    not 0 <= getattr(self, what) <= MOST_LOST_NS,
                    f"link {self.source}->{self.target}: {what} is {getattr(self, what)}",
                    "give a number of at least 0 and at most 1,000 s, in ns",
                )
                for what in ("lost_ns_per_kib", "lost_ns_per_move")
            ),
        )

    @property
    def takes_from_compute(self) -> bool:
        """Whether what moves here costs the job more than time on the link."""
        return self.lost_ns_per_kib > 0 or self.lost_ns_per_move > 0

    @property
    def price_is_measured(self) -> bool:
        """Whether what moves take from compute was measured. Files of before `lost_measured` tell it by a price on a
        link whose rate was measured."""
        return self.lost_measured or (self.takes_from_compute and self.measured)


@dataclass(frozen=True)
class Machine:
    """The tiers, fastest first, and the links between the fast tier and each slower one, in both directions.

    A link is no faster than its source is read and its target written: whatever moves goes through both.

    `flops_per_s`: sustained; where given, a layer takes max(FLOPs, memory traffic) on this machine
    instead of its recorded time (see `core.cost`). `full_duplex`: promotions and demotions do not
    share bandwidth. `decided_by`: what ordered the tiers (`user`, `hmat`, ...).
    """

    name: str
    tiers: tuple[TierSpec, ...]
    links: tuple[Link, ...]
    flops_per_s: float | None = None
    full_duplex: bool = True
    decided_by: str = "declared"

    def __post_init__(self) -> None:
        require_printable("machine", name=self.name, decided_by=self.decided_by)
        of, count = f"machine {self.name}", len(self.tiers)
        require((count < 2, f"{of} has {count} tier", "describe a fast and a slow tier"))
        pairs = {(link.source, link.target) for link in self.links}
        alone = [self.tiers[slow].name for slow in self.slower if not {(self.hub, slow), (slow, self.hub)} <= pairs]
        require(
            (len({tier.name for tier in self.tiers}) != count, f"{of}: two tiers share a name", "name each tier once"),
            (len(pairs) != len(self.links), f"{of}: two links join the same tiers", "give each direction once"),
            (
                any(not 0 <= end < count for pair in pairs for end in pair),
                f"{of}: a link names a tier that is not there",
                "use 0-based indexes",
            ),
            (
                alone,
                f"{of}: no link both ways between {self.fast.name} and {', '.join(alone[:1])}",
                "link the fast tier with each slower one",
            ),
            (
                self.flops_per_s is not None and not LEAST_FLOPS_PER_S <= self.flops_per_s < math.inf,
                f"{of}: flops_per_s is {self.flops_per_s}",
                "give floating-point operations per second, such as 1.5e12 for 1.5 TFLOP/s, or leave it out",
            ),
            (
                not self.fast.addressable,
                f"{of}: the fast tier is not addressable",
                "put one first that is used in place",
            ),
        )
        for link in self.links:
            source, target, most = self.tiers[link.source], self.tiers[link.target], self.most_bytes_per_s(link)
            require(
                (
                    link.bandwidth_bytes_per_s > most,
                    (
                        f"{of}: the link from {source.name} to {target.name} carries"
                        f" {_rate(link.bandwidth_bytes_per_s)}, but {source.name} is read at"
                        f" {_rate(source.read_bytes_per_s)} and {target.name} written at"
                        f" {_rate(target.write_bytes_per_s)}"
                    ),
                    f"give the link a bandwidth of at most {most} bytes per second",
                ),
            )

    def most_bytes_per_s(self, link: Link) -> int:
        """What a link between these tiers can carry at most: its source is read, its target written."""
        return min(self.tiers[link.source].read_bytes_per_s, self.tiers[link.target].write_bytes_per_s)

    @property
    def hub(self) -> int:
        """Index of the fast tier, which has a link both ways with every other: tensors are used there, and every
        migration begins or ends there."""
        return 0  # tiers are listed fastest first

    @property
    def slower(self) -> tuple[int, ...]:
        """Indexes of the other tiers, fastest first."""
        return tuple(index for index in range(len(self.tiers)) if index != self.hub)

    @property
    def fast(self) -> TierSpec:
        """The fast tier."""
        return self.tiers[self.hub]

    @property
    def slow(self) -> str:
        """The slower tiers, as the argument `slow` names them: `numa:1`, `emulated:cxl-asic-x8+nvme-gen4`."""
        slower = [self.tiers[index] for index in self.slower]
        words = "+".join(tier.name if tier.node is None else f"numa:{tier.node}" for tier in slower)
        return f"emulated:{words}" if any(tier.kind == "emulated" for tier in slower) else words

    def link(self, source: int, target: int) -> Link:
        """The link from tier `source` to tier `target`; KeyError if there is none."""
        for link in self.links:
            if (link.source, link.target) == (source, target):
                return link
        raise KeyError((source, target))

    def with_fast_capacity(self, nbytes: int) -> Machine:
        """A machine like this one whose fast tier has `nbytes`: what policies see of it within a budget."""
        tiers = list(self.tiers)
        tiers[self.hub] = replace(self.fast, capacity_bytes=nbytes)
        return replace(self, tiers=tuple(tiers))

    def with_moves_dearer(self, times: float) -> Machine:
        """A machine like this one on which moves take `times` as much from compute."""
        return replace(
            self,
            links=tuple(
                replace(
                    x,
                    lost_ns_per_kib=min(times * x.lost_ns_per_kib, MOST_LOST_NS),
                    lost_ns_per_move=min(times * x.lost_ns_per_move, MOST_LOST_NS),
                )
                for x in self.links
            ),
        )

    def with_links_at(self, share: float) -> Machine:
        """A machine like this one whose links carry that share of their bandwidth, and nothing else is another."""
        rates = (max(int(link.bandwidth_bytes_per_s * share), 1) for link in self.links)
        links = (replace(x, bandwidth_bytes_per_s=rate) for x, rate in zip(self.links, rates, strict=True))
        return replace(self, links=tuple(links))

    def worse(self, share: float = 1.0) -> Machine:
        """A machine like this one whose links carry half, and whose slower tiers take 1.5 times as long to use: what a
        plan meets where memory was described too well. `share`: so much of the way there, by ratios."""
        dearer = _DEARER**share
        slower = tuple(
            replace(
                tier,
                latency_ns=min(dearer * tier.latency_ns, MOST_LATENCY_NS),
                read_bytes_per_s=max(int(tier.read_bytes_per_s / dearer), 1),
                write_bytes_per_s=max(int(tier.write_bytes_per_s / dearer), 1),
            )
            for tier in (self.tiers[index] for index in self.slower)
        )
        return replace(self.with_links_at(LESS**share), tiers=(self.fast, *slower))


_DEARER, LESS = 1.5, 0.5
"""Of a worse machine: times of slow accesses, and the share that links carry, by which plans are tried alone too."""


def _rate(bytes_per_s: int) -> str:
    return f"{bytes_per_s / 1e9:g} GB/s"
