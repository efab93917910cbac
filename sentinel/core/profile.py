"""Profile: the digest of one step. Columns, not objects, so that 100,000 tensors stay cheap."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import UsageError
from sentinel.core.false_sharing import FalseSharing
from sentinel.core.trace import ROLES, LayerId, Quality
from sentinel.core.units import PAGE_BYTES

TENSOR_DTYPE = np.dtype(
    [
        ("role", "<u1"),  # index into ROLES
        ("nbytes", "<i8"),
        ("start", "<i4"),  # first layer alive, in [0, L)
        ("stop", "<i4"),  # one past the last layer alive, unrolled: in (start, start + L]; wraps past L
        ("persistent", "?"),  # lives across steps; then start = 0, stop = L
        ("managed", "?"),
        ("key_layer", "<i4"),  # key of its allocation: layer and ordinal in the layer; -1 if persistent
        ("key_ordinal", "<i4"),
        ("born_event", "<i8"),  # place on the circle of allocation events [0, n_events); 0 if persistent
        ("died_event", "<i8"),  # unrolled: in (born_event, born_event + n_events]
    ]
)
ACCESS_DTYPE = np.dtype(
    [
        ("tensor", "<i4"),
        ("layer", "<i4"),
        ("reads", "<i4"),  # operator reads of it in the layer; -1 unknown
        ("writes", "<i4"),
        ("read_bytes", "<i8"),  # traffic: bytes spanned by the operands, each operator counted
        ("written_bytes", "<i8"),
        ("touched_bytes", "<i8"),  # distinct bytes touched in the layer
        ("pages_touched", "<i4"),  # -1: unknown
        ("pages_written", "<i4"),  # -1: unknown
    ]
)
RANGE_DTYPE = np.dtype(
    [  # touches of a range of a large persistent tensor: a run of pages of like hotness (core/page_ranges.py)
        ("tensor", "<i4"),
        ("layer", "<i4"),
        ("first_page", "<i4"),  # page index within the tensor
        ("stop_page", "<i4"),
        ("pages_touched", "<i4"),  # of the range, in the layer; at least 1
        ("pages_written", "<i4"),  # -1: unknown
    ]
)


@dataclass(frozen=True, eq=False)
class Profile:
    """What each tensor is and when it is used, and how long each layer takes.

    Shapes: L layers, n tensors, m accesses. `accesses` is sorted by (tensor, layer), one row a pair.
    A tensor is alive in layers [start, stop), modulo L; `n_events` is the length of the allocation circle.
    `layer_ns`: plain time of each layer, the tracker's cost taken off. `flops`: -1 where unknown.
    `step_ns_plain`: wall time of a stock step; `step_ns_is_measured` says whether a step ran stock.
    `ranges`: of tensors whose pages are not all alike, one row a range and layer that touches it, sorted by
    (tensor, layer, first_page). The ranges of one tensor are the same in all layers and do not overlap; pages in
    none of them are touched in no layer. Without rows of a layer the tensor's accesses are spread evenly.
    """

    layers: tuple[LayerId, ...]
    layer_ns: NDArray[np.int64]
    flops: NDArray[np.int64]
    names: tuple[str, ...]
    tensors: NDArray[Any]
    accesses: NDArray[Any]
    n_events: int
    quality: Quality
    unmanaged_peak_bytes: int = 0
    live_peak_bytes: int = 0
    step_ns_profiled: int | None = None
    step_ns_plain: int | None = None
    step_ns_is_measured: bool = False
    provisional: bool = False
    ranges: NDArray[Any] = field(default_factory=lambda: np.zeros(0, RANGE_DTYPE))
    sharing: FalseSharing | None = None
    origin: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n_layers, n = len(self.layers), len(self.names)
        problems = _problems(self, n_layers, n)
        if problems:
            raise UsageError(f"a profile breaks its own rules: {problems}", "record it anew")

    @property
    def n_layers(self) -> int:
        """Number of layers, L."""
        return len(self.layers)

    def alive(self) -> NDArray[np.bool_]:
        """(n, L) whether each tensor is alive in each layer. Small profiles only: it is dense."""
        layer = np.arange(self.n_layers)
        start, stop = self.tensors["start"][:, None], self.tensors["stop"][:, None]
        found: NDArray[np.bool_] = ((layer >= start) & (layer < stop)) | (layer + self.n_layers < stop)
        return found

    def short_lived(self) -> NDArray[np.bool_]:
        """(n,) whether each tensor lives at most one layer."""
        found: NDArray[np.bool_] = (self.tensors["stop"] - self.tensors["start"] <= 1) & ~self.tensors["persistent"]
        return found

    def live_bytes_by_role(self) -> NDArray[np.int64]:
        """(len(ROLES), L) bytes alive in each layer, by role, managed or not."""
        out = np.zeros((len(ROLES), self.n_layers + 1), np.int64)
        rows = self.tensors
        length, stop = self.n_layers, rows["stop"].astype(np.int64)
        np.add.at(out, (rows["role"], rows["start"]), rows["nbytes"])
        np.add.at(out, (rows["role"], np.minimum(stop, length)), -rows["nbytes"])
        wraps = stop > length
        np.add.at(out, (rows["role"][wraps], np.zeros(int(wraps.sum()), np.int64)), rows["nbytes"][wraps])
        np.add.at(out, (rows["role"][wraps], stop[wraps] - length), -rows["nbytes"][wraps])
        return out.cumsum(axis=1)[:, :-1]


def _problems(p: Profile, n_layers: int, n: int) -> str:
    t, a = p.tensors, p.accesses
    if n_layers == 0:
        return "no layers"
    if len(p.layer_ns) != n_layers or len(p.flops) != n_layers:
        return "layers, layer_ns and flops have different lengths"
    if t.dtype != TENSOR_DTYPE or a.dtype != ACCESS_DTYPE or len(t) != n:
        return "a table has another dtype or length than declared"
    if n and (len(set(p.names)) != n):
        return "two tensors share a name"
    if n and not (
        (t["nbytes"] > 0).all()
        and (t["start"] >= 0).all()
        and (t["start"] < n_layers).all()
        and (t["stop"] > t["start"]).all()
        and (t["stop"] - t["start"] <= n_layers).all()
        and (t["role"] < len(ROLES)).all()
    ):
        return "a tensor has no bytes, no role or a lifetime outside the step"
    if n and not (
        (t["born_event"] >= 0).all()
        and (t["died_event"] > t["born_event"]).all()
        and (t["died_event"] - t["born_event"] <= max(p.n_events, 1)).all()
    ):
        return "a tensor's events lie outside the circle"
    if len(a):
        if a["tensor"].min() < 0 or a["tensor"].max() >= n or a["layer"].min() < 0 or a["layer"].max() >= n_layers:
            return "an access names a tensor or layer that is not there"
        key = a["tensor"].astype(np.int64) * n_layers + a["layer"]
        if not (np.diff(key) > 0).all():
            return "accesses are not sorted by (tensor, layer) or a pair occurs twice"
        born, died = t["start"][a["tensor"]], t["stop"][a["tensor"]]
        inside = ((a["layer"] >= born) & (a["layer"] < died)) | (a["layer"] + n_layers < died)
        if not inside.all():
            return "an access lies outside its tensor's lifetime"
    return _range_problems(p.ranges, t, n_layers)


def _range_problems(r: NDArray[Any], t: NDArray[Any], n_layers: int) -> str:
    if r.dtype != RANGE_DTYPE:
        return "the table of ranges has another dtype than declared"
    if not len(r):
        return ""
    if r["tensor"].min() < 0 or r["tensor"].max() >= len(t) or r["layer"].min() < 0 or r["layer"].max() >= n_layers:
        return "a range names a tensor or layer that is not there"
    if not t["persistent"][r["tensor"]].all():
        return "a range is of a tensor that does not live across steps"
    if r["first_page"].min() < 0 or (r["stop_page"] > -(-t["nbytes"][r["tensor"]] // PAGE_BYTES)).any():
        return "a range lies outside its tensor"
    if (r["pages_touched"] < 1).any() or (r["pages_touched"] > r["stop_page"].astype(np.int64) - r["first_page"]).any():
        return "a range has no pages, or more are touched than it has"
    if (r["pages_written"] < -1).any() or (r["pages_written"] > r["pages_touched"]).any():
        return "more pages of a range are written than touched"
    order = np.lexsort((r["first_page"], r["layer"], r["tensor"]))
    if not (np.diff(order) == 1).all():
        return "ranges are not sorted by (tensor, layer, first_page)"
    same = (np.diff(r["tensor"]) == 0) & (np.diff(r["layer"]) == 0)
    if (same & (np.diff(r["first_page"]) == 0)).any():
        return "a range occurs twice in a layer"
    kinds = np.unique(r[["tensor", "first_page", "stop_page"]])
    if ((kinds["tensor"][1:] == kinds["tensor"][:-1]) & (kinds["first_page"][1:] < kinds["stop_page"][:-1])).any():
        return "ranges of one tensor overlap"
    return ""
