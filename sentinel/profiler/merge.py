"""Allocations and operators, each logged by itself, merged into the tensors and events of one step. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.trace import BACKWARD_OF, BORN, FREED, OP, TICK, WRITE, LayerId, Role, TensorInfo
from sentinel.profiler.operators import MADE, OPERATOR, OperatorLog
from sentinel.profiler.tensor_builder import SMALL_REASON, Row, TensorBuilder, finalize

ALLOC, FREE = 1, 2  # kinds of the allocation log
_SMALL, _FALLBACK, _FOREIGN = 1, 2, 4  # and its flags

OUTSIDE_REASON = "its memory is not from torch's allocator, or older than the session"


@dataclass(frozen=True)
class Known:
    """A storage that models and optimizers hold."""

    name: str
    role: Role
    address: int
    nbytes: int
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class GradientSeen:
    """At `seq`, what lives at `address` was the gradient `name`."""

    seq: int
    name: str
    address: int


@dataclass(frozen=True)
class Step:
    """What was noted while a step ran: tick i, at `tick_seqs[i]` and `tick_ns[i]`, ends the layer
    `first_layer + i`, modulo the ring. `before` and `after`: what models and optimizers held at either end."""

    first_seq: int
    last_seq: int
    began_ns: int
    tick_seqs: NDArray[np.uint64]
    tick_ns: NDArray[np.int64]
    first_layer: int
    ring: tuple[LayerId, ...]
    before: tuple[Known, ...]
    after: tuple[Known, ...]
    gradients_seen: tuple[GradientSeen, ...] = ()


def merge(
    step: Step, allocations: NDArray[Any], log: OperatorLog, contains: Callable[[int], int]
) -> tuple[tuple[TensorInfo, ...], NDArray[Any]]:
    """Tensors and events of `step`, as a Trace has them.

    `allocations`: rows of the allocation log by seq (seq, address, nbytes, time_ns, ordinal, flags, kind).
    `contains(address)`: whether the runtime owns that memory.
    """
    allocations = of_step(step, allocations)
    inside = _within(log.events["seq"], step)
    operands, flops = log.events[inside], log.flops[inside]
    walk = _Walk(log.ops, contains, lines=("", *log.lines))
    for known in step.before:
        walk.add_known(known)
    walk.along(step, Allocations(step, allocations), _Operands(step, operands, flops))
    for known in step.after:
        walk.name_after(known)
    return finalize(walk.builders, walk.rows, step.ring)


def of_step(step: Step, allocations: NDArray[Any]) -> NDArray[Any]:
    """The rows of the allocation log that make or free something within the step."""
    kinds = allocations["kind"]
    rows: NDArray[Any] = allocations[_within(allocations["seq"], step) & ((kinds == ALLOC) | (kinds == FREE))]
    return rows


def _within(seq: NDArray[Any], step: Step) -> NDArray[np.bool_]:
    inside: NDArray[np.bool_] = (seq > step.first_seq) & (seq < step.last_seq)
    return inside


def _lists(rows: NDArray[Any], *columns: str) -> list[list[int]]:
    """Columns as lists, which a loop reads faster."""
    return [rows[name].tolist() for name in columns]


class Allocations:
    """Columns of the allocation log, as lists, with ordinals counted from the ring's own start of each layer."""

    def __init__(self, step: Step, rows: NDArray[Any]) -> None:
        self.seq = rows["seq"]
        self.kind, self.address, self.nbytes, self.flags = _lists(rows, "kind", "address", "nbytes", "flags")
        self.time_ns = (rows["time_ns"].astype(np.int64) - step.began_ns).tolist()
        # The stretch before the first tick goes on where the one after the last tick stops: they are one layer.
        stretch = np.searchsorted(step.tick_seqs, rows["seq"])
        ordinal = rows["ordinal"].astype(np.int64)
        ours = (rows["kind"] == ALLOC) & (ordinal >= 0)
        tail = ordinal[ours & (stretch == len(step.ring))]
        ordinal[ours & (stretch == 0)] += tail.max() + 1 if len(tail) else 0
        self.ordinal = ordinal.tolist()


class _Operands:
    """Columns of the operators' log, as lists; each operator before its operands."""

    def __init__(self, step: Step, rows: NDArray[Any], flops: NDArray[np.int64]) -> None:
        calls = rows[rows["kind"] == OPERATOR]
        order = np.lexsort((rows["kind"] != OPERATOR, rows["seq"]))
        rows, flops = rows[order], flops[order]
        self.seq = rows["seq"]
        self.kind, self.op, self.backward, self.line = _lists(rows, "kind", "op", "backward", "line")
        self.address, self.nbytes, self.offset, self.span = _lists(rows, "address", "nbytes", "offset", "span")
        self.flops = flops.tolist()
        when = np.append(calls["offset"], 0).astype(np.int64) - step.began_ns
        self.time_ns = when[np.searchsorted(calls["seq"], rows["seq"])].tolist()  # MADE has none, and needs none


