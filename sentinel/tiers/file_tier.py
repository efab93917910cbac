"""A file as slow tier: how much memory and which directory were asked for, and the tensors that live in its frames
(kernel_profiler/src/framed_tensors.cpp)."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import re
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from sentinel.core.errors import UsageError
from sentinel.core.units import format_bytes, parse_bytes, parse_fast
from sentinel.system import limits, native
from sentinel.system.disks import disk_of
from sentinel.system.launched import launched
from sentinel.system.progress import telling
from sentinel.system.scratch_disk import Scratch, fastest_disk
from sentinel.tiers.frames import FRAME_BYTES, Counters, Facts, Frames
from sentinel.tiers.pool_cap import PoolCap

_WORD = "file:"
FASTEST_DISK = f"{_WORD}auto"
"""The word for a file on the local disk that looks fastest."""
_POOL = "memfd:sentinel-frames"
_SIZED = re.compile(r"(?P<folder>.+)=(?P<size>[0-9.]+ ?[KMGTkmgt]?i?[Bb]?)")
_OF_FREE = 2  # files that were given no size take at most half of what the disk has free
_ADDRESSES = 2  # times the file, where the kernel allows it: holes between tensors take addresses only

_I32, _U64, _PTR = ctypes.c_int32, ctypes.c_uint64, ctypes.c_void_p


def is_file(slow: str | None) -> bool:
    """Whether a word for `slow` asks for a file."""
    return slow is not None and slow.startswith(_WORD)


class Bound(NamedTuple):
    """How large a file may be, why, and what to do about that."""

    nbytes: int
    why: str
    remedy: str


@dataclass(frozen=True)
class FileTier:
    """`fast_bytes` of memory in whole frames, and `file_bytes` of a file without a name in `folder`. `cap`: on the
    whole process, which the memory then follows. `told`: why this folder, where the user named none, and that a limit
    on private memory makes the file smaller. `bound`: of the file, by the limits of this process as it was asked for.
    Tensors of fewer than `least_bytes` stay in ordinary memory: SN_FRAMED_LEAST_BYTES."""

    least_bytes: ClassVar[int] = 1 << 20

    folder: str
    fast_bytes: int
    file_bytes: int
    cap: PoolCap | None = None
    told: tuple[str, ...] = ()
    bound: Bound | None = None

    @classmethod
    def asked(cls, slow: str, fast: str | int | None, cap: str | int | None = None, beside: int = 0) -> FileTier:
        """Of the words `slow="file:DIR"`, `"file:DIR=64GiB"` or `"file:auto"`, and of `fast` and `cap`, sizes.

        `beside`: bytes that loaders hold of fast memory, which come off `fast`; all that the process takes comes off a
        cap. Without `fast` the memory is what the cap leaves, and without both, what the container's limit leaves. A
        file without a size is as large as the host's memory, at most what limits let this process map, and at most half
        of what its disk has free, which the processes that torchrun starts here share. Raises UsageError for what
        means nothing here: a share of the footprint, which is not known yet, less than a frame, more memory than there
        is, more than can be mapped, a cap that leaves too little, a directory that is missing, is in memory, or may not
        be written to.
        """
        named = slow.removeprefix(_WORD)
        sized = None if os.path.isdir(named) else _SIZED.fullmatch(named)  # a folder may be named seed=1
        folder = sized["folder"] if sized else named
        told_bytes = parse_bytes(sized["size"]) if sized else 0
        if folder == "":
            raise UsageError(f"slow={slow!r} names no directory", 'name one on a disk: "file:/data/scratch"')
        told_fast = None if fast is None else _fast_bytes(fast, beside)
        within = PoolCap.asked(cap, told_fast, _ranks())
        asked_bytes = told_fast if within is None else within.pool_bytes
        if asked_bytes is None:
            raise UsageError(
                f"slow={slow!r} needs a budget, since no container limits this process",
                'say how much memory tensors may take, fast="8GiB", or the whole process, cap="12GiB"',
            )
        _require_memory(asked_bytes, fast, cap)
        fast_bytes = asked_bytes // FRAME_BYTES * FRAME_BYTES
        least = told_bytes or fast_bytes * _OF_FREE * _ranks()
        disk, why = fastest_disk(least) if folder == "auto" else Scratch(disk_of(folder), "")
        told = []
        if why:
            folder, free = str(disk.folder), format_bytes(disk.free_bytes)
            told.append(f"file:auto is {folder}: {disk.file_system}, {free} free, {why}.")
        if disk.in_memory:
            raise UsageError(
                f"slow={slow!r}: {folder} is {disk.file_system}, which is in memory, so a file there would save none",
                "name a directory on a disk",
            )
        mapped, private = _mapped_bound(), _private_bound()
        bound = min(mapped, private or mapped)
        most = f"{bound.nbytes >> 20}MiB"
        more = [f"file:{folder}={most}"] * (told_bytes > bound.nbytes) + [f"fast={most}"] * (fast_bytes > bound.nbytes)
        if more:
            raise UsageError(
                f"slow={slow!r} with fast={fast!r}: {bound.why}: enough for {format_bytes(bound.nbytes)}",
                f"ask for no more than {' and '.join(more)}, or {bound.remedy}",
            )
        share = disk.free_bytes // (_OF_FREE * _ranks())
        wanted = told_bytes if sized else min(limits.host_bytes(), share, bound.nbytes)
        if bound is private and wanted == bound.nbytes and not sized:
            told.append(f"The file is {format_bytes(wanted)}: {bound.why}. For a larger one, {bound.remedy}.")
        if wanted < fast_bytes:
            room = min(disk.free_bytes // _ranks(), bound.nbytes)
            larger = f"say how large it may be: file:{folder}={room >> 20}MiB"
            raise UsageError(
                f"slow={slow!r}: a file of {format_bytes(wanted)} is too small beside memory of"
                f" {format_bytes(fast_bytes)}",
                f"{folder} has {format_bytes(disk.free_bytes)} free;"
                f" {larger if room >= fast_bytes else 'name a directory on a disk with more room'}",
            )
        file_bytes = wanted // FRAME_BYTES * FRAME_BYTES
        if within is not None:
            within = replace(within, most_bytes=min(within.most_bytes, file_bytes))  # more would hold nothing
        return cls(str(disk.folder), fast_bytes, file_bytes, within, tuple(told), bound)

    def begin(self) -> FramedTensors:
        """From now on tensors live in frames. Raises TierError where the host refuses, naming what was tried;
        UsageError while tensors of an earlier tier still live."""
        regions = self.file_bytes // FRAME_BYTES
        granules = min(regions * _ADDRESSES, _most_granules())
        most = self.fast_bytes if self.cap is None else self.cap.most_bytes
        filled = self.fast_bytes // FRAME_BYTES
        taken = f"{format_bytes(self.fast_bytes)} of memory and a file of {format_bytes(self.file_bytes)}"
        frames: Frames | None = None
        if native.function("sn_framed_any", _I32)():
            gc.collect()  # a model that nobody uses any more may be part of a cycle, which nothing else takes apart
        try:
            with telling(f"taking {taken}"):
                frames = Frames(
                    self.folder, frames=most // FRAME_BYTES, granules=granules, regions=regions, filled=filled
                )
            framed = FramedTensors(frames, self.least_bytes)
            if self.cap is not None:
                self.cap.follow()
            return framed
        finally:
            if frames is not None:
                frames.close()  # does nothing once they are the library's


class FramedCounters(ctypes.Structure):
    """`frames`: see Counters. `tensors`: that were given memory here; `live_bytes`, `peak_live_bytes`: of them.

    `refused`, `refused_bytes`: allocations that found no room, and came from ordinary memory. `needs`: operators with
    operands here; `need_ns`: what they waited for them. `too_large`: operators whose operands do not fit in all frames
    together; `too_large_bytes`: of the largest; `too_large_by`: the first one's name. `sliced`: elementwise operators
    that ran slice by slice instead. `failed`: operands that could not be brought in. `refused_errno`, `failed_errno`:
    of the last of each, 0 if there was none.
    """

    _fields_ = (
        ("frames", Counters),
        ("tensors", _U64),
        ("live_bytes", _U64),
        ("peak_live_bytes", _U64),
        ("refused", _U64),
        ("refused_bytes", _U64),
        ("needs", _U64),
        ("need_ns", _U64),
        ("too_large", _U64),
        ("too_large_bytes", _U64),
        ("sliced", _U64),
        ("failed", _U64),
        ("refused_errno", _I32),
        ("failed_errno", _I32),
        ("too_large_by", ctypes.c_char * 128),
    )


class FramedTensors:
    """The tensors in frames. There is one in a process; `facts`: what was made."""

    def __init__(self, frames: Frames, least_bytes: int) -> None:
        """`frames` are the library's from now on, if nothing is raised. Smaller tensors come from elsewhere."""
        self.facts: Facts = frames.facts()
        begin = native.function("sn_framed_begin", _I32, _PTR, _U64)
        self._count = native.function("sn_framed_count", _I32, _PTR)
        self._contains = native.function("sn_framed_contains", _I32, _U64)
        self._step = native.function("sn_framed_step", _I32)
        result = frames.hand_over(lambda handle: int(begin(handle, least_bytes)))
        if result == -errno.EBUSY:
            raise UsageError(
                "tensors of an earlier session live in its frames",
                "delete them before another session begins, or begin it in a new process",
            )
        native.check("sn_framed_begin", result)

    @staticmethod
    def end() -> bool:
        """New tensors come from elsewhere. Whether some live on here; when the last of them dies, memory and file go
        back. May be called again, and where none were begun; in a forked child it does nothing."""
        result = int(native.function("sn_framed_end", _I32)())
        return result != -errno.ECHILD and bool(native.check("sn_framed_end", result))

    def contains(self, address: int) -> bool:
        """Whether a tensor at `address` is here."""
        return bool(self._contains(address))

    def step(self) -> None:
        """A round of training steps begins: one is recorded, and what later ones are about to need is read ahead."""
        self._step()

    def resident_bytes(self) -> tuple[int, int]:
        """What the kernel says that frames, and all that their addresses show, hold of memory now; of it, pages of the
        file in the page cache, as `torch.save` leaves them."""
        begin, end = self.facts.base, self.facts.base + self.facts.granules * FRAME_BYTES
        total, cached, ours, of_file = 0, 0, False, False
        with open("/proc/self/smaps", errors="surrogateescape") as lines:  # names of files are of any bytes
            for line in lines:
                first, _, rest = line.partition(" ")
                if not first.endswith(":"):
                    of_file = "/" in rest and _POOL not in rest
                    ours = begin <= int(first.partition("-")[0], 16) < end or _POOL in rest
                elif ours and first == "Pss:":
                    total += int(rest.split()[0]) * 1024
                    cached += int(rest.split()[0]) * 1024 * of_file
                elif ours and first == "Anonymous:":  # what stores have made
                    cached -= int(rest.split()[0]) * 1024 * of_file
        return total, cached

    def counters(self) -> FramedCounters:
        """What has happened until now."""
        told = FramedCounters()
        native.check("sn_framed_count", self._count(ctypes.byref(told)))
        return told


