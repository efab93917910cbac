"""Files of records of one size: rows of `.npy` and `.safetensors`; files without a header, such as tokens in `.bin`."""

from __future__ import annotations

import json
import math
import tokenize
from operator import index
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sentinel.core.errors import FormatError, UsageError
from sentinel.data.sources.source import Buffer, FileRanges, SourceFile, check_few
from sentinel.data.sources.stored_file import Stream, cannot_be_read, file_at, opened

_OF_NUMPY = {"BOOL": "?", "U8": "<u1", "I8": "<i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4"}
_OF_NUMPY |= {"U64": "<u8", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8"}
_TORCH_NAMES = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
"""Numbers of safetensors that numpy does not have."""
_OF_TORCH = {"bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}
"""Torch's names and their bytes."""
_MOST_HEADER = 100_000_000
"""Bytes, as the format says."""


class Rows:
    """The rows of `.npy` files, or of one tensor of `.safetensors` files. A sample is `array[i]`, as an array of its
    own; as a torch tensor where numpy has no such numbers, such as BF16."""

    def __init__(self, kind: str = "npy", tensor: str | None = None) -> None:
        """`kind`: "npy" or "safetensors". `tensor`: its name there, which need not be told where there is but one."""
        self.kind = kind if tensor is None else f"{kind} {tensor}"
        self._tensor = tensor
        self._form: tuple[tuple[int, ...], np.dtype[Any] | str] | None = None
        """Shape and dtype of a row."""

    def scan(self, file: SourceFile) -> FileRanges:
        """Where the rows of one file lie. Raises FormatError for pickled objects, Fortran order and rows unlike those
        of the files before it."""
        table = self._table(file)
        form = table.shape[1:], table.dtype
        self._form = self._form or form
        if form != self._form:
            raise FormatError(
                file.path,
                table.field,
                f"has rows of {form[0]} {form[1]}, the first file of {self._form[0]} {self._form[1]};"
                " give files of one form",
            )
        row = math.prod(form[0]) * _itemsize(form[1])
        if not table.shape[0] or not row:
            raise FormatError(file.path, table.field, "has no row with bytes in it; leave it out")
        if table.begin + table.shape[0] * row != table.end:
            raise FormatError(
                file.path,
                table.field,
                f"has {table.end} bytes, its header says {table.begin + table.shape[0] * row}: it is cut short;"
                " copy it again",
            )
        return _ranges(table.begin, table.shape[0], row)

    def _table(self, file: SourceFile) -> _Table:
        return _of_npy(file) if self.kind == "npy" else _of_safetensors(file, self._tensor)

    def decode(self, data: Buffer, path: str) -> NDArray[Any] | Any:
        """One row."""
        if self._form is None:  # the index came from the cache
            table = self._table(file_at(path))
            self._form = table.shape[1:], table.dtype
        shape, dtype = self._form
        if isinstance(dtype, str):
            import torch

            return torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).reshape(shape)
        return np.frombuffer(bytearray(data), dtype).reshape(shape)


class Records:
    """Records of `dtype` and `shape` one after the other, without a header. A sample is an array."""

    def __init__(self, dtype: DTypeLike, shape: int | tuple[int, ...]) -> None:
        try:
            self._dtype = np.dtype(dtype)
        except (TypeError, ValueError, SyntaxError) as error:  # numpy has Python parse parts of it
            raise UsageError(f"there is no dtype {dtype!r}", 'write dtype="uint16", shape=1024') from error
        try:
            self._shape = tuple(map(index, shape if isinstance(shape, tuple | list) else (shape,)))
        except TypeError as error:
            raise UsageError(f"there is no shape {shape!r}", 'write dtype="uint16", shape=1024') from error
        self._nbytes = math.prod(self._shape) * self._dtype.itemsize
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
            raise FormatError(path, "records", f"a record has {len(data)} bytes, not {self._nbytes}; index it again")
        return np.frombuffer(bytearray(data), self._dtype).reshape(self._shape)


def _ranges(begin: int, count: int, nbytes: int) -> FileRanges:
    check_few(count)
    begins = begin + np.arange(count, dtype=np.int64) * nbytes
    return FileRanges(begins, np.full(count, nbytes, np.int64))


class _Table(NamedTuple):
    """Rows in a file: bytes [begin, end). `dtype`: numpy's, or torch's name. `field`: the format, for errors."""

    field: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | str
    begin: int
    end: int


def _itemsize(dtype: np.dtype[Any] | str) -> int:
    return _OF_TORCH[dtype] if isinstance(dtype, str) else dtype.itemsize


def _of_npy(file: SourceFile) -> _Table:
    path = file.path
    try:
        stream = Stream(opened(path), file.nbytes)
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in read:
            raise FormatError(path, "npy", f"is of version {version}; save it with numpy.save")
        shape, fortran, dtype = read[version](stream)
    except OSError as error:
        raise cannot_be_read(path, "file", error) from error
    except (ValueError, EOFError, SyntaxError, tokenize.TokenError) as error:  # numpy has Python parse it
        raise FormatError(path, "npy", f"has no sound header ({str(error)[:80]}); save it again") from error
    if dtype.hasobject:
        raise FormatError(path, "npy", "holds pickled objects, which are never loaded; save an array of numbers")
    if not shape or (fortran and len(shape) > 1):
        what = "is in Fortran order, so that a row has no place of its own" if shape else "is a number without rows"
        raise FormatError(path, "npy", f"{what}; save numpy.ascontiguousarray(array)")
    return _Table("npy", shape, dtype, stream.tell(), file.nbytes)


def _of_safetensors(file: SourceFile, tensor: str | None) -> _Table:
    path = file.path
    try:
        source = opened(path)
        length = int.from_bytes(source.read(0, 8), "little")
        if not 2 <= length <= min(_MOST_HEADER, file.nbytes - 8):
            raise FormatError(path, "safetensors", "has no sound header; save it again")
        header = json.loads(source.read(8, length))
        tables = {name: told for name, told in header.items() if name != "__metadata__"}
        name = tensor if tensor is not None or len(tables) != 1 else next(iter(tables))
        if name not in tables:
            there = ", ".join(sorted(tables)[:8]) or "none"
            what = "has several tensors" if tensor is None else f"has no tensor {tensor!r}"
            raise FormatError(path, "safetensors", f"{what} ({there}); name one, as `--tensor` or tensor=")
        told = tables[name]
        shape, dtype, (begin, end) = tuple(told["shape"]), told["dtype"], told["data_offsets"]
        if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
            raise TypeError("its shape and offsets are no numbers")
    except OSError as error:
        raise cannot_be_read(path, "file", error) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(path, "safetensors", f"has no sound header ({str(error)[:80]}); save it again") from error
    if dtype not in _OF_NUMPY and dtype not in _TORCH_NAMES:
        raise FormatError(path, "safetensors", f"has numbers of {dtype!r}, which are not read; save others")
    if not shape:
        raise FormatError(path, "safetensors", f"{name!r} is a number without rows; name another tensor")
    if 8 + length + end > file.nbytes:
        raise FormatError(path, "safetensors", f"is cut short: {name!r} reaches beyond its end; copy it again")
    kind = np.dtype(_OF_NUMPY[dtype]) if dtype in _OF_NUMPY else _TORCH_NAMES[dtype]
    return _Table("safetensors", shape, kind, 8 + length + begin, 8 + length + end)
