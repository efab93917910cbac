"""The native measurements (kernel_profiler/src/calibrate.cpp), one call a round."""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sentinel.calibrate.regions import Region
from sentinel.core.errors import NativeError
from sentinel.core.units import PAGE_BYTES
from sentinel.system import native

Stream = Literal["read", "write", "mixed"]
_READ, _WRITE, _UPDATE, _CHASE, _MOVE = range(5)
_STREAMS: dict[str, int] = {"read": _READ, "write": _WRITE, "mixed": _UPDATE}
_U64, _I32, _U32 = ctypes.c_uint64, ctypes.c_int32, ctypes.c_uint32


class _Work(ctypes.Structure):
    _fields_ = (
        ("base", _U64),
        ("nbytes", _U64),
        ("start", _U64),
        ("cpu", _I32),
        ("node", _I32),
        ("kind", _U32),
        ("reserved", _U32),
    )


class _Pace(ctypes.Structure):
    _fields_ = (
        ("start_ns", _U64),
        ("stop_ns", _U64),
        ("bytes", _U64),
        ("loads", _U64),
        ("at", _U64),
        ("busy_ns", _U64),
        ("error", _I32),
        ("reserved", _U32),
    )


@dataclass
class Chase:
    """Dependent loads all over `region`, whose content is replaced; each round goes on where the last one ended."""

    region: Region
    at: int = 0

    def __post_init__(self) -> None:
        link = native.function("sn_chase_link", ctypes.c_int, _U64, _U64, _U64)
        native.check("sn_chase_link", link(self.region.address, self.region.nbytes, 0x5E971))


@dataclass(frozen=True)
class Moving:
    """Part of a region that one mover takes to `node`."""

    address: int
    nbytes: int
    node: int


class Round(NamedTuple):
    """What a round found, and the least share of its time that a thread had its CPU: less than 1 where other programs
    ran. Figures are per time on the CPU, so that those do not count."""

    figure: float
    busy: float


def stream_rate(region: Region, kind: Stream, cpus: Sequence[int], duration_ns: int) -> Round:
    """Bytes per second of one thread a CPU, each going over its own part of `region`."""
    paces = _measure(_streams(region, _STREAMS[kind], cpus), duration_ns)
    return Round(sum(float(pace.bytes) * 1e9 / pace.busy_ns for pace in paces), _busy(paces))


def latency_ns(chase: Chase, cpu: int, duration_ns: int, load: Region | None = None, cpus: Sequence[int] = ()) -> Round:
    """Nanoseconds a dependent load on `cpu`, while a reader on each of `cpus` streams over `load`."""
    others = _streams(load, _READ, cpus) if load is not None and cpus else []
    region = chase.region
    work = _Work(base=region.address, nbytes=region.nbytes, start=chase.at, cpu=cpu, kind=_CHASE)
    paces = _measure([work, *others], duration_ns)
    chase.at = paces[0].at
    return Round(float(paces[0].busy_ns) / paces[0].loads, _busy(paces))


def move_rates(parts: Sequence[Sequence[Moving]], cpus: Sequence[int]) -> list[tuple[float, int, int]]:
    """(bytes/s, bytes moved, errno) of each group of movers; all begin at once, one on each CPU in turn."""
    flat = [part for group in parts for part in group]
    works = [
        _Work(base=p.address, nbytes=p.nbytes, cpu=cpus[i % len(cpus)], node=p.node, kind=_MOVE)
        for i, p in enumerate(flat)
    ]
    paces = iter(_measure(works, 0))
    found = []
    for group in parts:
        mine = [next(paces) for _ in group]
        moved = sum(pace.bytes for pace in mine)
        spent = max(pace.stop_ns for pace in mine) - min(pace.start_ns for pace in mine)
        found.append((moved * 1e9 / max(spent, 1), moved, max(pace.error for pace in mine)))
    return found


def parts_of(region: Region, count: int, page_bytes: int, node: int) -> list[Moving]:
    """`region` cut for `count` movers to `node`, in whole pages."""
    pages = region.nbytes // page_bytes
    cuts = [region.address + pages * i // count * page_bytes for i in range(count + 1)]
    return [Moving(low, high - low, node) for low, high in itertools.pairwise(cuts)]


def _busy(paces: Sequence[_Pace]) -> float:
    return min(float(pace.busy_ns) / float(pace.stop_ns - pace.start_ns) for pace in paces)


def _streams(region: Region, kind: int, cpus: Sequence[int]) -> list[_Work]:
    part = region.nbytes // len(cpus) // PAGE_BYTES * PAGE_BYTES
    return [_Work(base=region.address + i * part, nbytes=part, cpu=cpu, kind=kind) for i, cpu in enumerate(cpus)]


def _measure(works: Sequence[_Work], duration_ns: int) -> list[_Pace]:
    measure = native.function("sn_measure", ctypes.c_int, ctypes.POINTER(_Work), _U32, _U64, ctypes.POINTER(_Pace))
    paces = (_Pace * len(works))()
    done = measure((_Work * len(works))(*works), len(works), duration_ns, paces)
    if done < 0:
        cpus = ", ".join(str(work.cpu) for work in works)
        raise NativeError("sn_measure", -done, f"binding threads to CPUs {cpus}: {os.strerror(-done)}")
    return list(paces)
