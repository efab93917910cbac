"""Which other Python threads can reach certain tensors, by what their running functions refer to.

It decides whether memory may be replaced under its addresses where threads can't be held back meanwhile (userfaultfd
is refused). What it can't see, and what then writes while the GIL is kept, may lose a write:

- threads that Python did not start;
- a tensor that no name refers to: a value within an expression, or one that an extension keeps without telling the
  garbage collector, and a plain address;
- what a thread will find by name only later: by `getattr` or `sys.modules`, or by a global name that is used in
  methods of its objects, but in no function that runs.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from sentinel.core.interrupts import is_interrupt
from sentinel.migration import frame_locals

MOST_OBJECTS = 300_000
"""Looked at for one thread: beyond, it counts as one that holds what is looked for."""

_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), type, ModuleType, FrameType, CodeType)


def holders(managed: Callable[[int], bool], *, most: int = MOST_OBJECTS) -> list[str]:
    """Names of the other threads from which a tensor can be reached whose memory `managed(address)` is ours.

    Followed are local variables, the global names that a function's code uses, attributes, containers and weak
    references; of modules and classes only what the code names beside them. A thread counts as one that holds a tensor
    where local variables of its functions can't be read (`frame_locals.of`).
    """
    own = threading.get_ident()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = {ident: frame for ident, frame in sys._current_frames().items() if ident != own}
    found = [names.get(ident, f"thread {ident}") for ident in frames if _reaches(frames[ident], managed, most)]
    return sorted(found)


def _reaches(top: FrameType, managed: Callable[[int], bool], most: int) -> bool:
    waiting: list[Any] = []
    frame: FrameType | None = top
    while frame is not None:
        held = frame_locals.of(frame, of_this_thread=False)
        if held is None:
            return True  # what they are is not known
        waiting += held.values()
        waiting += _named(frame.f_code, frame.f_globals)
        frame = frame.f_back
    seen: dict[int, Any] = {}  # by id, and kept alive: an id must not come again
    while waiting:
        found = waiting.pop()
        if isinstance(found, _PLAIN) or id(found) in seen:
            continue
        if isinstance(found, torch.Tensor) and managed(_address(found)):
            return True
        if len(seen) == most:
            return True
        seen[id(found)] = found
        waiting += _referents(found)
    return False


def _address(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunctionSubclass():
        try:
            return tensor.untyped_storage().data_ptr()
        except (RuntimeError, NotImplementedError) as error:  # it has no memory
            if is_interrupt(error):
                raise
            return 0


def _referents(found: Any) -> list[Any]:
    if isinstance(found, FunctionType):
        cells = [cell.cell_contents for cell in found.__closure__ or () if not _is_empty(cell)]
        # Ours would lead to the session: every thread refers to sys.excepthook, of which one is ours.
        names = () if _is_ours(found) else _named(found.__code__, found.__globals__)
        return [*cells, found.__defaults__, found.__kwdefaults__, *names]
    if isinstance(found, MethodType):
        return [found.__self__, found.__func__]
    if isinstance(found, weakref.ref):
        return [found()]
    return gc.get_referents(found)


def _is_ours(function: FunctionType) -> bool:
    return str(function.__globals__.get("__name__")).partition(".")[0] == "sentinel"


def _is_empty(cell: Any) -> bool:
    try:
        return cell.cell_contents is None
    except ValueError:
        return True


def _named(code: CodeType, namespace: dict[str, Any]) -> Iterator[Any]:
    """What the names in `code`, inner functions included, mean in `namespace`, or in a module or class named there."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _named(constant, namespace)
    yield from frame_locals.meant_by(code.co_names, namespace)