def _fast_bytes(fast: str | int, beside: int) -> int:
    amount = parse_fast(fast)
    if amount.share is not None:
        raise UsageError(
            f"fast={fast!r} with a file as slow tier: a share of the footprint is not possible, since the footprint"
            " is not known yet",
            'give a size: fast="8GiB"',
        )
    nbytes = (amount.nbytes // _ranks() if amount.per_node else amount.nbytes) - beside
    if nbytes < FRAME_BYTES:
        less = f", less {format_bytes(beside)} that loaders hold of it," if beside else ""
        raise UsageError(
            f"fast={fast!r}{less} is less than one frame of {format_bytes(FRAME_BYTES)}",
            "give at least what the largest operator works on, and a little more",
        )
    return nbytes


def _require_memory(pool_bytes: int, fast: str | int | None, cap: str | int | None) -> None:
    there, ranks = limits.available_bytes(), _ranks()
    if ranks > 1:  # frames of those that began earlier are shared memory: they are part of what all have
        there += min(limits.shared_bytes(), (ranks - 1) * pool_bytes)
    if pool_bytes <= (most := there // ranks):
        return
    unasked = fast is None and cap is None
    asked = "the container's limit" if unasked else f"fast={fast!r}" if cap is None else f"cap={cap!r}"
    whose = "tensors" if ranks == 1 else f"the tensors of each of {ranks} processes"
    raise UsageError(
        f"{asked} allows {whose} {format_bytes(pool_bytes)} of memory, this host has {format_bytes(there)} left",
        f"give {'fast, ' if unasked else ''}at most {most >> 20}MiB, less what the process takes beside its tensors",
    )


def _most_granules() -> int:
    """As many as sn_frames_create allows: the rest of the process has mappings too."""
    most = limits.most_mappings()
    return most - most // 8


def _mapped_bound() -> Bound:
    return Bound(
        _most_granules() * FRAME_BYTES,
        f"each {format_bytes(FRAME_BYTES)} may be a mapping, and the kernel allows a process {limits.most_mappings()}"
        " (vm.max_map_count)",
        "allow more mappings (sysctl vm.max_map_count)",
    )


def _private_bound() -> Bound | None:
    """None without a limit. The kernel counts what could be written to and is not shared, whether it takes memory or
    not: addresses that show the file, and at a fork all that tensors have. A quarter is for the rest of the process."""
    left = limits.private_memory_left()
    if left is None:
        return None
    return Bound(
        left // 4 * 3 // FRAME_BYTES * FRAME_BYTES,
        f"addresses of tensors in it count as private memory, of which this process may have {format_bytes(left)} more"
        " (ulimit -d, or vm.overcommit_memory=2), a quarter of that for all else",
        "raise that limit",
    )


def _ranks() -> int:
    """Processes of this job on this host, as its launcher says."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(int(told), 1) if told.isdigit() else launched().local_size
