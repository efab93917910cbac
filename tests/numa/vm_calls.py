"""The kernel's calls on pages and policies by ctypes alone, so that nothing of Sentinel judges itself."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

PAGE = mmap.PAGESIZE
NODES = Path("/sys/devices/system/node")
MPOL_BIND, MPOL_PREFERRED_MANY = 2, 5
_MOVE_PAGES, _MBIND, _MIGRATE = {"x86_64": (279, 237, 256), "aarch64": (239, 235, 238)}[platform.machine()]
_MPOL_MF_MOVE = 2
_NOT_SET = -999  # statuses are valid only where the kernel wrote them

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


class Pages:
    """Private anonymous memory of `n_pages` 4 KiB pages, each written once with its own number."""

    def __init__(self, n_pages: int, *, huge: bool = False) -> None:
        align = 2 << 20
        self.n_pages = n_pages
        self._nbytes = n_pages * PAGE + align
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._base = _libc.mmap(None, self._nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        self.address = -(-self._base // align) * align
        advice = mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE
        assert _libc.madvise(ctypes.c_void_p(self.address), ctypes.c_size_t(n_pages * PAGE), advice) == 0
        # a first access that reads, as ctypes' setters do, would map the huge zero page, and a write then splits it
        ctypes.memset(self.address, 0xFF, n_pages * PAGE)
        self.words = (ctypes.c_uint64 * (n_pages * PAGE // 8)).from_address(self.address)
        for page in range(n_pages):
            self.words[page * PAGE // 8] = page

    def addresses(self) -> list[int]:
        return [self.address + page * PAGE for page in range(self.n_pages)]

    def touch(self) -> bool:
        """Reads every page; whether each still holds its number."""
        return all(self.words[page * PAGE // 8] == page for page in range(self.n_pages))

    def nodes(self) -> Counter[int]:
        """Where the pages are: node -> pages, a negative errno for those that are nowhere."""
        return Counter(move_pages(self.addresses(), None))

    def touched_nodes(self) -> Counter[int]:
        """As `nodes`, after all of them were read, unharmed."""
        assert self.touch()
        return self.nodes()

    def close(self) -> None:
        _libc.munmap(ctypes.c_void_p(self._base), ctypes.c_size_t(self._nbytes))


def move_pages(addresses: Sequence[int], node: int | None) -> list[int]:
    """Moves pages to a node, or with None asks where they are. Returns the status of each."""
    count = len(addresses)
    pages = (ctypes.c_void_p * count)(*addresses)
    nodes = None if node is None else (ctypes.c_int * count)(*[node] * count)
    status = (ctypes.c_int * count)(*[_NOT_SET] * count)
    back = _libc.syscall(_MOVE_PAGES, 0, ctypes.c_ulong(count), pages, nodes, status, _MPOL_MF_MOVE)
    if back < 0:
        raise OSError(ctypes.get_errno(), f"move_pages of {count} pages to node {node}")
    return list(status)


def migrate_process(process: int, from_node: int, to_node: int) -> int:
    """Moves what a process has on one node to another, pages shared with others included."""
    nodes = [ctypes.byref(ctypes.c_ulong(1 << node)) for node in (from_node, to_node)]
    return int(_libc.syscall(_MIGRATE, process, ctypes.c_ulong(64), *nodes))


def mbind(address: int, nbytes: int, policy: int, nodes: Sequence[int], *, move: bool = False) -> None:
    """Gives a range a memory policy; with `move`, pages that break it are moved."""
    mask = ctypes.c_ulong(sum(1 << node for node in nodes))
    flags = _MPOL_MF_MOVE if move else 0
    if _libc.syscall(
        _MBIND, ctypes.c_void_p(address), ctypes.c_ulong(nbytes), policy, ctypes.byref(mask), ctypes.c_ulong(64), flags
    ):
        raise OSError(ctypes.get_errno(), f"mbind of {nbytes} bytes to nodes {list(nodes)}")


def counter(name: str) -> int:
    """One of the kernel's counts in /proc/vmstat, with what each CPU keeps for itself yet. Needs root."""
    Path("/proc/sys/vm/stat_refresh").read_bytes()
    return int(dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())[name])


@contextlib.contextmanager
def setting(path: str, value: str) -> Iterator[None]:
    """A kernel setting for a while."""
    file = Path(path)
    before = file.read_text().strip()
    file.write_text(value)
    try:
        yield
    finally:
        file.write_text(before)


def has_debugfs() -> bool:
    """Whether debugfs is mounted, after an attempt to mount it."""
    path = "/sys/kernel/debug"
    if not os.path.ismount(path):
        _libc.mount(b"debugfs", path.encode(), b"debugfs", 0, None)
    return os.path.ismount(path)


@contextlib.contextmanager
def eager_balancing(mode: str = "1", every_ms: int = 100) -> Iterator[None]:
    """Automatic NUMA balancing that looks at pages again and again. Needs debugfs."""
    often = "/sys/kernel/debug/sched/numa_balancing/"
    with (
        setting("/proc/sys/kernel/numa_balancing", mode),
        setting(often + "scan_delay_ms", str(every_ms)),
        setting(often + "scan_period_min_ms", str(every_ms)),
        setting(often + "scan_period_max_ms", str(2 * every_ms)),
    ):
        yield
