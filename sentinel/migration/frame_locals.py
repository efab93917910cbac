"""What a running function's local variables are, read so that no dict of the script's changes.

Until Python 3.12 `frame.f_locals` is one dict for each frame, the one that `locals()` gives, and reading it writes all
variables into it. A script that keeps `config = locals()` at the top of a function would find in it what the function
made later.

Python 3.12 has `PyFrame_GetVar`, which reads one variable and touches no dict. From 3.13 on `f_locals` is a view (PEP
667). On 3.11 a frame whose dict the script may have is not read at all. What tells so is the names in its code, and in
the functions that it names; a method found by the type of an object alone is not looked for.

A debugger, and any other function of `sys.settrace`, has the dict too: before it is called, Python 3.11 writes all
variables into it, and afterwards takes each variable from it. What is read or cleared meanwhile, as by another thread,
changes the variables themselves.
"""

from __future__ import annotations

import ctypes
import dis
import functools
import inspect
import sys
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

_IN_THE_DICT = frozenset(("locals", "vars", "eval", "exec"))
"""They give the dict, or run code that may, and that keeps names of its own there. Attributes of these names are other
functions, as `model.eval()` is, but those of the module `builtins`."""
_BUILTINS = frozenset(("builtins", "__builtins__"))
_BY_NAME = frozenset(("LOAD_GLOBAL", "LOAD_NAME"))


def of(frame: FrameType, *, of_this_thread: bool = True) -> dict[str, Any] | None:
    """The variables of `frame` that are bound now, or, of a module or a class, its names. None: they can't be read, for
    the script may have the dict into which reading would write them."""
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:  # its names are in a dict of its own, whoever reads them
        return dict(frame.f_locals)
    if sys.version_info >= (3, 13):
        return dict(frame.f_locals)
    if sys.version_info >= (3, 12):
        return _one_by_one(frame)
    traced = frame.f_trace is not None
    if (traced and not of_this_thread) or _may_have_given_the_dict(frame):
        return None
    held = frame.f_locals
    found = dict(held)
    # The frame keeps this dict, and with it whatever the locals were, as long as it runs. A tracer fills it anyway; and
    # another thread may be in one without `f_trace`, such as those of `sys.setprofile`.
    if of_this_thread and not traced and sys.getrefcount(held) <= _references_to_a_frames_dict():
        held.clear()
    return found


def _one_by_one(frame: FrameType) -> dict[str, Any]:
    code = frame.f_code
    read = _get_var()
    found: dict[str, Any] = {}
    for name in dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars)):
        try:
            found[name] = read(frame, name)
        except NameError:  # it is not bound now
            continue
    return found


@functools.cache
def _get_var() -> Any:
    """Python's own: PyObject *PyFrame_GetVar(PyFrameObject *, PyObject *name), a new reference."""
    prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object)
    return prototype(("PyFrame_GetVar", ctypes.pythonapi))


def _may_have_given_the_dict(frame: FrameType) -> bool:
    """Whether the code of `frame`, a function that it names or one of its callers may have taken `frame.f_locals`."""
    if _takes_its_own(frame.f_code) or any(
        isinstance(each, FunctionType) and _takes_callers(each.__code__)
        for each in meant_by(frame.f_code.co_names, frame.f_globals)
    ):
        return True
    caller = frame.f_back
    while caller is not None:  # as what runs a function under a tracer of its own does
        if _takes_callers(caller.f_code):
            return True
        caller = caller.f_back
    return False


@functools.lru_cache(maxsize=4096)
def _takes_its_own(code: CodeType) -> bool:
    asked = _IN_THE_DICT.intersection(code.co_names)
    if "f_locals" in code.co_names or (asked and _BUILTINS.intersection(code.co_names)):
        return True
    return bool(asked) and any(i.opname in _BY_NAME and i.argval in asked for i in dis.get_instructions(code))


def _takes_callers(code: CodeType) -> bool:
    return "f_locals" in code.co_names


def meant_by(words: Sequence[str], namespace: dict[str, Any]) -> Iterator[Any]:
    """What `words` mean in `namespace`, or in a module or class named there."""
    for word in words:
        meant = namespace.get(word)
        yield meant
        if isinstance(meant, (ModuleType, type)):
            inside = vars(meant)
            yield from (inside[attribute] for attribute in words if attribute in inside)


@functools.cache
def _references_to_a_frames_dict() -> int:
    """References to the locals of a running frame while `of` looks at them, if nobody else holds them."""

    def probe() -> int:
        frame = inspect.currentframe()
        assert frame is not None
        held = frame.f_locals
        references = sys.getrefcount(held)
        # A frame that names itself lives, with all its callers and their locals, until the next collection.
        held.clear()
        del frame, held
        return references

    return probe()
