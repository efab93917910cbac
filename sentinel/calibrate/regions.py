"""Memory whose node and page size are known, for measurements."""

from __future__ import annotations

import ctypes
import errno
import mmap
from pathlib import Path
from types import TracebackType

from sentinel.core.errors import CapabilityError, NativeError
from sentinel.core.units import HUGE_PAGE_BYTES, PAGE_BYTES, format_bytes
from sentinel.system import numa

_PIECE = 16 << 20  # touched between two chances of an interrupt
_MADV_HUGEPAGE, _MADV_NOHUGEPAGE = 14, 15


class Region:
    """`nbytes` of touched private memory, aligned to huge pages. `node` None: wherever the kernel puts it.

    Raises CapabilityError, nothing kept, where the node does not take it.
    """

    def __init__(self, nbytes: int, node: int | None, *, huge: bool) -> None:
        self.nbytes, self._node = nbytes, node
        self._map = mmap.mmap(-1, nbytes + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        try:
            self._anchor: ctypes.c_char | None = ctypes.c_char.from_buffer(self._map)
            base = ctypes.addressof(self._anchor)
            self.address = -(-base // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
            self._advise(_MADV_HUGEPAGE if huge else _MADV_NOHUGEPAGE, self.address - base)
            if node is not None:
                numa.bind(self.address, nbytes, node)
            for offset in range(0, nbytes, _PIECE):
                ctypes.memset(self.address + offset, 0x5A, min(_PIECE, nbytes - offset))
            self.require_home()
        except NativeError as error:
            self.close()
            raise CapabilityError(
                f"putting {format_bytes(nbytes)} on node {node}",
                str(error),
                "containers often forbid memory policies: allow them (docker: --cap-add SYS_NICE), or run outside",
            ) from error
        except BaseException:
            self.close()
            raise

    def require_home(self) -> None:
        """Brings pages that were born elsewhere, for want of free memory, to the node. CapabilityError if some stay."""
        if self._node is None:
            return
        wanted = self.nbytes // PAGE_BYTES
        here = int((numa.residency(self.address, self.nbytes) == self._node).sum())
        if here < wanted:
            here = numa.move(self.address, self.nbytes, self._node)
        if here < wanted:
            raise CapabilityError(
                f"putting {format_bytes(self.nbytes)} on node {self._node}",
                f"only {format_bytes(here * PAGE_BYTES)} found room there",
                "free memory of that node, or take a smaller --size",
            )

    def huge_bytes(self) -> int:
        """Bytes of it, and of what the kernel joined with it, that lie in huge pages now."""
        found, inside = 0, False
        for line in Path("/proc/self/smaps").read_text(errors="surrogateescape").splitlines():
            first = line.split(" ", 1)[0]
            if "-" in first and not first.endswith(":"):
                low, high = (int(word, 16) for word in first.split("-"))
                inside = low < self.address + self.nbytes and high > self.address
            elif inside and line.startswith("AnonHugePages:"):
                found += int(line.split()[1]) << 10
        return min(found, self.nbytes)

    def close(self) -> None:
        """Gives the memory back."""
        self._anchor = None
        self._map.close()

    def __enter__(self) -> Region:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _advise(self, advice: int, offset: int) -> None:
        try:
            self._map.madvise(advice, offset, self.nbytes)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a kernel without huge pages: pages are small anyway
                raise
