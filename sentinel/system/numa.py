"""Where pages are and where they go: raw system calls on this process, no libnuma needed."""

from __future__ import annotations

import ctypes
import errno
import mmap
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import NativeError
from sentinel.core.units import PAGE_BYTES
from sentinel.system.kernel import system_call

MPOL_DEFAULT, MPOL_PREFERRED, MPOL_BIND = range(3)
_MPOL_F_ADDR = 2
_MPOL_MF_MOVE = 2
_MASK_BITS = 1024
_BATCH = 16_384


def residency(address: int, nbytes: int) -> NDArray[np.int32]:
    """(pages,) node of each page of [address, address + nbytes), or a negative errno: -ENOENT (-EFAULT before
    Linux 6.12) for a page never touched. Raises NativeError, CapabilityError."""
    first = address // PAGE_BYTES * PAGE_BYTES
    return nodes_of(np.arange(first, address + nbytes, PAGE_BYTES, dtype=np.uint64))


def nodes_of(pages: NDArray[np.uint64]) -> NDArray[np.int32]:
    """As `residency`, of pages by their addresses (n,)."""
    status = np.full(len(pages), -errno.EAGAIN, np.int32)
    for begin in range(0, len(pages), _BATCH):
        part, found = pages[begin : begin + _BATCH], status[begin : begin + _BATCH]
        system_call("move_pages", 0, len(part), part.ctypes.data, None, found.ctypes.data, 0)
    return status


def bytes_on(node: int, ranges: Sequence[tuple[int, int]]) -> int:
    """Bytes of `ranges` (address, nbytes) whose pages are on `node` now."""
    return sum(int((residency(address, nbytes) == node).sum()) for address, nbytes in ranges) * PAGE_BYTES


def about_bytes_on(node: int, ranges: Sequence[tuple[int, int]], most_pages: int = 1 << 18) -> int:
    """As `bytes_on`, but at most the ranges' own bytes of a page, and in bounded time.

    Of more than `most_pages`, 1 GiB, so many are asked for, one at random in each stretch of as many neighbours: the
    answer is then three standard errors below what these say, 0.3 % at most.
    """
    held = np.array([(at, nbytes) for at, nbytes in ranges if nbytes], np.int64).reshape(-1, 2)
    if not len(held):
        return 0
    first = held[:, 0] // PAGE_BYTES
    ends = (-(-held.sum(axis=1) // PAGE_BYTES) - first).cumsum()
    stretch = -(-int(ends[-1]) // most_pages)
    place = np.arange(0, int(ends[-1]), stretch)
    place = np.minimum(place + np.random.default_rng(0).integers(0, stretch, len(place)), ends[-1] - 1)
    of = np.searchsorted(ends, place, "right")
    begins = np.append(0, ends[:-1])
    pages = (first[of] + place - begins[of]) * PAGE_BYTES
    share = float((nodes_of(pages.astype(np.uint64)) == node).mean())
    error = 3 * (share * (1 - share) / len(place)) ** 0.5 if stretch > 1 else 0.0
    return int(max(share - error, 0.0) * int(held[:, 1].sum()))


def move(address: int, nbytes: int, node: int) -> int:
    """Ask once that the pages of [address, address + nbytes) move to `node`; returns how many are there then.

    Raises NativeError with ENODEV or EINVAL for a node that is not there. For tests and probes: the mover does
    this in batches, with retries.
    """
    first = address // PAGE_BYTES * PAGE_BYTES
    pages = np.arange(first, address + nbytes, PAGE_BYTES, dtype=np.uint64)
    nodes, status = np.full(len(pages), node, np.int32), np.full(len(pages), -errno.EAGAIN, np.int32)
    system_call("move_pages", 0, len(pages), pages.ctypes.data, nodes.ctypes.data, status.ctypes.data, _MPOL_MF_MOVE)
    return int((residency(address, nbytes) == node).sum())


def bind(address: int, nbytes: int, node: int, mode: int = MPOL_PREFERRED) -> None:
    """Give whole pages the policy `mode`, "preferably on `node`", and so hide them from automatic NUMA balancing.

    One call an arena: each call may split a mapping. Pages that exist stay where they are. Raises NativeError.
    """
    system_call("mbind", address, nbytes, mode, _mask(node), _MASK_BITS, 0)


def unbind(address: int, nbytes: int) -> None:
    """Take the policy of whole pages back. Raises NativeError."""
    system_call("mbind", address, nbytes, MPOL_DEFAULT, None, 0, 0)


def prefer_from_now_on(node: int) -> None:
    """Pages that the calling thread touches from now on come from `node` where that has room, and automatic NUMA
    balancing leaves them there: memory that has a policy of its own aside. Threads and programs that this thread starts
    have the same policy, and so has what it becomes by exec. Raises NativeError."""
    system_call("set_mempolicy", MPOL_PREFERRED, _mask(node), _MASK_BITS)


def policy(address: int) -> tuple[int, tuple[int, ...]]:
    """(mode, nodes) of the memory policy at `address`. Raises NativeError."""
    mode, mask = ctypes.c_int(-1), (ctypes.c_uint64 * (_MASK_BITS // 64))()
    system_call("get_mempolicy", ctypes.byref(mode), mask, _MASK_BITS, address, _MPOL_F_ADDR)
    nodes = tuple(64 * word + bit for word, bits in enumerate(mask) for bit in range(64) if bits >> bit & 1)
    return mode.value, nodes


class Page:
    """A page of this process, touched; gives its address."""

    def __enter__(self) -> int:
        self._memory = mmap.mmap(-1, PAGE_BYTES)
        self._memory[0] = 1
        self._anchor = ctypes.c_char.from_buffer(self._memory)
        return ctypes.addressof(self._anchor)

    def __exit__(self, *_: object) -> None:
        del self._anchor
        self._memory.close()


def node_of_fresh_page() -> int:
    """Node on which a page that this thread touches now is put. Raises NativeError."""
    with Page() as address:
        node = int(residency(address, PAGE_BYTES)[0])
    if node < 0:
        raise NativeError("move_pages", -node, "asked where a fresh page is")
    return node


def _mask(node: int) -> ctypes.Array[ctypes.c_uint64]:
    if not 0 <= node < _MASK_BITS:
        raise NativeError("mbind", errno.EINVAL, f"node {node} is out of range")
    mask = (ctypes.c_uint64 * (_MASK_BITS // 64))()
    mask[node // 64] = 1 << node % 64
    return mask
