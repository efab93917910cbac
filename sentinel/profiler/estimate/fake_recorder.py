"""FakeRecorder: what the operators of a step on fake tensors would allocate, read and write, as native logs have it.

Fake tensors have shapes, strides, devices and no memory. A storage of theirs gets an address that nothing else had;
that is all that the logs need. An operator is seen as a whole, but for what `kernel_memory` and `composed_kernels` know
of its kernel: what these allocate, read and write is noted as if the kernel did.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch._subclasses import fake_tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from sentinel.core.errors import CapabilityError, UsageError
from sentinel.core.units import PAGE_BYTES
from sentinel.profiler import flops
from sentinel.profiler.backward import graph_task
from sentinel.profiler.estimate.composed_kernels import KERNELS
from sentinel.profiler.estimate.kernel_memory import RULES
from sentinel.profiler.estimate.known_values import KnownValues
from sentinel.profiler.estimate.schema_accesses import Operator, describe
from sentinel.profiler.merge import ALLOC, FREE
from sentinel.profiler.operators import OPERATOR, OPERATOR_DTYPE, READ, WRITE, OperatorLog

ALLOCATION_DTYPE = np.dtype(
    [
        ("seq", "<u8"),
        ("address", "<u8"),
        ("nbytes", "<u8"),
        ("time_ns", "<u8"),
        ("ordinal", "<i4"),
        ("flags", "<u4"),
        ("kind", "u1"),
    ]
)
"""As the native allocation log has it, as far as `merge` reads it."""

SMALL_BYTES = 1024
"""Smaller storages are not managed: the native allocator leaves them to malloc."""
_SMALL_FLAG = 1
_DEVICES = ("cpu", "meta")
ON_CPU = "make all of it on the CPU (device='cpu'): Sentinel places tensors there, and an estimate is of a step there"

_CANNOT = (
    fake_tensor.UnsupportedOperatorException,
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
    fake_tensor.UnsupportedFakeTensorException,
    NotImplementedError,
)


class Operand:
    """Bytes of one storage that an operator names. `position` -1: a result."""

    __slots__ = ("address", "itemsize", "nbytes", "numel", "offset", "position", "reads", "span", "writes")

    def __init__(self, tensor: torch.Tensor, address: int, nbytes: int) -> None:
        self.address, self.nbytes, self.itemsize, self.numel = address, nbytes, tensor.itemsize, tensor.numel()
        extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        self.offset = int(tensor.storage_offset()) * self.itemsize
        self.span = min(extent, self.numel) * self.itemsize
        self.position, self.reads, self.writes = -1, False, True


class FakeRecorder(TorchDispatchMode):
    """Notes allocations and operators while `recording`; `begin_layer` numbers allocations again. Entered inside of a
    FakeTensorMode. Where a value is asked for (`.item()`) that is not known, the answer is 1.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = False
        self.known = KnownValues()
        self._seq = 0
        self._top = PAGE_BYTES  # the next address
        self._ordinal = 0
        self._large: set[int] = set()  # addresses of what is managed, also of what is gone: none is given twice
        self._known: dict[int, tuple[int, int, weakref.ref[Any]]] = {}  # storage -> address, bytes, how it is watched
        self._allocations: list[tuple[int, ...]] = []
        self._events: list[tuple[int, ...]] = []
        self._flops: list[int] = []
        self._ops: dict[str, int] = {}
        self._within: list[set[tuple[int, int]]] = []  # per running kernel: (address, kind) of what it called

    # ---- for who runs the step ------------------------------------------------------------------------------

    def next_seq(self) -> int:
        """The place of what happens now among all that happens."""
        self._seq += 1
        return self._seq

    def begin_layer(self) -> None:
        """Allocations are numbered from 0 again."""
        self._ordinal = 0

    def address(self, tensor: torch.Tensor) -> int:
        """Of the tensor's storage; 0 if it has none, or one without bytes."""
        return self._place(tensor)[0]

    def manages(self, address: int) -> int:
        """Whether the native allocator would have given that address: 1 or 0."""
        return int(address in self._large)

    def logs(self) -> tuple[NDArray[Any], OperatorLog]:
        """Allocations and operators, as `merge` takes them."""
        events = np.array([(*row, 0) for row in self._events], OPERATOR_DTYPE)
        log = OperatorLog(events, tuple(self._ops), np.array(self._flops, np.int64), 0)
        return np.array(self._allocations, ALLOCATION_DTYPE), log

    # ---- for torch ------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See TorchDispatchMode."""
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:
            value = self.known.value(args[0])
            return _one_of(args[0].dtype) if value is None else _item(value)
        covered: set[tuple[int, int]] = set()
        try:
            composed = KERNELS.get(func)
            result = self._inside(covered, composed, self.known, *args, **kwargs) if composed else NotImplemented
            if result is NotImplemented:
                result = func(*args, **kwargs)
                self.known.follow(func, args, kwargs, result)
        except _CANNOT as error:
            raise CapabilityError(
                f"estimating operator {func}",
                f"it has no result without values ({str(error).splitlines()[0] or type(error).__name__})",
                "leave it out of the step, or record one on a machine that can run it: sentinel run --dry-run",
            ) from error
        if not torch.compiler.is_compiling():
            values = [
                args[i] if i < len(args) else kwargs.get(argument.name, argument.default_value)
                for i, argument in enumerate(func._schema.arguments)
            ]
            if func in RULES and self.recording and values[0].device.type in _DEVICES:
                self._inside(covered, RULES[func], functools.partial(self._place, born=True), result, *values)
            self._note(func, values, result, covered)
        return result

    def _inside(self, covered: set[tuple[int, int]], kernel: Any, *args: Any, **kwargs: Any) -> Any:
        """What `kernel` gives, its own operators noted; `covered` gets what these read and write."""
        self._within.append(covered)
        try:
            with self:
                return kernel(*args, **kwargs)
        finally:
            self._within.pop()

    def _note(self, func: Any, values: Sequence[Any], result: Any, covered: set[tuple[int, int]]) -> None:
        about = describe(func)
        operands, rows = self._inputs(about, values) if about.touches else ([], 0)
        given = {operand.address for operand in operands}
        given_bytes = computed = 0
        passed_on = False
        for tensor in _tensors(result):
            address, nbytes = self._place(tensor, born=True)
            if not address or not about.touches or not tensor.numel():
                continue
            operand = Operand(tensor, address, nbytes)
            given_bytes += operand.span
            computed += operand.numel
            if address in given:
                passed_on = True
            else:
                operands.append(operand)
        if not self.recording:
            return
        words = about.name in flops.names()
        if about.touches and (not passed_on or any(operand.writes for operand in operands)):
            _narrow(about, operands, given_bytes, rows)
        elif not words:
            return
        counted = flops.of_call(about.name, values, result) if words else computed
        self._operator(about.name, operands, counted if words or not covered else 0, covered)

    def _inputs(self, about: Operator, values: Sequence[Any]) -> tuple[list[Operand], int]:
        """The operands among the arguments, and how many elements the second has."""
        found, rows = [], 0
        for position, value in enumerate(values):
            for tensor in _tensors(value):
                if position == 1:
                    rows = tensor.numel()
                address, nbytes = self._place(tensor)
                if address and tensor.numel():
                    operand = Operand(tensor, address, nbytes)
                    operand.position = position
                    operand.reads, operand.writes = about.reads[position], about.writes[position]
                    if about.table == "rows" and position == 0 and tensor.dim():
                        operand.numel = tensor.numel() // tensor.shape[0]  # of a row
                    found.append(operand)
        return found, rows

    def _operator(self, name: str, operands: Sequence[Operand], counted: int, covered: set[tuple[int, int]]) -> None:
        """As shim/recorder.cpp: what operators within have touched is theirs."""
        seq, op = self.next_seq(), self._ops.setdefault(name, len(self._ops))
        backward = int(graph_task() != -1)
        for o in operands:
            for kind, does in ((READ, o.reads), (WRITE, o.writes)):
                if does and (o.address, kind) not in covered:
                    self._events.append((seq, o.address, o.nbytes, o.offset, o.span, op, kind, backward))
                    self._flops.append(0)
        self._events.append((seq, 0, 0, seq, max(counted, 0), op, OPERATOR, backward))
        self._flops.append(counted)
        if self._within:
            touched = {(o.address, READ) for o in operands if o.reads} | {
                (o.address, WRITE) for o in operands if o.writes
            }
            self._within[-1].update(touched, covered)

    def _place(self, tensor: torch.Tensor, *, born: bool = False) -> tuple[int, int]:
        """Address and bytes of the tensor's storage, (0, 0) without one. `born`: a new one was made just now."""
        if tensor.device.type not in _DEVICES:
            raise UsageError(f"the job makes a tensor on {tensor.device}", ON_CPU)
        if tensor.layout != torch.strided:
            return 0, 0
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._known.get(key)
        if known is not None:
            return known[0], known[1]
        nbytes = int(storage.nbytes())
        if not nbytes:
            return 0, 0
        address, self._top = self._top, self._top + -(-nbytes // PAGE_BYTES) * PAGE_BYTES
        if nbytes >= SMALL_BYTES:
            self._large.add(address)
        recorder = weakref.ref(self)

        def gone(_: object) -> None:
            if (alive := recorder()) is not None:
                alive._freed(key)

        self._known[key] = address, nbytes, weakref.ref(storage, gone)
        if born and self.recording:
            small = nbytes < SMALL_BYTES
            row = self.next_seq(), address, nbytes, self._seq, -1 if small else self._ordinal
            self._allocations.append((*row, _SMALL_FLAG if small else 0, ALLOC))
            self._ordinal += not small
        return address, nbytes

    def _freed(self, key: int) -> None:
        address, nbytes, _ = self._known.pop(key)
        self.known.forget(key)
        if self.recording:
            self._allocations.append((self.next_seq(), address, nbytes, self._seq, -1, 0, FREE))


def _narrow(about: Operator, operands: Sequence[Operand], given_bytes: int, rows: int) -> None:
    """A table is touched as far as it is looked up."""
    if about.table == "none":
        return
    most = max((o.numel for o in operands if o.position != 0), default=0)
    for operand in operands:
        if operand.position == 0:
            touched = {"gather": given_bytes, "rows": rows * operand.numel * operand.itemsize}
            operand.span = min(operand.span, touched.get(about.table, most * operand.itemsize))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            if isinstance(part, torch.Tensor):
                yield part


def _item(value: torch.Tensor) -> bool | int | float:
    with _disable_current_modes():
        return value.item()


def _one_of(dtype: torch.dtype) -> bool | int | float:
    if dtype == torch.bool:
        return False
    return 1.0 if dtype.is_floating_point else 1
