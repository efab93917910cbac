"""Who refers to a storage: all that the garbage collector, torch and the frames can show.

A storage whose references are all explained has no alias that would dangle if its memory moved. Reducers of
DistributedDataParallel hold parameters in C++, and are asked how often (profiler/reducers.py). A numpy array, a DLPack
capsule or a graph that is still alive refers to tensors in ways that none of these shows: it leaves a reference
unexplained. An address kept as a plain integer is no reference: nobody can find that.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sentinel.migration import frame_locals
from sentinel.profiler import reducers, torch_shim
from sentinel.system import native

TENSOR_ROW = np.dtype([(name, "<u8") for name in ("tensor", "python", "storage", "uses", "accounted")])
STORAGE_ROW = np.dtype(
    [(name, "<u8") for name in ("storage", "python", "address", "nbytes", "uses", "memory", "resizable")]
)

STOCK, MANAGED, OTHER, NOT_HOST, REGISTERED = range(5)
"""`memory` of a storage: stock torch's, ours, somebody else's, not in host memory, stock torch's that a GPU's driver
has registered and uses where it is."""

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_HANDLES = (torch.Tensor, torch.UntypedStorage)
_NEVER_HOLD = frozenset((FunctionType, ModuleType, type))  # their dicts and cells are objects of their own
_CHUNK = 20_000
_ARGUMENTS_MAY_NOT_COUNT = sys.version_info >= (3, 14)
"""From 3.14 on a function may have an argument by its caller's reference, and nobody can tell. Counted as one of its
own, it would explain a reference that something unknown holds (decision 228)."""
_GENERATOR = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Known(ctypes.Structure):
    """What a survey of tensors begins with: TensorImpls, and those that a known holder in C++ refers to, once for each
    reference. As in the shim's storages.cpp."""

    _fields_ = [
        ("impls", ctypes.c_void_p),
        ("impl_count", ctypes.c_uint64),
        ("held", ctypes.c_void_p),
        ("held_count", ctypes.c_uint64),
    ]

    def __init__(self, impls: NDArray[np.uint64], held: NDArray[np.uint64]) -> None:
        self._impls, self._held = impls, held  # which live as long
        super().__init__(impls.ctypes.data, len(impls), held.ctypes.data, len(held))


@dataclass(frozen=True)
class Holders:
    """One storage (0: the tensor has none) and what objects to moving its memory ("": nothing does)."""

    storage: int
    address: int
    nbytes: int
    uses: int
    memory: int
    objection: str


@dataclass(frozen=True)
class Examined:
    """What holds the storage of each tensor asked for, and what was found on the way."""

    rows: list[Holders]
    known: list[torch.Tensor]
    """All tensors that Python knew, kept alive."""
    survey: Known
    """Their TensorImpls, and what reducers of DistributedDataParallel hold."""
    slots: Counter[int]
    """What local variables of this thread's functions refer to, by id: how often."""


def examine(tensors: Sequence[torch.Tensor]) -> Examined:
    """The holders of each tensor's storage, one per tensor. One pass over all objects of the process.

    Other threads may run meanwhile: what it says is true only where they don't. A local variable of another thread's
    functions explains nothing: a call under way may be using what it refers to.
    """
    in_frames = _frame_slots()
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, _HANDLES)}
    handles = [o for o in objects if type(o) in kinds]
    known = [o for o in handles if isinstance(o, torch.Tensor)]
    with torch._C.DisableTorchFunctionSubclass():
        impls = np.array([o._cdata for o in known], dtype=np.uint64)
        survey = Known(impls, reducers.references(reducers.among(objects)))
        rows = _tensor_rows(survey)
        asked = [t._cdata for t in tensors]
    storage_of = {int(row["tensor"]): int(row["storage"]) for row in rows}
    wanted = [storage_of.get(impl, 0) for impl in asked]
    storages = _storage_rows(np.unique(rows["storage"][rows["storage"] != 0]))

    involved = np.array(sorted(set(wanted) - {0}), dtype=np.uint64)
    holders = rows[np.isin(rows["storage"], involved)]
    python = {*holders["python"].tolist(), *storages["python"][np.isin(storages["storage"], involved)].tolist()}
    suspects = [o for o in handles if id(o) in python]
    del handles
    explained = _referents(objects, python)
    del objects
    explained.update(in_frames)
    explained.update(filter(python.__contains__, map(id, known)))  # a list made after `objects`
    judge = _Judge(holders, storages, _unexplained(suspects, explained), {id(o): type(o) for o in suspects})
    found = {storage: judge.holders(storage) for storage in set(wanted)}
    return Examined([found[storage] for storage in wanted], known, survey, in_frames)