@dataclass
class _Walk:
    """The state of a walk along the logs: `live` maps the addresses of storages to builders; `lines`: by number."""

    ops: tuple[str, ...]
    contains: Callable[[int], int]
    builders: list[TensorBuilder] = field(default_factory=list)
    live: dict[int, int] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    lines: tuple[str, ...] = ("",)

    def along(self, step: Step, allocations: Allocations, operands: _Operands) -> None:
        seqs = [
            allocations.seq,
            operands.seq,
            np.array([s.seq for s in step.gradients_seen], np.uint64),
            step.tick_seqs,
        ]
        source = np.repeat(np.arange(4), [len(s) for s in seqs])
        position = np.concatenate([np.arange(len(s)) for s in seqs])
        every = np.concatenate(seqs)
        order = np.argsort(every, kind="stable")
        stretches = np.searchsorted(step.tick_seqs, every[order])
        layers = (step.first_layer + stretches) % len(step.ring)
        steps = zip(source[order].tolist(), position[order].tolist(), stretches.tolist(), layers.tolist(), strict=True)
        for origin, at, stretch, layer in steps:
            if origin == 0 and allocations.kind[at] == ALLOC:
                self.allocate(allocations, at, layer, stretch)
            elif origin == 0:
                self.free(allocations, at, layer, stretch)
            elif origin == 1:
                self.operate(operands, at, layer)
            elif origin == 2:
                self.name_gradient(step.gradients_seen[at])
            else:
                self.rows.append((TICK, layer, -1, -1, 0, 0, int(step.tick_ns[at]) - step.began_ns))

    def add_known(self, known: Known) -> None:
        """`known` lived when the step began."""
        if known.address and known.address not in self.live:
            managed = bool(self.contains(known.address))
            reason = "" if managed else SMALL_REASON if known.nbytes < 1024 else OUTSIDE_REASON
            self.live[known.address] = len(self.builders)
            self.builders.append(
                TensorBuilder(
                    known.address, known.nbytes, -1, None, known.name, known.role, known.aliases, managed, reason
                )
            )

    def name_after(self, known: Known) -> None:
        """`known` lives as the step ends."""
        index = self.live.get(known.address)
        if index is None:
            self.add_known(known)
        elif not self.builders[index].name:
            builder = self.builders[index]
            builder.name, builder.role, builder.aliases = known.name, known.role, known.aliases

    def allocate(self, log: Allocations, at: int, layer: int, stretch: int) -> None:
        flags, address, nbytes, ordinal = log.flags[at], log.address[at], log.nbytes[at], log.ordinal[at]
        builder = TensorBuilder(address, nbytes, layer, (layer, ordinal) if ordinal >= 0 else None)
        if flags & _FOREIGN:
            builder.managed, builder.reason = False, "allocated by another thread"
        elif flags & _SMALL:
            builder.managed, builder.reason, builder.small = False, SMALL_REASON, stretch
        elif flags & _FALLBACK:
            builder.managed, builder.reason = False, "allocated by malloc"
        self.rows.append((BORN, layer, len(self.builders), -1, nbytes, 0, log.time_ns[at]))
        self.live[address] = len(self.builders)
        self.builders.append(builder)

    def free(self, log: Allocations, at: int, layer: int, stretch: int) -> None:
        index = self.live.pop(log.address[at], None)
        if index is not None:  # else it is older than the step, nothing touched it, and its size is not known
            builder = self.builders[index]
            builder.small = builder.small if builder.small == stretch else None
            self.rows.append((FREED, layer, index, -1, builder.nbytes, 0, log.time_ns[at]))

    def operate(self, log: _Operands, at: int, layer: int) -> None:
        """An operator, or one of its operands."""
        kind, op = log.kind[at], log.op[at]
        if kind == OPERATOR:
            self.rows.append((OP, layer, -1, op, log.flops[at], 0, log.time_ns[at]))
            return
        index = self.live.get(log.address[at])
        if index is None:
            index = self.add_unknown(log.address[at], log.nbytes[at])
        builder, backward = self.builders[index], bool(log.backward[at])
        if kind in (MADE, WRITE) and not (builder.source or builder.written) and builder.layer >= 0:
            line = self.lines[log.line[at]]
            builder.source = BACKWARD_OF + line if line and backward else line
        if kind == MADE:
            builder.maker = self.ops[op]
            return
        if kind == WRITE:
            builder.written = True
            if not builder.maker:
                builder.maker, builder.made_backward = self.ops[op], backward
        else:
            builder.read = True
            builder.read_backward |= backward
        self.rows.append((kind, layer, index, op, log.span[at], log.offset[at], log.time_ns[at]))

    def name_gradient(self, seen: GradientSeen) -> None:
        index = self.live.get(seen.address)
        if index is not None and not self.builders[index].name:
            self.builders[index].name, self.builders[index].role = seen.name, "grad"

    def add_unknown(self, address: int, nbytes: int) -> int:
        """A storage that nothing has told of yet: it is older than the step."""
        managed = bool(self.contains(address))
        self.live[address] = len(self.builders)
        self.builders.append(
            TensorBuilder(address, nbytes, -1, managed=managed, reason="" if managed else OUTSIDE_REASON)
        )
        return len(self.builders) - 1
