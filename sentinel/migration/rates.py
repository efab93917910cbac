"""How fast migrations were, by an executed Run: what links carry while a job computes, page by page between nodes, and
where they are emulated, whether this host copies as fast as was asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sentinel.core.machine import Link, Machine
from sentinel.core.run import OUTCOMES, REASONS, Run
from sentinel.core.units import format_bytes

LEAST_BYTES = 16 << 20
"""Moved in one direction: below this, system calls of a few pages each and the clock decide."""
KEPT_UP = 0.9
"""An emulated link that reached this share of its rate was as fast as asked for: gaps between short jobs count too."""
SHORT = "the emulated link from"
"""How the sentences of `short_of` begin."""
_WHOLE = [OUTCOMES.index(outcome) for outcome in ("done", "late")]
_PLANNED = [REASONS.index(reason) for reason in ("prefetch", "evict", "mid-interval")]


def migration_rate(run: Run, source: int, target: int) -> int | None:
    """Bytes per second of the planned migrations from tier `source` to `target` while at least one was under way.

    Those of the first step do not count: some pages still have to be made then. None where too little has moved.
    """
    rows = run.migrations[(run.migrations["source"] == source) & (run.migrations["target"] == target)]
    rows = rows[np.isin(rows["outcome"], _WHOLE) & np.isin(rows["reason"], _PLANNED) & (rows["moved_bytes"] > 0)]
    rows = rows[rows["step"] > run.steps["step"].min(initial=0)]
    moved, busy_ns = int(rows["moved_bytes"].sum()), _covered_ns(rows["start_ns"], rows["stop_ns"])
    return moved * 10**9 // busy_ns if moved >= LEAST_BYTES and busy_ns else None


def _covered_ns(start: NDArray[np.int64], stop: NDArray[np.int64]) -> int:
    """Time in at least one of the spans: migrations that share system calls have the same."""
    order = np.argsort(start, kind="stable")
    start, stop = start[order], stop[order]
    before = np.concatenate([start[:1], np.maximum.accumulate(stop)[:-1]])
    return int(np.maximum(stop - np.maximum(start, before), 0).sum())


def with_rates(machine: Machine, run: Run) -> Machine:
    """`machine`, links to nodes as fast as `run` shows, if nobody had measured them. An emulated tier stays as it was
    asked for: where this host copies more slowly, `short_of` says so.

    What firmware and presets tell is how fast memory is read, and pages migrate many times slower.
    """

    def seen(link: Link) -> Link:
        slow = machine.tiers[max(link.source, link.target)]
        rate = None if link.measured or slow.kind != "node" else migration_rate(run, link.source, link.target)
        if rate is None:
            return link  # what the tiers are declared to carry bounds it: a link is never faster than its memory
        return replace(link, bandwidth_bytes_per_s=min(rate, machine.most_bytes_per_s(link)), measured=True)

    return machine if run.emulated else replace(machine, links=tuple(seen(link) for link in machine.links))


class LinkRate(NamedTuple):
    """Bytes per second that the emulated link from tier `source` to tier `target` was to carry, and that this host
    copied beside the job."""

    source: str
    target: str
    asked_bytes_per_s: int
    copied_bytes_per_s: int

    @property
    def kept_up(self) -> bool:
        """Whether the link was as fast as asked for."""
        return self.copied_bytes_per_s >= KEPT_UP * self.asked_bytes_per_s


def link_rates(machine: Machine, run: Run) -> list[LinkRate]:
    """Of each emulated link over which enough has moved to tell."""
    found = []
    for link in machine.links if run.emulated else ():
        rate = migration_rate(run, link.source, link.target)
        if rate is not None:
            source, target = machine.tiers[link.source].name, machine.tiers[link.target].name
            found.append(LinkRate(source, target, link.bandwidth_bytes_per_s, rate))
    return found


def short_of(machine: Machine, run: Run) -> list[str]:
    """A sentence for each emulated link that `run` found slower than it was to be."""
    return [
        f"{SHORT} {link.source} to {link.target} was to carry {format_bytes(link.asked_bytes_per_s)} a second, and this"
        f" host copied {format_bytes(link.copied_bytes_per_s)} a second beside the job: transfers took that long"
        for link in link_rates(machine, run)
        if not link.kept_up
    ]
