"""Profile: the digest of one step. Columns, not objects, so that 100,000 tensors stay cheap."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import UsageError
from sentinel.core.false_sharing import FalseSharing
from sentinel.core.plan import ring_sum
from sentinel.core.rules import first_broken
from sentinel.core.trace import ESTIMATED, ROLES, LayerId, Quality
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
        ("extent", "<i4"),
        ("layer", "<i4"),
        ("reads", "<i4"),  # operator reads of its tensor in the layer; -1 unknown
        ("writes", "<i4"),
        ("read_bytes", "<i8"),  # traffic: bytes spanned by the operands, each operator counted
        ("written_bytes", "<i8"),
        ("touched_bytes", "<i8"),  # distinct bytes touched in the layer
        ("pages_touched", "<i4"),  # -1: unknown
        ("pages_written", "<i4"),  # -1: unknown
    ]
)
EXTENT_DTYPE = np.dtype(
    [  # a tensor, or a run of whole pages of one
        ("tensor", "<i4"),
        ("offset", "<i8"),  # in bytes, within the tensor
        ("nbytes", "<i8"),
    ]
)


@dataclass(frozen=True, eq=False)
class Profile:
    """What each tensor is and when it is used, and how long each layer takes.

    Shapes: L layers, n tensors, e extents, m accesses. An extent is what is planned apart: a whole tensor, or one page
    range of a large persistent tensor whose pages are not all alike (core/page_ranges.py). `extents` is sorted by
    (tensor, offset); those of one tensor cover it. Where none are given, each tensor is one extent, of its own index.
    `accesses` is sorted by (extent, layer), one row a pair.
    A tensor is alive in layers [start, stop), modulo L; `n_events` is the length of the allocation circle.
    `layer_ns`: plain time of each layer, the tracker's cost taken off. `flops`: -1 where unknown.
    `step_ns_plain`: wall time of a stock step; `step_ns_is_measured` says whether a step ran stock.
    `sources`: the program's line that made each tensor, "" where unknown; empty if none is known.
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
    extents: NDArray[Any] = field(default_factory=lambda: np.zeros(0, EXTENT_DTYPE))
    sharing: FalseSharing | None = None
    origin: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = field(default=(), metadata={"sparse": True})

    def __post_init__(self) -> None:
        n_layers, n = len(self.layers), len(self.names)
        if not len(self.extents) and self.tensors.dtype == TENSOR_DTYPE:
            object.__setattr__(self, "extents", _whole(self.tensors))
        problems = _problems(self, n_layers, n)
        if problems:
            raise UsageError(f"a profile breaks its own rules: {problems}", "record it again")

    @property
    def n_layers(self) -> int:
        """Number of layers, L."""
        return len(self.layers)

    @property
    def is_estimated(self) -> bool:
        """Whether no step was recorded: it was made from shapes, and its times are a model."""
        return self.quality.tracker == ESTIMATED

    @property
    def is_cut(self) -> bool:
        """Whether any tensor has several extents."""
        return len(self.extents) > len(self.tensors)

    @property
    def first_extent(self) -> NDArray[np.int64]:
        """(n + 1,) the extents of tensor i are [first[i], first[i + 1])."""
        return np.searchsorted(self.extents["tensor"], np.arange(len(self.tensors) + 1))

    def short_lived(self) -> NDArray[np.bool_]:
        """(n,) whether each tensor lives at most one layer."""
        found: NDArray[np.bool_] = (self.tensors["stop"] - self.tensors["start"] <= 1) & ~self.tensors["persistent"]
        return found

    def live_bytes_by_role(self) -> NDArray[np.int64]:
        """(len(ROLES), L) bytes alive in each layer, by role, managed or not."""
        rows = self.tensors
        return ring_sum(rows["role"], rows["start"], rows["stop"], rows["nbytes"], len(ROLES), self.n_layers)