class _Judge:
    """Puts what was counted together, storage by storage."""

    def __init__(
        self,
        holders: NDArray[np.void],
        storages: NDArray[np.void],
        unexplained: dict[int, int],
        types: dict[int, type],
    ) -> None:
        self.unexplained, self.types = unexplained, types
        self.tensors: defaultdict[int, list[Any]] = defaultdict(list)
        for row in holders:
            self.tensors[int(row["storage"])].append(row)
        self.storages = {int(row["storage"]): row for row in storages}
        self.overlapping = _overlapping(storages)

    def holders(self, storage: int) -> Holders:
        row = self.storages.get(storage)
        if row is None:
            return Holders(0, 0, 0, 0, NOT_HOST, "it has no storage")
        address, nbytes, uses, memory = (int(row[name]) for name in ("address", "nbytes", "uses", "memory"))
        return Holders(storage, address, nbytes, uses, memory, self._objection(row))

    def _objection(self, row: Any) -> str:
        if row["memory"] == NOT_HOST:
            return "it is not in host memory"
        if row["memory"] == OTHER:
            return "its memory is not torch's own (a numpy array, a file, shared memory or another library gave it)"
        if row["memory"] == REGISTERED:
            return "a device's driver has registered its memory (cudaHostRegister), and uses it where it is"
        tensors = self.tensors[int(row["storage"])]
        strange = {self.types[int(t["python"])] for t in tensors if int(t["python"]) in self.types} - set(_PLAIN)
        if strange:
            return f"a tensor subclass uses it ({', '.join(sorted(kind.__name__ for kind in strange))})"
        if int(row["storage"]) in self.overlapping:
            return "another storage shares its memory"
        if int(row["uses"]) != len(tensors) + (row["python"] != 0):
            return "something outside of Python holds its storage (a graph that is still alive, DLPack, ...)"
        if any(int(t["uses"]) != int(t["accounted"]) + (t["python"] != 0) for t in tensors):
            return "something outside of Python holds a tensor of it (a graph that is still alive, DLPack, ...)"
        if not all(self._accounted(int(holder["python"]), int(holder["uses"])) for holder in (row, *tensors)):
            if row["resizable"] == 0:
                return "a numpy array shares its memory"
            return (
                "a reference to a tensor of it can't be explained (an array, a C extension, another thread's call, or "
                "a function that asks for locals())"
            )
        return ""

    def _accounted(self, python: int, uses: int) -> bool:
        # While anything in C++ but the Python object itself holds a tensor, that holds the object, once.
        return python == 0 or self.unexplained.get(python) == (1 if uses > 1 else 0)


def _tensor_rows(survey: Known) -> NDArray[np.void]:
    """A row for each tensor of `survey`, their gradients and the bases of views."""
    call = torch_shim.function(
        "sn_shim_tensors", ctypes.c_int64, ctypes.POINTER(Known), ctypes.c_void_p, ctypes.c_uint64
    )
    rows = np.empty(2 * (survey.impl_count + survey.held_count) + 64, dtype=TENSOR_ROW)
    while (count := native.check("sn_shim_tensors", call(ctypes.byref(survey), rows.ctypes.data, len(rows)))) > len(
        rows
    ):
        rows = np.empty(count, dtype=TENSOR_ROW)
    return rows[:count]


def _storage_rows(storages: NDArray[np.uint64]) -> NDArray[np.void]:
    call = torch_shim.function("sn_shim_storages", None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p)
    storages = np.ascontiguousarray(storages)
    rows = np.empty(len(storages), dtype=STORAGE_ROW)
    call(storages.ctypes.data, len(storages), rows.ctypes.data)
    return rows


def _overlapping(storages: NDArray[np.void]) -> set[int]:
    """Storages whose bytes are also another storage's."""
    host = storages[(storages["memory"] != NOT_HOST) & (storages["nbytes"] != 0)]
    host = host[np.argsort(host["address"], kind="stable")]
    found: set[int] = set()
    reach, holder = 0, 0
    for storage, address, nbytes in zip(*(host[n].tolist() for n in ("storage", "address", "nbytes")), strict=True):
        if address < reach:
            found |= {storage, holder}
        if address + nbytes > reach:
            reach, holder = address + nbytes, storage
    return found


def _referents(objects: list[Any], ids: set[int]) -> Counter[int]:
    """How often all objects together refer to those with these ids."""
    found: Counter[int] = Counter()
    holding = [o for o in objects if type(o) not in _NEVER_HOLD]
    for start in range(0, len(holding), _CHUNK):
        found.update(filter(ids.__contains__, map(id, gc.get_referents(*holding[start : start + _CHUNK]))))
    return found


def _unexplained(suspects: list[Any], explained: Counter[int]) -> dict[int, int]:
    """By id, the references that nothing explains. Those that the counting adds are measured on a known object."""
    counted = _counts(suspects)
    own = _counts([object()])[0]
    return {id(o): counted[i] - own - explained[id(o)] for i, o in enumerate(suspects)}


def _counts(objects: list[Any]) -> list[int]:
    return [sys.getrefcount(objects[i]) for i in range(len(objects))]


def _frame_slots() -> Counter[int]:
    """References from local variables of this thread's running functions, which the collector does not show."""
    found: Counter[int] = Counter()
    # From the caller on: a frame that names itself lives, with all its callers and their locals, until the next
    # collection. From 3.13 on that is so of generators too.
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found.update(_slots(frame))
        frame = frame.f_back
    return found


def _slots(frame: FrameType) -> list[int]:
    code = frame.f_code
    # Module and class bodies keep their names in dicts, generators are looked into: the collector shows both.
    if not code.co_flags & inspect.CO_OPTIMIZED or code.co_flags & _GENERATOR:
        return []
    held = frame_locals.of(frame)
    if held is None:  # what they refer to stays where it is
        return []
    cells = {*code.co_cellvars, *code.co_freevars}
    counted = code.co_varnames[_arguments(code) if _ARGUMENTS_MAY_NOT_COUNT else 0 :]
    return [id(held[name]) for name in counted if name in held and name not in cells]


def _arguments(code: CodeType) -> int:
    """How many of its variables are arguments; they come first."""
    collected = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_argcount + code.co_kwonlyargcount + collected
