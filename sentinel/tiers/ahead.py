"""What was read ahead by a recorded step, and the record (kernel_profiler/src/framed_steps.cpp)."""

from __future__ import annotations

import ctypes
import errno
from typing import Any

import numpy as np

from sentinel.core.granule_uses import BORN, DIED, READS, WRITES, GranuleUses
from sentinel.system import native

_I32, _U32, _U64, _PTR = ctypes.c_int32, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p


class AheadCounters(ctypes.Structure):
    """`steps`: rounds of steps that have begun, of them `recorded` as a whole. `operators`, `uses`: of the record, 0
    while there is none.

    `matched`: operators of later steps that were found in the record, `missed`: that were not, or were left out.
    `hit_bytes`: read ahead and there when needed; `late_bytes`: still on their way then; `vain_bytes`: that left or
    died before they were needed; `demanded_bytes`: read because an operator waited for them. `unforeseen`:
    granules that were touched while they were away, as no operator had announced, each once between two operators;
    `expected`: of these, uses that the current step is to have, too. `wait_before_ns`, `wait_after_ns`: of operators
    and allocations, in the last step without a record, and in the last one with one.
    `follows`: whether the job is where the record says; `too_long`: whether a step has more uses than are recorded.
    `under_way`: granules whose transfer is not over. `read_alone_bytes`, `read_alone_ns`: of the fastest reads of 16
    MiB or a little more while nothing was written, 0 where there were not so many; `write_alone_...`: likewise.
    `read_lately_...`, `write_lately_...`: of the last 256 MiB, or 16 that took 2 s, instead of the fastest.
    """

    _fields_ = (
        ("steps", _U64),
        ("recorded", _U64),
        ("operators", _U64),
        ("uses", _U64),
        ("matched", _U64),
        ("missed", _U64),
        ("hit_bytes", _U64),
        ("late_bytes", _U64),
        ("vain_bytes", _U64),
        ("demanded_bytes", _U64),
        ("unforeseen", _U64),
        ("expected", _U64),
        ("wait_before_ns", _U64),
        ("wait_after_ns", _U64),
        ("follows", _U32),
        ("too_long", _U32),
        ("under_way", _U64),
        ("read_alone_bytes", _U64),
        ("read_alone_ns", _U64),
        ("write_alone_bytes", _U64),
        ("write_alone_ns", _U64),
        ("read_lately_bytes", _U64),
        ("read_lately_ns", _U64),
        ("write_lately_bytes", _U64),
        ("write_lately_ns", _U64),
    )


def ahead_counters() -> AheadCounters:
    """Of the frames that tensors are in; of the last ones after their end."""
    told = AheadCounters()
    native.check("sn_framed_ahead_count", native.function("sn_framed_ahead_count", _I32, _PTR)(ctypes.byref(told)))
    return told


def recorded_step() -> GranuleUses | None:
    """The step that later ones are followed by; None while there is none."""
    call = native.function("sn_framed_recorded", _I32, _U64, _U64, _PTR, _PTR, _PTR, _PTR)
    while True:
        told = ahead_counters()
        if not told.operators:
            return None
        compute_ns, first_use = np.zeros(told.operators, np.int64), np.zeros(told.operators + 1, np.int64)
        granule, kind = np.zeros(told.uses, np.int32), np.zeros(told.uses, np.uint8)
        arrays = (compute_ns, first_use, granule, kind)
        result = call(told.operators, told.uses, *(_PTR(array.ctypes.data) for array in arrays))
        if result == -errno.ENODATA:
            return None
        if result != -errno.EAGAIN:  # another one was recorded meanwhile
            native.check("sn_framed_recorded", result)
            return _once_an_operator(*arrays)


def _once_an_operator(compute_ns: Any, first_use: Any, granule: Any, kind: Any) -> GranuleUses:
    """Where a granule died and was born again for another tensor within one operator, its uses become one."""
    operator = np.repeat(np.arange(len(compute_ns)), np.diff(first_use))
    kind = np.where(kind & BORN, kind & np.uint8(0xFF ^ READS), kind).astype(np.uint8)
    last: dict[tuple[int, int], int] = {}
    kept = np.ones(len(kind), bool)
    for at, named in enumerate(zip(operator.tolist(), granule.tolist(), strict=True)):
        if (before := last.get(named)) is not None:
            kind[at] = _one_after_the_other(int(kind[before]), int(kind[at]))
            kept[before] = False
        last[named] = at
    first = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept, dtype=np.int64)])[first_use]
    return GranuleUses(compute_ns, first, granule[kept], kind[kept])


def _one_after_the_other(before: int, after: int) -> int:
    if before == DIED:
        return after
    return (before & (READS | BORN)) | ((before | after) & WRITES) | (after & DIED)
