"""What a report must be told because no noun holds it: how the session was set up, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from sentinel.reports.buckets import BucketRow

Done = Literal["executed", "emulated", "simulated", "declared"]
"""What was done. `executed`: on this host's tiers. `emulated`: executed, the slow tier's delays injected.
`simulated`: computed. `declared`: simulated for a described machine because this host has no slower tier;
nothing was applied."""


class InPlace(NamedTuple):
    """A tensor that stayed where the framework had put it, and why."""

    name: str
    nbytes: int
    reason: str


@dataclass(frozen=True)
class Setup:
    """How a run was set up; whatever is not known is None or empty.

    `fast`, `slow`, `tracker`, `script` as asked for or found (`"20%"`, `"emulated:cxl-asic-x8"`, `"ops"`).
    `kind`: only `"declared"` needs to be told, the others follow from the nouns. `setup_ns`: spent in
    `start_profile` and `end_profile`, planning apart; `plan_ns`: planning. `in_place`: (name, nbytes,
    reason) of tensors whose memory was not taken over. `unmanaged`: why allocations fell back to malloc ->
    bytes of all that did, counted at each allocation. `notes`: sentences for the top of the report. `buckets`: the
    shapes that steps came in, where there were several.
    """

    tracker: str | None = None
    slow: str | None = None
    fast: str | None = None
    kind: Done | None = None
    setup_ns: int | None = None
    plan_ns: int | None = None
    in_place: tuple[tuple[str, int, str], ...] = ()
    unmanaged: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    buckets: tuple[BucketRow, ...] = ()
    script: str | None = None
