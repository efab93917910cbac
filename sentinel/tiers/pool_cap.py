"""A cap on the whole process: how much of it is left for tensors in frames (kernel_profiler/src/framed_cap.cpp keeps to
it as the rest of the process grows)."""

from __future__ import annotations

import ctypes
import errno
import os
from dataclasses import dataclass

from sentinel.core.errors import CapabilityError, UsageError
from sentinel.core.units import HUGE_PAGE_BYTES as FRAME_BYTES
from sentinel.core.units import format_bytes, parse_amount
from sentinel.system import limits, native
from sentinel.system.limits import LimitedGroup

LEAST_POOL_BYTES = 32 << 20
"""With less, hardly an operator finds its operands in memory together."""
_SPARE = 8  # an eighth of the cap stays free, within these bounds
_LEAST_SPARE, _MOST_SPARE = (
    128 << 20,
    1 << 30,
)  # the imports of a first optimizer step alone take 60 MiB between operators
_ROUND = 16 << 20  # what is recommended is a multiple, with as much for what the process takes meanwhile

_U64, _U32, _I32, _TEXT = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int32, ctypes.c_char_p


@dataclass(frozen=True)
class PoolCap:
    """`cap_bytes`: of this process and its descendants, or of the first of `groups`, the memory cgroups around it, each
    with all that is in it: the one that has least left at the start. The frames follow whichever leaves least.
    `taken_bytes`: of that, when looked at, frames apart. `spare_bytes`: stays free, for what is taken between two looks
    and for tensors that do not live in frames. `pool_bytes`: the rest, in whole frames, at most what the user allows;
    of a cgroup the part of one of `ranks` processes. The pool follows within `least_bytes` and `most_bytes`."""

    cap_bytes: int
    taken_bytes: int
    spare_bytes: int
    pool_bytes: int
    least_bytes: int
    most_bytes: int
    groups: tuple[LimitedGroup, ...]
    ranks: int

    @classmethod
    def asked(cls, cap: str | int | None, fast_bytes: int | None, ranks: int) -> PoolCap | None:
        """Of the word `cap`, and of `fast` in bytes if it was given. Neither: that of the tightest memory cgroup, if it
        allows less than the host has; None without one, and where only `fast` was given.

        Raises UsageError for what is no size, and for one that leaves too little, with one that would do;
        CapabilityError where the kernel does not tell what processes take.
        """
        if cap is None and fast_bytes is not None:
            return None
        groups: tuple[LimitedGroup, ...] = ()
        if cap is None:
            host_bytes = limits.host_bytes()
            groups = tuple(group for group in limits.limited_groups() if group.limit_bytes < host_bytes)
            if not groups:
                return None
            cap_bytes, taken, ranks = groups[0].limit_bytes, groups[0].limit_bytes - groups[0].room_bytes, max(ranks, 1)
        else:
            cap_bytes, taken, ranks = _size(cap), taken_bytes(), 1
        most = min(cap_bytes if fast_bytes is None else fast_bytes, cap_bytes) // FRAME_BYTES * FRAME_BYTES
        least = max(min(most, LEAST_POOL_BYTES), FRAME_BYTES)
        spare = _within_bounds(cap_bytes // _SPARE)
        pool = min((cap_bytes - taken - spare) // ranks // FRAME_BYTES * FRAME_BYTES, most)
        if pool < least:
            raise _too_small(cap, cap_bytes, taken, spare, least * ranks)
        return cls(cap_bytes, taken, spare, pool, least, most, groups, ranks)

    def follow(self) -> None:
        """From now on the frames that tensors live in become fewer or more, as other memory grows or shrinks."""
        groups = (_Group * len(self.groups))(*(_files_of(group) for group in self.groups))
        asked = _Cap(
            cap_bytes=self.cap_bytes,
            spare_bytes=self.spare_bytes,
            least_frames=self.least_bytes // FRAME_BYTES,
            most_frames=self.most_bytes // FRAME_BYTES,
            groups=groups,
            n_groups=len(groups),
            sharers=self.ranks,
        )
        follow = native.function("sn_framed_follow", _I32, ctypes.c_void_p)
        native.check("sn_framed_follow", follow(ctypes.byref(asked)))

    @property
    def whose(self) -> str:
        """What the cap bounds, in words."""
        if not self.groups:
            return "this process and its children"
        one = len({group.used for group in self.groups}) == 1
        return "this process's memory cgroup" if one else "the memory cgroup that had least left at the start"


class PoolNow(ctypes.Structure):
    """`looks`: at what is taken. `taken_bytes`, `most_taken_bytes`: beside the frames. `over_bytes`: the most by which
    the least pool and the rest exceeded the cap. `failed`: looks after which frames could not become as many as
    they were to be; `failed_errno`: of the last of them. `frames`, `least_frames`, `most_frames`: with memory, now and
    ever; `huge_frames`: of one huge page each, now."""

    _fields_ = (
        ("looks", _U64),
        ("taken_bytes", _U64),
        ("most_taken_bytes", _U64),
        ("over_bytes", _U64),
        ("failed", _U64),
        ("frames", _U32),
        ("least_frames", _U32),
        ("most_frames", _U32),
        ("huge_frames", _U32),
        ("failed_errno", _I32),
    )


def pool_now() -> PoolNow:
    """How the frames that tensors live in, or last did, have followed."""
    told = PoolNow()
    count = native.function("sn_framed_cap_count", _I32, ctypes.c_void_p)
    native.check("sn_framed_cap_count", count(ctypes.byref(told)))
    return told


def taken_bytes() -> int:
    """What this process and its descendants take: resident pages, each counted once, and page tables."""
    result = int(native.function("sn_taken_bytes", ctypes.c_int64, _U64)(0))
    if result == -errno.EOPNOTSUPP:
        raise CapabilityError(
            "finding out what this process takes",
            "/proc/self/smaps_rollup does not tell (it does from Linux 5.4 on)",
            'give fast="8GiB" instead of cap',
        )
    return native.check("sn_taken_bytes", result)


class _Group(ctypes.Structure):
    _fields_ = tuple((name, _TEXT) for name in ("limit", "used", "stat", "idle", "busy"))


class _Cap(ctypes.Structure):
    _fields_ = (
        ("cap_bytes", _U64),
        ("spare_bytes", _U64),
        ("least_frames", _U32),
        ("most_frames", _U32),
        ("groups", ctypes.POINTER(_Group)),
        ("n_groups", _U32),
        ("sharers", _U32),
    )


def _files_of(group: LimitedGroup) -> _Group:
    limit, used, stat = (os.fsencode(path) for path in (group.limit, group.used, group.stat))
    return _Group(limit, used, stat, group.idle.encode(), group.busy.encode())


def _size(cap: str | int | None) -> int:
    amount = parse_amount("" if cap is None else cap)
    if amount.share is not None:
        raise UsageError(f"cap={cap!r} is a share, but a cap is a size", 'give a size: cap="8GiB"')
    return amount.nbytes


def _within_bounds(spare: int) -> int:
    return min(max(spare, _LEAST_SPARE), _MOST_SPARE)


def _too_small(cap: str | int | None, cap_bytes: int, taken: int, spare: int, least: int) -> UsageError:
    needed = taken + least
    enough = needed + _within_bounds(needed // (_SPARE - 1))
    enough = (enough // _ROUND + 2) * _ROUND
    asked, who = (f"cap={cap!r}", "this process") if cap is not None else ("the container's limit", "what is in it")
    return UsageError(
        f"{asked} is {format_bytes(cap_bytes)}: {who} takes {format_bytes(taken)} already, {format_bytes(spare)} stay"
        f" free, and tensors need {format_bytes(least)}",
        f"allow at least {enough >> 20}MiB",
    )