def allocation_keys(tensors: NDArray[Any]) -> list[tuple[int, int] | None]:
    """Of each row of TENSOR_DTYPE the layer and ordinal of its allocation; None of a persistent tensor."""
    keys = zip(tensors["key_layer"].tolist(), tensors["key_ordinal"].tolist(), strict=True)
    return [None if lasting else key for lasting, key in zip(tensors["persistent"].tolist(), keys, strict=True)]


def _problems(p: Profile, n_layers: int, n: int) -> str | None:
    t, a = p.tensors, p.accesses
    shapes = [
        (n_layers == 0, "no layers"),
        ({len(p.layer_ns), len(p.flops)} != {n_layers}, "layers, layer_ns and flops have different lengths"),
        (
            t.dtype != TENSOR_DTYPE or a.dtype != ACCESS_DTYPE or len(t) != n,
            "a table has another dtype or length than declared",
        ),
        (len(set(p.names)) != n, "two tensors share a name"),
        (len(p.sources) not in (0, n), "lines are known of another number of tensors than there are"),
        (p.extents.dtype != EXTENT_DTYPE, "the table of extents has another dtype than declared"),
    ]
    return (
        first_broken(*shapes)
        or _tensor_problems(t, n_layers, p.n_events)
        or _extent_problems(p.extents, t)
        or _access_problems(p, n_layers)
    )


def _tensor_problems(t: NDArray[Any], n_layers: int, n_events: int) -> str | None:
    start, stop, born, died = (t[name] for name in ("start", "stop", "born_event", "died_event"))
    outside = (start < 0) | (start >= n_layers) | (stop <= start) | (stop - start > n_layers)
    off = (born < 0) | (died <= born) | (died - born > max(n_events, 1))
    return first_broken(
        (
            outside.any() or (t["nbytes"] <= 0).any() or (t["role"] >= len(ROLES)).any(),
            "a tensor has no bytes, no role or a lifetime outside the step",
        ),
        (off.any(), "a tensor's events lie outside the circle"),
    )


def _whole(tensors: NDArray[Any]) -> NDArray[Any]:
    """An extent for each tensor."""
    out = np.zeros(len(tensors), EXTENT_DTYPE)
    out["tensor"], out["nbytes"] = np.arange(len(tensors)), tensors["nbytes"]
    return out


def _extent_problems(e: NDArray[Any], t: NDArray[Any]) -> str | None:
    tensor, begin, end = e["tensor"].astype(np.int64), e["offset"], e["offset"] + e["nbytes"]
    head = np.append(True, np.diff(tensor) != 0)[: len(e)]
    if not np.array_equal(tensor[head], np.arange(len(t))):
        return "a tensor has no extents, or they are not sorted by tensor"
    tail = np.append(head[1:], True)[: len(e)]
    whole = (begin[head] == 0).all() and (end[tail] == t["nbytes"]).all() and (begin[~head] == end[~tail]).all()
    return first_broken(
        (
            not whole or ((e["nbytes"] <= 0) | (begin < 0) | (begin % PAGE_BYTES != 0)).any(),
            "the extents of a tensor do not cover it by runs of whole pages",
        ),
        (
            not (t["persistent"] & t["managed"])[tensor[~head]].all(),
            "a tensor has several extents and does not live across steps, or is not managed",
        ),
    )


def _access_problems(p: Profile, n_layers: int) -> str | None:
    extent, layer = p.accesses["extent"].astype(np.int64), p.accesses["layer"]
    gone = (extent < 0) | (extent >= len(p.extents)) | (layer < 0) | (layer >= n_layers)
    if gone.any():
        return "an access names an extent or layer that is not there"
    whose = p.tensors[p.extents["tensor"][extent]]
    inside = ((layer >= whose["start"]) & (layer < whose["stop"])) | (layer + n_layers < whose["stop"])
    return first_broken(
        (
            (np.diff(extent * n_layers + layer) <= 0).any(),
            "accesses are not sorted by (extent, layer) or a pair occurs twice",
        ),
        (not inside.all(), "an access lies outside its tensor's lifetime"),
    )
