"""Where this process's malloc would put allocations: asked, with no byte of them touched."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import CapabilityError
from sentinel.core.units import format_bytes

ALIGNMENT = 64
"""Of torch's CPU allocator (c10/core/alignment.h), which calls posix_memalign."""


def replay(calls: NDArray[np.int64]) -> NDArray[np.int64]:
    """(k,) address that each row of `calls` gets, 0 for a free.

    `calls` (k, 2), in order: block and nbytes; 0 bytes: the block is freed. All is freed again in the end. What is
    preloaded instead of the C library's malloc is asked in its place. Call it from the thread whose allocations
    these were: malloc keeps an arena a thread. Raises CapabilityError if malloc refuses.
    """
    library = ctypes.CDLL(None)
    allocate, free = library.posix_memalign, library.free
    allocate.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    free.argtypes, free.restype = [ctypes.c_void_p], None
    place = ctypes.c_void_p()
    where = ctypes.addressof(place)
    held: dict[int, int] = {}
    found = np.zeros(len(calls), np.int64)
    try:
        for at, (block, nbytes) in enumerate(calls.tolist()):
            if nbytes == 0:
                free(held.pop(block))
            elif allocate(where, ALIGNMENT, nbytes):
                raise CapabilityError(
                    "replaying allocations through malloc",
                    f"it refused {format_bytes(nbytes)}",
                    "raise the limit on address space (ulimit -v unlimited, vm.overcommit_memory=0)",
                )
            else:
                found[at] = held[block] = place.value or 0
    finally:
        for address in held.values():
            free(address)
    return found
