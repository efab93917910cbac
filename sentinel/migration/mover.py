"""The native mover (kernel_profiler/src/mover.cpp): two queues of transfers between tiers, within a hard budget of
fast bytes."""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from sentinel.core.errors import NativeError
from sentinel.migration.mover_order import Order, order_of
from sentinel.system import native
from sentinel.tiers.tier import FAST, MOST_TIERS, Job

_U64, _I64, _INT, _PTR = ctypes.c_uint64, ctypes.c_int64, ctypes.c_int, ctypes.c_void_p
_ERRNO_COUNT = 134
_SLICE_NS = 100_000_000  # how long a wait keeps Python from handling signals
_BATCH = 64


class Outcome(IntEnum):
    """How a job ended. `ALREADY`: all was there. `PARTIAL`: some pages stayed."""

    DONE, PARTIAL, FAILED, CANCELLED, ALREADY = range(5)


class Moved(NamedTuple):
    """An ended job. `held`: of its block, in each of MOST_TIERS tiers now. `start_ns` is 0 if it never started.
    `target`: the tier to which it went, its own or its spare one. `bound`: as `NativeMover.bind_untouched` says."""

    job: int
    start_ns: int
    stop_ns: int
    moved_bytes: int
    held: tuple[int, ...]
    outcome: Outcome
    errno: int
    target: int
    bound: bool = False


class Held(NamedTuple):
    """The accounts. `bytes_in`: of each of MOST_TIERS tiers. `*high_bytes*`: most since they were last restarted, also
    of all slower tiers together. `overflow_bytes`: taken by force beyond the capacity of the fast tier, added up;
    `slow_overflow_bytes`: beyond those of slower tiers. `starved`: a promotion waits for room."""

    bytes_in: tuple[int, ...]
    high_bytes_in: tuple[int, ...]
    slow_high_bytes: int
    in_flight_bytes: int
    most_fast_bytes: int
    overflow_bytes: int
    overflows: int
    starved: int
    slow_overflow_bytes: int

    @property
    def fast_bytes(self) -> int:
        """In the fast tier now."""
        return self.bytes_in[FAST]


class Copied(NamedTuple):
    """What emulated transfers copied since the mover was made. `absent_bytes`: in pages that nobody has touched.
    `refused_bytes`: what could not be read, first because of `errno`. `cpu_ns`: processor time of the movers."""

    copied_bytes: int
    absent_bytes: int
    refused_bytes: int
    cpu_ns: int
    errno: int


_MOVED = struct.Struct(f"=4Q{MOST_TIERS}QiiQQ")
"""struct sn_moved."""
_OUTCOMES = tuple(Outcome)

_Held = _U64 * (2 * MOST_TIERS + len(Held._fields) - 2)

_Copied = _U64 * len(Copied._fields)

_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "sn_mover_create": (_INT, (_U64, _INT, ctypes.POINTER(_PTR))),
    "sn_mover_close": (_INT, (ctypes.POINTER(_PTR),)),
    "sn_mover_submit_all": (_I64, (_PTR, _PTR, _U64)),
    "sn_mover_cancel": (_INT, (_PTR, _U64)),
    "sn_mover_wait": (_INT, (_PTR, _U64, _U64)),
    "sn_mover_results_from": (_U64, (_PTR, _U64, _PTR, _U64)),
    "sn_mover_ended": (_PTR, (_PTR,)),
    "sn_mover_submitted": (_PTR, (_PTR,)),
    "sn_mover_changes": (_PTR, (_PTR,)),
    "sn_mover_reserve": (_INT, (_PTR, _U64, _U64)),
    "sn_mover_force": (_INT, (_PTR, _U64)),
    "sn_mover_release": (_INT, (_PTR, _U64)),
    "sn_mover_hold": (_INT, (_PTR, _INT, _I64)),
    "sn_mover_take_in": (_INT, (_PTR, _INT, _U64)),
    "sn_mover_set_capacity": (_INT, (_PTR, _INT, _U64)),
    "sn_mover_bind_untouched": (_INT, (_PTR, _INT)),
    "sn_mover_held": (_INT, (_PTR, _PTR, _INT)),
    "sn_mover_errors": (_INT, (_PTR, _PTR)),
    "sn_mover_copied": (_INT, (_PTR, _PTR)),
    "sn_fork_count": (_U64, ()),
}
_SUBMIT, _RESULTS = "sn_mover_submit_all", "sn_mover_results_from"
_WAITING = ("sn_mover_close", "sn_mover_wait", "sn_mover_reserve")
"""Calls that may take long let go of the GIL; the others are shorter than letting go of it."""


