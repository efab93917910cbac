"""A few calls of io_uring, by number: reading a file into memory that was pinned beforehand."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from types import TracebackType

_SETUP, _ENTER, _REGISTER = 425, 426, 427
_OFF_SQ_RING, _OFF_CQ_RING, _OFF_SQES = 0, 0x8000000, 0x10000000
_SQ_AT, _CQ_AT = 40, 80  # struct io_uring_params: sq_off, cq_off
_READ_FIXED, _GETEVENTS = 4, 1
_libc = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: object) -> int:
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(_libc.syscall(ctypes.c_long(number), *words))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


class FixedBuffer:
    """[address, address + nbytes), pinned while it is entered. OSError where io_uring is not allowed."""

    def __init__(self, address: int, nbytes: int) -> None:
        self._address, self._nbytes = address, nbytes
        parameters = ctypes.create_string_buffer(120)
        self._ring = _call(_SETUP, 1, parameters)
        self._sq = struct.unpack_from("=10I", parameters, _SQ_AT)
        self._cq = struct.unpack_from("=10I", parameters, _CQ_AT)
        self._maps = [mmap.mmap(self._ring, 4096, offset=at) for at in (_OFF_SQ_RING, _OFF_CQ_RING, _OFF_SQES)]

    def __enter__(self) -> FixedBuffer:
        iovec = ctypes.create_string_buffer(struct.pack("=QQ", self._address, self._nbytes))
        _call(_REGISTER, self._ring, 0, iovec, 1)
        return self

    def read(self, descriptor: int) -> int:
        """Fill it from the start of a file; bytes read."""
        submissions, completions, entries = self._maps
        entry = struct.pack("=BBHiQQIIQH", _READ_FIXED, 0, 0, descriptor, 0, self._address, self._nbytes, 0, 7, 0)
        entries[: len(entry)] = entry
        tail_at, array_at = self._sq[1], self._sq[6]
        struct.pack_into("=I", submissions, array_at, 0)
        (tail,) = struct.unpack_from("=I", submissions, tail_at)
        struct.pack_into("=I", submissions, tail_at, tail + 1)
        _call(_ENTER, self._ring, 1, 1, _GETEVENTS, None, 0)
        head_at, mask_at, cqes_at = self._cq[0], self._cq[2], self._cq[5]
        (head,), (mask,) = (struct.unpack_from("=I", completions, at) for at in (head_at, mask_at))
        user_data, result = struct.unpack_from("=Qi", completions, cqes_at + 16 * (head & mask))
        struct.pack_into("=I", completions, head_at, head + 1)
        assert user_data == 7
        if result < 0:
            raise OSError(-result, os.strerror(-result))
        return int(result)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for shared in self._maps:
            shared.close()
        os.close(self._ring)
