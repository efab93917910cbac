"""Files of records of one size: the rows of `.npy` arrays, and files without a header such as tokens in a `.bin`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sentinel.core.errors import FormatError, UsageError
from sentinel.data.sources.source import Buffer, FileRanges, SourceFile


class Rows:
    """The rows of `.npy` files. A sample is `array[i]`, as an array of its own."""

    kind = "npy"

    def __init__(self) -> None:
        self._dtype = np.dtype(np.uint8)
        self._shape: tuple[int, ...] | None = None

    def scan(self, file: SourceFile) -> FileRanges:
        """Where the rows of one file lie. Raises FormatError for pickled objects, Fortran order and rows unlike those
        of the files before it."""
        shape, dtype, begin = _header(file.path)
        row = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
        if self._shape is None:
            self._dtype, self._shape = dtype, shape[1:]
        if (dtype, shape[1:]) != (self._dtype, self._shape):
            raise FormatError(
                file.path,
                "npy",
                f"has rows of {shape[1:]} {dtype}, the first file of {self._shape} {self._dtype};"
                " give files of one form",
            )
        if not shape[0] or not row:
            raise FormatError(file.path, "npy", "has no row with bytes in it; leave it out")
        if begin + shape[0] * row != file.nbytes:
            raise FormatError(
                file.path,
                "npy",
                f"has {file.nbytes} bytes, its header says {begin + shape[0] * row}: it is cut short; copy it anew",
            )
        return _ranges(begin, shape[0], row)

    def decode(self, data: Buffer, path: str) -> NDArray[Any]:
        """One row."""
        if self._shape is None:  # the index came from the cache
            shape, self._dtype, _ = _header(path)
            self._shape = shape[1:]
        return np.frombuffer(bytearray(data), self._dtype).reshape(self._shape)


class Records:
    """Records of `dtype` and `shape` one after the other, without a header. A sample is an array."""

    def __init__(self, dtype: DTypeLike, shape: int | tuple[int, ...]) -> None:
        self._dtype = np.dtype(dtype)
        self._shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self._nbytes = int(np.prod(self._shape, dtype=np.int64)) * self._dtype.itemsize
        if self._dtype.hasobject or self._nbytes < 1 or min(self._shape, default=1) < 1:
            raise UsageError(
                f"records of {self._shape} {self._dtype} hold no bytes", 'write dtype="uint16", shape=1024'
            )
        self.kind = f"records of {'x'.join(map(str, self._shape))} {self._dtype.str}"

    def scan(self, file: SourceFile) -> FileRanges:
        """Where the records of one file lie; bytes at its end that make no whole record are left out."""
        count = file.nbytes // self._nbytes
        if not count:
            raise FormatError(
                file.path, "records", f"has {file.nbytes} bytes, a record {self._nbytes}; give a smaller shape"
            )
        return _ranges(0, count, self._nbytes)

    def decode(self, data: Buffer, path: str) -> NDArray[Any]:
        """One record."""
        if len(data) != self._nbytes:
            raise FormatError(path, "records", f"a record has {len(data)} bytes, not {self._nbytes}; index it anew")
        return np.frombuffer(bytearray(data), self._dtype).reshape(self._shape)


def _ranges(begin: int, count: int, nbytes: int) -> FileRanges:
    begins = begin + np.arange(count, dtype=np.int64) * nbytes
    return FileRanges(begins, np.full(count, nbytes, np.int64))


def _header(path: str) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """(shape, dtype, first byte of the rows) of a `.npy` file."""
    try:
        with open(path, "rb") as file:
            version = np.lib.format.read_magic(file)
            read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            if version not in read:
                raise FormatError(path, "npy", f"is of version {version}; save it with numpy.save")
            shape, fortran, dtype = read[version](file)
            begin = file.tell()
    except OSError as error:
        raise FormatError(path, "file", f"cannot be read: {error.strerror}; check the path") from error
    except (ValueError, EOFError) as error:
        raise FormatError(path, "npy", f"has no sound header ({str(error)[:80]}); save it anew") from error
    if dtype.hasobject:
        raise FormatError(path, "npy", "holds pickled objects, which are never loaded; save an array of numbers")
    if not shape or (fortran and len(shape) > 1):
        what = "is in Fortran order, so that a row has no place of its own" if shape else "is a number without rows"
        raise FormatError(path, "npy", f"{what}; save numpy.ascontiguousarray(array)")
    return shape, dtype, begin