def _bind(name: str, *, waiting: bool | None = None) -> Any:
    waits = name in _WAITING if waiting is None else waiting
    loaded = native.library() if waits else native.quick()
    bound = loaded[name]
    bound.restype, bound.argtypes = _SIGNATURES[name]
    return bound


class NativeMover:
    """A mover with a budget of `fast_capacity_bytes`, between `tiers` tiers. In a forked child every call that changes
    something raises NativeError (ECHILD)."""

    def __init__(self, fast_capacity_bytes: int, *, full_duplex: bool = True, tiers: int = MOST_TIERS) -> None:
        self._call = {name: _bind(name) for name in _SIGNATURES}
        self._ended = self._submitted = self._changes = _U64(0)
        self._handle = _PTR()  # the library writes it: an interrupt loses no mover
        result = self._call["sn_mover_create"](fast_capacity_bytes, int(not full_duplex), ctypes.byref(self._handle))
        native.check("sn_mover_create", result)
        self._ended = _U64.from_address(self._call["sn_mover_ended"](self._handle))
        self._submitted = _U64.from_address(self._call["sn_mover_submitted"](self._handle))
        self._changes = _U64.from_address(self._call["sn_mover_changes"](self._handle))
        self._tiers, self._marks = tiers, ((0,) * tiers, 0)
        self._marked_at = -1  # after so many changes of the accounts the high-water marks began again, with `_marks`
        self._rows = bytearray(_BATCH * _MOVED.size)
        self._rows_at = (ctypes.c_char * len(self._rows)).from_buffer(self._rows)
        self._accounts = _Held()
        self._accounts_at = ctypes.addressof(self._accounts)
        self._held_call, self._submit_call = self._call["sn_mover_held"], self._call[_SUBMIT]
        self._results_call, self._told = self._call[_RESULTS], 0
        self._take_call = _bind("sn_mover_reserve", waiting=False)

    def submit(self, job: Job) -> int:
        """Queue `job`; returns its id."""
        return self.submit_all([order_of(job)])

    def submit_all(self, orders: Sequence[Order]) -> int:
        """Queue them in this order and all at once, or none; returns the id of the first. The others count on."""
        result: int = self._submit_call(self._open(_SUBMIT), b"".join([each.packed for each in orders]), len(orders))
        if result < 0:
            raise NativeError(_SUBMIT, -result)
        return result

    def cancel(self, job: int) -> bool:
        """Whether `job` had not started, and now never will."""
        return self._check("sn_mover_cancel", job) == 1

    def wait(self, job: int) -> bool:
        """True once `job` has ended; False if it waits for room that no demotion is going to free."""
        return self._wait("sn_mover_wait", job)

    def take(self, nbytes: int) -> bool:
        """Take fast room for a birth; False if there is not enough at this moment."""
        result = self._take_call(self._open("sn_mover_reserve"), nbytes, 0)
        if result and result not in (-errno.ENOSPC, -errno.ETIMEDOUT):
            raise NativeError("sn_mover_reserve", -result)
        return bool(result == 0)

    def reserve(self, nbytes: int) -> bool:
        """Take fast room for a birth, waiting for it; False if no demotion is going to free enough."""
        return self._wait("sn_mover_reserve", nbytes)

    def force(self, nbytes: int) -> None:
        """Take fast room though there is none: what is beyond the capacity is counted as overflow."""
        self._check("sn_mover_force", nbytes)

    def release(self, nbytes: int) -> None:
        """Give fast room back."""
        self._check("sn_mover_release", nbytes)

    def hold(self, tier: int, nbytes: int) -> None:
        """Count bytes born in a slower tier, or dead where negative; those for which it has no room as overflow."""
        self._check("sn_mover_hold", tier, nbytes)

    def take_in(self, tier: int, nbytes: int) -> bool:
        """Take room of a slower tier for a birth; False if it has not enough."""
        result = self._call["sn_mover_take_in"](self._open("sn_mover_take_in"), tier, nbytes)
        if result and result != -errno.ENOSPC:
            raise NativeError("sn_mover_take_in", -result)
        return bool(result == 0)

    def set_capacity(self, nbytes: int, tier: int = FAST) -> None:
        """Change what a tier has; slower ones have no limit at first. What one holds beyond it counts as overflow.
        Demotions wait for room in a slower one while promotions make some, and then go to their spare tier."""
        self._check("sn_mover_set_capacity", tier, nbytes)

    def bind_untouched(self, whether: bool) -> None:
        """Pages that nobody has touched cannot move. Whether jobs on nodes that meet some give their block the memory
        policy of the node to which it goes, by which they are born there, and tell so (`Moved.bound`). Whoever asks
        for it puts the policy back."""
        self._check("sn_mover_bind_untouched", int(whether))

    def submitted(self) -> int:
        """How many jobs were submitted since the mover was made: the id of the last."""
        return self._submitted.value

    def ended(self) -> int:
        """How many jobs have ended since the mover was made."""
        return self._ended.value

    def results(self) -> list[Moved]:
        """The jobs that have ended since the last call, oldest first."""
        found: list[Moved] = []
        while told := self.results_from(self._told):
            found += told
            self._told += len(told)
        return found

    def results_from(self, first: int) -> list[Moved]:
        """Up to 64 jobs in the order in which they have ended, from the `first`-th on, 0 being the first of all. Those
        before are told of no more."""
        count = self._results_call(self._open(_RESULTS), first, self._rows_at, _BATCH)
        found = []
        for row in _MOVED.iter_unpack(memoryview(self._rows)[: count * _MOVED.size]):
            job, start, stop, moved = row[:4]
            outcome, error, target, bound = row[-4:]
            found.append(Moved(job, start, stop, moved, row[4:-4], _OUTCOMES[outcome], error, target, bool(bound)))
        return found

    def held(self, *, restart: bool = False) -> Held:
        """The accounts; `restart`: the high-water marks begin again."""
        result = self._held_call(self._open("sn_mover_held"), self._accounts_at, restart)
        if result:
            raise NativeError("sn_mover_held", -result)
        told = self._accounts[:]
        return Held(tuple(told[:MOST_TIERS]), tuple(told[MOST_TIERS : 2 * MOST_TIERS]), *told[2 * MOST_TIERS :])

    def restart_high_bytes(self) -> tuple[tuple[int, ...], int]:
        """Most bytes that each tier held, and all slower ones together; these marks begin again.

        Asked at each tick: where the accounts have not changed since the marks last began, it reads none.
        """
        changes = self._changes.value  # before the accounts are read: what changes meanwhile is read next time
        if changes == self._marked_at:
            return self._marks
        if result := self._held_call(self._open("sn_mover_held"), self._accounts_at, True):
            raise NativeError("sn_mover_held", -result)
        told = self._accounts[: 2 * MOST_TIERS + 1]
        held = tuple(told[: self._tiers])
        self._marks = held, sum(held) - held[FAST]
        self._marked_at = changes
        return tuple(told[MOST_TIERS : MOST_TIERS + self._tiers]), told[2 * MOST_TIERS]

    def errors(self) -> dict[str, int]:
        """Pages (or emulated jobs) that stayed, by the name of the errno."""
        counts = (_U64 * _ERRNO_COUNT)()
        self._check("sn_mover_errors", counts)
        return {errno.errorcode.get(code, str(code)): count for code, count in enumerate(counts) if count}

    def copied(self) -> Copied:
        """What emulated transfers copied, and what that cost."""
        told = _Copied()
        self._check("sn_mover_copied", told)
        return Copied(*told)

    def forks(self) -> int:
        """How often this process has forked since it made its first mover."""
        return int(self._call["sn_fork_count"]())

    @property
    def closed(self) -> bool:
        """Whether there are no workers any more."""
        return not self._handle

    def close(self) -> None:
        """Drop what is queued, cut short what runs, end the workers. Does nothing the second time. In a forked child:
        nothing."""
        if self._handle:
            self._ended, self._submitted = _U64(self._ended.value), _U64(self._submitted.value)
            self._changes, self._marked_at = _U64(0), -1
            self._call["sn_mover_close"](ctypes.byref(self._handle))

    def __del__(self) -> None:
        """A mover that an interrupt left without an owner takes its workers with it."""
        if getattr(self, "_handle", None):
            self.close()

    def _open(self, name: str) -> int:
        handle = self._handle.value
        if handle is None:
            raise NativeError(name, errno.EBADF, "the mover was closed")
        return handle

    def _check(self, name: str, *arguments: Any) -> int:
        result: int = self._call[name](self._open(name), *arguments)
        if result < 0:
            raise NativeError(name, -result)
        return result

    def _wait(self, name: str, amount: int) -> bool:
        while True:
            result = self._call[name](self._open(name), amount, _SLICE_NS)
            if result == 0:
                return True
            if result == -errno.ENOSPC:
                return False
            if result != -errno.ETIMEDOUT:
                raise NativeError(name, -result)
