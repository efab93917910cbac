"""What a session calls and reads for itself, which nothing of the script's may see or change."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from sentinel.core.errors import CapabilityError
from sentinel.profiler import torch_shim


@contextmanager
def unobserved() -> Iterator[None]:
    """On this thread neither a TorchFunctionMode nor a TorchDispatchMode nor torch's profiler sees what runs within.
    Modes stay entered: an interrupt leaves none of them out."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        if not torch._C._autograd._profiler_enabled():
            yield
            return
        leave = _leave_observers()
        try:
            leave(1)
            yield
        finally:
            leave(0)


def without_function_modes() -> AbstractContextManager[object]:
    """On this thread no TorchFunctionMode sees what is called and read within, as attributes of tensors are. Where none
    is entered nothing changes: what tensor subclasses do, they go on doing."""
    guarded: AbstractContextManager[object] = (
        torch._C.DisableTorchFunction() if torch._C._len_torch_function_stack() else nullcontext()
    )
    return guarded


def _leave_observers() -> Callable[[int], object]:
    try:
        leave: Callable[[int], object] = torch_shim.function("sn_recorder_leave_observers", None, ctypes.c_int)
        return leave
    except CapabilityError:  # without a compiler nothing is recorded, and the profiler lists four operators more
        return lambda _: None
