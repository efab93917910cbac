"""The native recorder of operators: which of them read and wrote which bytes."""

from __future__ import annotations

import ctypes
import errno
from dataclasses import dataclass
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import CapabilityError, UsageError
from sentinel.profiler import calling_lines, flops, torch_shim
from sentinel.runtime import RUNTIME
from sentinel.system import native

READ, WRITE, OPERATOR, MADE = 2, 3, 4, 5
"""Kinds. MADE: an outermost operator gave a storage that operators within it wrote."""

OPERATOR_DTYPE = np.dtype(
    [
        ("seq", "<u8"),
        ("address", "<u8"),  # of the storage; OPERATOR: where its words start
        ("nbytes", "<u8"),  # of the storage; OPERATOR: how many words
        ("offset", "<u8"),  # of the operand; OPERATOR: CLOCK_MONOTONIC in ns
        ("span", "<u8"),  # bytes touched; OPERATOR: elements computed
        ("op", "<i4"),
        ("kind", "<u1"),
        ("backward", "<u1"),  # within autograd's backward
        ("line", "<u2"),  # of the program, from 1; 0: unknown; in backward of the operator whose gradient is computed
    ]
)
"""`sn_operator_event` of shim/recorder.h. The operands of a call come before it, with the same `seq`."""

MOST_EVENTS = (1 << 24) - (1 << 12)
"""A recording breaks off with 16 million events, which take 800 MB; a step of a large model has some 100,000. A little
less than a power of two: beyond that the log would be copied to twice the room."""
_TOO_LONG = "the step that was to be recorded did not end"
_UNKNOWN_TENSOR = "an operator of the step had a tensor of a kind that does not tell its size"

_U64, _INT, _PTR = ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p


@dataclass(frozen=True)
class OperatorLog:
    """`flops`: of each event that is an OPERATOR, else 0; -1 unknown. `lost`: calls by other threads. `lines`: the
    program's, as `calling_lines` writes them."""

    events: NDArray[Any]
    ops: tuple[str, ...]
    flops: NDArray[np.int64]
    lost: int
    lines: tuple[str, ...] = ()


class _Nobody:
    """Itself the owner of a recording that has no other."""


def start(owner: object = None) -> None:
    """Record the operators of this thread from now on, for `owner`, who alone may stop it.

    Raises UsageError if they are recorded already, NativeError.
    """
    if recording():
        raise UsageError("operators are recorded already", "end the other recording first")
    RUNTIME.recorder = ref(_Nobody if owner is None else owner)
    RUNTIME.not_inherited.add(_OF_PARENT)
    names = [name.encode() for name in flops.worded()]
    array = (ctypes.c_char_p * len(names))(*names)
    calling_lines.begin()
    begin = torch_shim.function("sn_recorder_start", _INT, _U64, _PTR, _U64)
    result = begin(len(names), ctypes.cast(array, _PTR), MOST_EVENTS)
    if result == -errno.EBUSY:
        raise UsageError("operators are recorded already", "end the other recording first")
    native.check("sn_recorder_start", result)


def stop(owner: object = None) -> None:
    """Record no more, if it is `owner` who records. Does nothing if nothing is recorded."""
    if is_for(owner):
        _stop()


def is_for(owner: object) -> bool:
    """Whether it is for `owner` that operators are recorded, or were last."""
    return (None if RUNTIME.recorder is None else RUNTIME.recorder()) is (_Nobody if owner is None else owner)


def _stop() -> None:
    torch_shim.function("sn_recorder_stop", _INT)()


def recording() -> bool:
    """Whether operators are recorded now, by whomever."""
    return bool(torch_shim.function("sn_recorder_running", _INT)())


def events_so_far() -> int:
    """Of this recording, or of the last one that was not taken yet."""
    return int(torch_shim.function("sn_recorder_count", _U64)())


def log() -> OperatorLog:
    """Takes what was recorded between `start` and `stop`; its memory goes back.

    Where the recording broke off training went on; raises NativeError if it found no memory or has MOST_EVENTS,
    CapabilityError if torch threw where it was asked about an operator's tensor.
    """
    error = torch_shim.function("sn_recorder_error", _INT)()
    if error == -errno.EIO:
        raise CapabilityError("recording operators", _UNKNOWN_TENSOR, "report this with torch's version")
    native.check("recording operators", error, _TOO_LONG if error == -errno.ENOBUFS else "")
    events = _copy("sn_recorder_count", "sn_recorder_copy", OPERATOR_DTYPE)
    words = _copy("sn_recorder_word_count", "sn_recorder_words", np.dtype("<i8"))
    name_of = torch_shim.function("sn_recorder_op_name", ctypes.c_char_p, _U64)
    count = torch_shim.function("sn_recorder_op_count", _U64)()
    ops = tuple(name_of(i).decode() for i in range(count))
    lost = torch_shim.function("sn_recorder_lost", _U64)()
    lines = calling_lines.seen()
    forget()
    return OperatorLog(events, ops, _flops(events, words, ops), int(lost), lines)


def forget() -> None:
    """Give back what was recorded. Does nothing while something is recorded."""
    torch_shim.function("sn_recorder_forget", _INT)()


class _OfParent:
    """What a forked child must not go on recording."""

    def forked(self) -> None:
        """See NotInherited."""
        _stop()
        forget()


_OF_PARENT = _OfParent()


def _copy(count: str, copy: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    held = np.empty(torch_shim.function(count, _U64)(), dtype)
    taken = torch_shim.function(copy, _U64, _U64, _U64, _PTR)(0, len(held), held.ctypes.data)
    return held[:taken]


def _flops(events: NDArray[Any], words: NDArray[Any], ops: tuple[str, ...]) -> NDArray[np.int64]:
    found = np.where(events["kind"] == OPERATOR, events["span"], 0).astype(np.int64)
    for index in np.flatnonzero((events["kind"] == OPERATOR) & (events["nbytes"] > 0)).tolist():
        row = events[index]
        begin = int(row["address"])
        of_call = tuple(words[begin : begin + int(row["nbytes"])].tolist())
        found[index] = flops.flops(ops[int(row["op"])], of_call)
    return found
