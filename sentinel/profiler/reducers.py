"""What reducers of DistributedDataParallel hold in C++: parameters, and buckets in which gradients lie side by side.

Whoever moves a storage must know each reference to it, and a reducer's cannot be found from Python. They are counted by
the reducer's own members, in a library that is compiled when there is a reducer (docs/decisions/0135).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.parallel import DistributedDataParallel

from sentinel.core.errors import CapabilityError, NativeError
from sentinel.profiler import torch_shim
from sentinel.system import native
from sentinel.system.progress import say

_WORDS = 2
"""Behind the header of its object pybind11 keeps the address of the reducer, then the pointer that owns it."""


def among(objects: Iterable[object]) -> list[DistributedDataParallel]:
    """Those of `objects` that have a reducer. None, at no cost, where no process group was made."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return []
    objects = list(objects)
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, DistributedDataParallel)}
    found = [each for each in objects if type(each) in kinds] if kinds else []
    return [each for each in found if isinstance(each, DistributedDataParallel) and _reducer(each) is not None]


def references(models: Sequence[DistributedDataParallel]) -> NDArray[np.uint64]:
    """The TensorImpl of each reference that their reducers hold. To be called while no backward runs.

    Where a reducer cannot be read, its references are missing, and stderr says so: what it holds stays in place.
    """
    found = [np.zeros(0, np.uint64)]
    for model in models:
        try:
            found.append(_references(model))
        except (CapabilityError, NativeError) as error:
            say(f"what DistributedDataParallel holds stays in place: {error}", wrong=True)
    return np.concatenate(found)


def buckets(model: DistributedDataParallel) -> list[torch.Tensor]:
    """A tensor of bytes over the storage of each bucket. Nothing is allocated for it. Empty where it cannot be read."""
    try:
        _references(model)  # which finds out whether it can be read
        call = _function("sn_reducer_buckets", ctypes.c_int64)
        storages = _all("sn_reducer_buckets", lambda out, room: call(_address(model), out, room))
    except (CapabilityError, NativeError):
        return []
    made = [torch.UntypedStorage._new_with_weak_ptr(int(storage)) for storage in storages]
    return [torch.Tensor.detach(_NO_BYTES).set_(storage) for storage in made if storage is not None]


def to_be_rebuilt(model: DistributedDataParallel) -> bool:
    """Whether its buckets will be made again, by the order in which the first gradients come."""
    try:
        _references(model)
        return bool(_function("sn_reducer_to_be_rebuilt", ctypes.c_int)(_address(model)))
    except (CapabilityError, NativeError):
        return False


_NO_BYTES = torch.empty(0, dtype=torch.uint8)


def _references(model: DistributedDataParallel) -> NDArray[np.uint64]:
    """Raises NativeError (EINVAL) where what is there is no reducer of the model's parameters."""
    with torch._C.DisableTorchFunctionSubclass():
        impls = np.array([param._cdata for param in model.__dict__["_module_parameters"]], np.uint64)
    call = _function("sn_reducer_references", ctypes.c_int64)
    address = _address(model)
    return _all("sn_reducer_references", lambda out, room: call(address, impls.ctypes.data, len(impls), out, room))


def _reducer(model: DistributedDataParallel) -> Any:
    """None where it has none, or none in C++."""
    found = model.__dict__.get("reducer")
    return found if isinstance(found, getattr(torch.distributed, "Reducer", ())) else None


def _address(model: DistributedDataParallel) -> int:
    """Of its reducer in C++, as the object in Python keeps it twice. Raises CapabilityError where it does not."""
    reducer = _reducer(model)
    at, room = id(reducer) + object.__basicsize__, type(reducer).__basicsize__ - object.__basicsize__
    words: list[int] = list((ctypes.c_uint64 * _WORDS).from_address(at)) if room > _WORDS * 8 else [0]
    if not words[0] or len(set(words)) != 1:
        raise CapabilityError(
            "reading a reducer of DistributedDataParallel",
            f"{type(reducer).__name__} is kept in another way than pybind11 keeps objects",
            "use a torch that docs/versions.md names",
        )
    return words[0]


def _all(name: str, call: Any) -> NDArray[np.uint64]:
    """What `call(out, room)` writes, which returns how many there are."""
    out = np.zeros(256, np.uint64)
    while (count := native.check(name, call(out.ctypes.data, len(out)))) > len(out):
        out = np.zeros(count, np.uint64)
    return out[:count]


@functools.cache
def _library() -> ctypes.PyDLL:
    """Loaded once, as `torch_shim.loaded` says. Its calls keep the GIL."""
    return torch_shim.loaded("sentinel_reducers", torch_shim.REDUCERS)


def _function(name: str, result: Any) -> Any:
    bound = _library()[name]
    pointer, word = ctypes.c_void_p, ctypes.c_uint64
    arguments = {
        "sn_reducer_references": (pointer, pointer, word, pointer, word),
        "sn_reducer_buckets": (pointer, pointer, word),
        "sn_reducer_to_be_rebuilt": (pointer,),
    }
    bound.restype, bound.argtypes = result, arguments[name]
    return bound
