"""What an arena is made of: a sealed memfd, all of it on a node if that was asked for, or a file without a name."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import tempfile

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import CapabilityError, NativeError, UsageError
from sentinel.core.interrupts import let_through
from sentinel.core.units import PAGE_BYTES, format_bytes
from sentinel.system import numa

_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034
_SEALS = 0x0001 | 0x0002 | 0x0004  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW: Python names them from 3.13 on
_PART = 1 << 30
"""Bytes whose pages the kernel is asked about at once: 3 MB of addresses and answers."""
_AT_ONCE = 16 << 20
"""Bytes that one call reserves: older kernels take all of a call back, and it begins anew, if a signal comes in it."""


_LIMITS = {errno.EFBIG: "-f", errno.ENOMEM: "-v", errno.EMFILE: "-n"}
"""The options of ulimit, by the error of a call that was refused for it."""


def check_limits(nbytes: int, error: OSError) -> None:
    """Raises UsageError where so much memory was refused for what may be a limit of the process."""
    option = _LIMITS.get(error.errno or 0)
    if option is not None:
        less = "" if option == "-n" else ", or give less memory="
        what = f"{format_bytes(nbytes)} of memory for samples are refused ({error.strerror})"
        raise UsageError(what, f"raise `ulimit {option}`{less}") from error


def new_memory(nbytes: int, folder: str = "") -> int:
    """The descriptor of new memory, of which nothing is reserved: a memfd whose size nobody can change, or with
    `folder` a file there that has no name. Its user alone may open it.

    Raises CapabilityError where there is no memfd, UsageError where no such file can be made, or none so large.
    """
    if folder:
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                descriptor = os.dup(file.fileno())
        except OSError as error:
            check_limits(nbytes, error)
            raise UsageError(
                f"no file for samples can be made in {folder} ({error.strerror})", "name another directory"
            ) from error
    else:
        try:
            descriptor = os.memfd_create("sentinel-samples", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            check_limits(nbytes, error)
            raise CapabilityError(
                "memory for samples", f"memfd_create: {error.strerror}", "allow it to this job"
            ) from error
    try:
        os.ftruncate(descriptor, nbytes)
        if not folder:
            fcntl.fcntl(descriptor, _F_ADD_SEALS, _SEALS)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, OSError):
            check_limits(nbytes, error)
        raise
    return descriptor


def new_bell(memory: int, nbytes: int) -> int:
    """The descriptor of an eventfd beside new `memory` of so many bytes, which is closed where there is none. Raises
    UsageError where the process may have no more descriptors."""
    try:
        return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    except OSError as error:
        os.close(memory)
        check_limits(nbytes, error)
        raise


def mapped(descriptor: int, nbytes: int) -> mmap.mmap:
    """The memory, all of it. Raises UsageError where the process may map no more."""
    try:
        return mmap.mmap(descriptor, nbytes)
    except OSError as error:
        check_limits(nbytes, error)
        raise


def is_sealed(descriptor: int) -> bool:
    """Whether this is memory whose size nobody can change. Raises OSError for a file of another kind."""
    return fcntl.fcntl(descriptor, _F_GET_SEALS) & _SEALS == _SEALS


def reserve(descriptor: int, at: int, nbytes: int) -> None:
    """These bytes are there from now on. Raises UsageError where there is no room for them; some of them may be there
    then."""
    try:
        for begin in range(at, at + nbytes, _AT_ONCE):
            os.posix_fallocate(descriptor, begin, min(_AT_ONCE, at + nbytes - begin))
    except OSError as error:
        let_through(error)
        raise UsageError(
            f"{format_bytes(nbytes)} of memory for samples cannot be reserved ({error.strerror})", "give less memory="
        ) from error


def prefer(memory: NDArray[np.uint8], node: int) -> None:
    """Pages of `memory` come from `node` once they are reserved, whichever process or thread asks, and automatic NUMA
    balancing leaves them there. Raises CapabilityError where the kernel refuses that."""
    try:
        numa.bind(memory.ctypes.data, memory.nbytes, node)
    except NativeError as error:
        raise _refused(node, error) from error


def require_on(memory: NDArray[np.uint8], node: int) -> None:
    """All pages of reserved `memory` are on `node`, as the kernel says; those that came from another one are moved.

    Raises UsageError where they are not, CapabilityError where the kernel does not tell.
    """
    there = 0
    try:
        for begin in range(0, memory.nbytes, _PART):
            part = memory[begin : begin + _PART]
            part[::PAGE_BYTES].max()  # the kernel answers for pages that this process has touched
            address = part.ctypes.data
            found = numa.bytes_on(node, [(address, part.nbytes)])
            there += found if found == part.nbytes else numa.move(address, part.nbytes, node) * PAGE_BYTES
    except NativeError as error:
        raise _refused(node, error) from error
    if there < memory.nbytes:
        raise UsageError(
            f"of {format_bytes(memory.nbytes)} of memory for samples, node {node} took {format_bytes(there)}: it has no"
            " room for more",
            "give less memory=, or another where=",
        )


def _refused(node: int, error: NativeError) -> CapabilityError:
    return CapabilityError(
        f"placing memory for samples on node {node}",
        str(error),
        "allow memory policies (docker: --cap-add SYS_NICE), or leave where= out",
    )
