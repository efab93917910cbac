"""Trace: what happened in one profiled step, in order.

A step is a ring of ticks: layer 0 is the stretch from the last tick round to the first one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from sentinel.core.false_sharing import FalseSharing
from sentinel.core.rules import require

Role = Literal["param", "grad", "optimizer", "activation", "buffer", "input", "workspace"]
ROLES: tuple[Role, ...] = get_args(Role)
Phase = Literal["forward", "backward", "optimizer", ""]

EVENT_DTYPE = np.dtype(
    [
        ("kind", "<u1"),  # an EventKind
        ("layer", "<i4"),
        ("tensor", "<i4"),  # index into Trace.tensors, -1 for TICK and OP
        ("op", "<i4"),  # index into Trace.ops, -1 where no operator is involved
        ("nbytes", "<i8"),  # BORN, FREED: of the tensor; READ, WRITE: bytes the operand spans
        ("offset", "<i8"),  # READ, WRITE: where in the storage the operand starts
        ("time_ns", "<i8"),  # since the step began
    ]
)
PAGE_RUN_DTYPE = np.dtype(
    [
        ("page", "<i8"),  # the first one's address // 4096
        ("npages", "<i8"),
        ("layer", "<i4"),
        ("seen", "<i4"),  # SEEN_*, added up
    ]
)
SEEN_READ, SEEN_WRITE, SEEN_UNKNOWN = 1, 2, 4
"""What was seen of the pages of a run: read; written; touched, and the tracker cannot tell whether written."""

BORN, FREED, READ, WRITE, OP, TICK = range(6)
"""Event kinds. OP precedes the READs and WRITEs of one operator call; its nbytes column holds FLOPs.
TICK *ends* `layer`."""


@dataclass(frozen=True)
class LayerId:
    """Identity of the tick that ends a layer: name, the how-manyth of that name in the step, phase."""

    name: str
    occurrence: int = 0
    phase: Phase = ""

    def __str__(self) -> str:
        label = self.name or "layer"
        if self.phase and self.name != self.phase:
            label = f"{label}:{self.phase}"
        return f"{label}#{self.occurrence}" if self.occurrence or not self.name else label


BACKWARD_OF = "backward of "
"""Before the line of a tensor that backward made."""


@dataclass(frozen=True)
class TensorInfo:
    """One storage with its aliases.

    `key`: (layer, ordinal) of its allocation in the step; None if it existed before the step, then
    it is told by `name`. `address`: of its first byte while recorded. `managed`: the runtime owns
    its memory; if not, `reason` says why. `source`: the program's line that made it, such as `train.py:31`, and
    after ` > ` the line of a library that this one called; of what backward made, such as gradients, `backward of` the
    line whose operator it is the gradient of; "" if unknown.
    """

    name: str
    role: Role
    nbytes: int
    address: int = 0
    key: tuple[int, int] | None = None
    aliases: tuple[str, ...] = ()
    managed: bool = True
    reason: str = ""
    source: str = field(default="", metadata={"sparse": True})


ESTIMATED = "estimate"
"""Tracker of what was never run: its profile was made from shapes."""
LEAST_GRANULES = 4
"""In a tensor that is watched by granules instead of pages."""


@dataclass(frozen=True)
class Quality:
    """What the numbers of a recording mean and miss.

    `counts`: the unit (`touched layers`, `faults`, `operator accesses`). `sees`: of `reads`, `writes`.
    `period`: one of so many events was counted. `lost`, `late`: events. `overhead_ns`: tracker's own time in the step;
    `layer_overhead_ns`: of it, in each layer, empty where that is not known.
    `granularity_bytes`: what counts as touched together; `large_granularity_bytes`: the same in tensors of at least
    LEAST_GRANULES times as much, 0 where these are watched like all others.
    """

    tracker: str
    counts: str
    sees: tuple[str, ...] = ("reads", "writes")
    period: int = 1
    lost: int = 0
    late: int = 0
    overhead_ns: int = 0
    layer_overhead_ns: tuple[int, ...] = ()
    granularity_bytes: int = 1
    large_granularity_bytes: int = field(default=0, metadata={"sparse": True})
    blind_to: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Trace:
    """The events of one step, in order, and the tables that their indexes point into.

    `layers[i]` is the tick that ends layer i; `layer_ns[i]` the wall time of layer i in the recorded step.
    `events` has dtype EVENT_DTYPE. Page touches, where a page tracker ran: `pages`, runs of dtype PAGE_RUN_DTYPE in any
    order; where two of a layer overlap, what either saw was seen.
    `sharing`: what tensors would have shared under stock allocation, None where it is not known.
    """

    layers: tuple[LayerId, ...]
    layer_ns: NDArray[np.int64]
    tensors: tuple[TensorInfo, ...]
    ops: tuple[str, ...]
    events: NDArray[Any]
    quality: Quality
    pages: NDArray[Any] = field(default_factory=lambda: np.zeros(0, PAGE_RUN_DTYPE))
    sharing: FalseSharing | None = None
    origin: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n_layers, ev = len(self.layers), self.events
        require(
            (
                len(self.layer_ns) != n_layers,
                "a trace has other numbers of layers and of layer times",
                "give one time a layer",
            ),
            (ev.dtype != EVENT_DTYPE, "a trace's events have another dtype", "use EVENT_DTYPE"),
        )
        require(
            (
                ((ev["layer"] < 0) | (ev["layer"] >= n_layers)).any(),
                "a trace's event names a layer that is not there",
                f"layers are 0..{n_layers - 1}",
            ),
            (
                ((ev["tensor"] >= len(self.tensors)) | (ev["op"] >= len(self.ops))).any(),
                "a trace's event names a tensor or operator that is not there",
                "check the tables",
            ),
            ((ev["kind"] > TICK).any(), "a trace's event has an unknown kind", f"kinds are 0..{TICK}"),
        )
