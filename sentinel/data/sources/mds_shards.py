"""MDS, the shards of mosaicml-streaming: raw ones, and compressed ones, which are chunks that are decoded as a whole.

A folder has an `index.json`, which tells columns, shards and compression. A shard is: the number n of its samples;
where each begins and where the last one ends, n + 1 numbers; what the index tells of columns, as JSON; the samples.
A sample is: the sizes of those columns that have no fixed one; the columns. All these numbers are little uint32.
"""

from __future__ import annotations

import bz2
import json
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import FormatError
from sentinel.core.interrupts import let_through
from sentinel.data.sources.source import Buffer, FileChunks, FileRanges, SourceFile, pyarrow_for
from sentinel.data.sources.stored_file import OpenedFile, asked_of_store, cannot_be_read, file_at, is_url, opened

INDEX = "index.json"
_U32 = np.dtype("<u4")
_NUMBERS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
_OF_ARRAYS = {8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32"}
_OF_ARRAYS |= {64: "uint64", 65: "int64", 66: "float64"}
"""The byte that tells the numbers of an array."""
_OF_TEXT: dict[str, Callable[[str], Any]] = {
    "str": str,
    "json": json.loads,
    "str_int": int,
    "str_float": float,
    "str_decimal": Decimal,
}
_OF_DAMAGE = (ValueError, TypeError, LookupError, StopIteration, ArithmeticError, OSError, RecursionError, MemoryError)
"""What decoding a column that is not what the index says may raise."""
_ENCODINGS = {"bytes", "int", "ndarray", "pil", "jpeg", "png", *_NUMBERS, *_OF_TEXT}
_CODECS = {"zstd": "zstd", "br": "brotli", "snappy": "snappy"}
"""What the index calls a compression: what pyarrow calls it."""
_UNPACKED: dict[str, Callable[[], Any]] = {"gz": lambda: zlib.decompressobj(31), "bz2": bz2.BZ2Decompressor}
_MOST_RAW = 1 << 32
"""Bytes of a raw shard are fewer: its offsets are uint32."""


@dataclass(frozen=True)
class _Shard:
    """What the index tells of a shard. `compression`: None for a raw file. `raw_nbytes`: of the raw file."""

    samples: int
    compression: str | None
    raw_nbytes: int


@dataclass(frozen=True, eq=False)
class _UnpackedShard:
    """A raw shard. `ends`: (samples + 1,) as `_ends` has them."""

    data: Buffer
    ends: NDArray[np.int64]

    def samples(self, numbers: NDArray[np.int64]) -> tuple[Buffer, NDArray[np.int64], NDArray[np.int64]]:
        """As UnpackedChunk says: where they lie in the shard."""
        begins = self.ends[numbers]
        return self.data, begins, self.ends[numbers + 1] - begins


class MdsShards:
    """A sample is a dict of its columns."""

    kind = "mds"

    def __init__(self, columns: list[tuple[str, str, int | None]], shards: dict[str, _Shard]) -> None:
        """`columns`: name, encoding, fixed size in bytes. `shards`: by path."""
        self._columns, self._shards = columns, shards

    def scan(self, file: SourceFile) -> FileRanges | FileChunks:
        """Where the samples of one shard lie: only its begin is read."""
        shard, source = self._shards[file.path], opened(file.path)
        ends = _ends(file.path, source.read(0, 4 + 4 * (shard.samples + 1)), shard, file.nbytes)
        return FileRanges(ends[:-1], np.diff(ends))

    def decode(self, data: Buffer, path: str) -> dict[str, Any]:
        """The sample in its bytes. Raises FormatError where these are not what the index tells."""
        view, sample = memoryview(data), {}
        unsized = sum(size is None for _, _, size in self._columns)
        at = 4 * unsized
        try:
            sizes = iter(np.frombuffer(view[:at], _U32).tolist())
            for name, encoding, fixed in self._columns:
                nbytes = next(sizes) if fixed is None else fixed
                if at + nbytes > len(view):
                    raise ValueError("it ends within a column")
                sample[name] = _decoded(encoding, bytes(view[at : at + nbytes]))
                at += nbytes
        except _OF_DAMAGE as error:
            let_through(error)
            raise FormatError(path, "mds", f"has a damaged sample ({str(error)[:80]}); copy the shard again") from error
        return sample


class PackedMdsShards(MdsShards):
    """The same of compressed files, each of which is a chunk. To index them is to read all of them, once."""

    def scan(self, file: SourceFile) -> FileChunks:
        """The sizes of the samples of one shard, which is read and unpacked for them."""
        _, ends = self._unpacked(opened(file.path), file.nbytes)
        return FileChunks.encoded([0], [file.nbytes], [np.diff(ends)])

    def unpack(self, file: OpenedFile, nbytes: int, number: int) -> _UnpackedShard:  # noqa: ARG002  # it is the only one
        """The whole shard."""
        return _UnpackedShard(*self._unpacked(file, nbytes))

    def _unpacked(self, file: OpenedFile, nbytes: int) -> tuple[Buffer, NDArray[np.int64]]:
        path, shard = file.path, self._shards[file.path]
        packed = file.read(0, nbytes)
        data: Buffer = packed
        try:
            if shard.compression in _UNPACKED:
                data = _expanded(packed, shard.raw_nbytes, _UNPACKED[shard.compression])
            elif shard.compression is not None:
                data = memoryview(_codec(shard.compression).decompress(packed, shard.raw_nbytes))
        except (OSError, EOFError, ValueError, zlib.error, MemoryError) as error:
            let_through(error)
            said = str(error)[:80] or type(error).__name__
            raise FormatError(path, "mds", f"cannot be unpacked ({said}); copy it again") from error
        return data, _ends(path, data, shard, len(data))


def has_index(folder: str) -> bool:
    """Whether a folder is one of MDS shards."""
    path = os.path.join(folder, INDEX)
    if is_url(path):
        return bool(asked_of_store(path, lambda store, name: store.exists(name)))
    return os.path.exists(path)


def mds_shards(folder: str) -> tuple[list[str], MdsShards]:
    """Paths of the shards of a folder, and their reader. Raises FormatError for an index that is not sound, and for
    columns that are not read: pickled ones never are."""
    folder = folder if is_url(folder) else os.path.abspath(folder)  # as a loader names files
    path = os.path.join(folder, INDEX)
    try:
        told = json.loads(opened(path).read(0, file_at(path).nbytes))
        shards: dict[str, _Shard] = {}
        columns: list[tuple[str, str, int | None]] | None = None
        for shard in told["shards"]:
            if shard["format"] != "mds":
                raise FormatError(path, "index", f"tells of {shard['format']!r} shards; write them again by MDSWriter")
            names = shard["column_names"], shard["column_encodings"], shard["column_sizes"]
            own = list(zip(*names, strict=True))
            if columns is not None and own != columns:
                raise FormatError(path, "index", "tells of shards of unlike columns; give folders of one form")
            columns = own
            where, found = _found(folder, shard)
            shards[where] = found
    except OSError as error:
        raise cannot_be_read(path, "file", error) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            path,
            "index",
            f"is not an index of MDS shards ({str(error)[:80]}); copy it again, or, where"
            " the other files of its folder are the samples, move it away",
        ) from error
    if not columns:
        raise FormatError(path, "index", "tells of no shards; check that the writer was closed")
    for name, encoding, _ in columns:
        if encoding == "pkl":
            what = "is pickled, and reading a pickle can run any program"
        elif encoding.partition(":")[0] not in _ENCODINGS:
            what = f"is encoded as {encoding!r}, which is not read"
        else:
            continue
        raise FormatError(path, "index", f"column {name!r} {what}; write it again as json, ndarray or bytes")
    packed = any(shard.compression for shard in shards.values())
    return list(shards), (PackedMdsShards if packed else MdsShards)(columns, shards)


def _found(folder: str, told: dict[str, Any]) -> tuple[str, _Shard]:
    """Path and form of a shard: its raw file where there is one, else its compressed one."""
    raw, packed, samples = told["raw_data"], told["zip_data"], told["samples"]
    path = os.path.join(folder, raw["basename"])
    compression = (told["compression"] or "").partition(":")[0] or None
    if compression and packed and not (not is_url(path) and os.path.exists(path)):
        if compression not in _CODECS and compression not in _UNPACKED:
            raise ValueError(f"compression {compression!r} is not known")
        path = os.path.join(folder, packed["basename"])
    else:
        compression = None
    nbytes = raw["bytes"]
    if type(samples) is not int or samples < 1 or type(nbytes) is not int or not 0 < nbytes < _MOST_RAW:
        raise ValueError(f"{raw['basename']} has {samples!r} samples in {nbytes!r} bytes")
    return path, _Shard(samples, compression, nbytes)


def _ends(path: str, data: Buffer, shard: _Shard, nbytes: int) -> NDArray[np.int64]:
    """(samples + 1,) Where each sample begins in a raw shard of `nbytes`, and where the last one ends."""
    samples, head = shard.samples, 4 + 4 * (shard.samples + 1)
    if len(data) < head or nbytes != shard.raw_nbytes:
        what = f"has {nbytes} bytes, the index says {shard.raw_nbytes}"
        raise FormatError(path, "mds", f"{what}: it was cut short; copy it again")
    numbers = np.frombuffer(data, _U32, samples + 2).astype(np.int64)
    ends = numbers[1:]
    if numbers[0] != samples or ends[0] < head or ends[-1] != nbytes or (np.diff(ends) < 1).any():
        raise FormatError(path, "mds", "does not say where its samples lie; copy it again")
    return ends


def _expanded(packed: bytes, nbytes: int, made: Callable[[], Any]) -> bytes:
    """What is in all streams of `packed`, which is at most `nbytes`: a small file may hold any number of them."""
    parts: list[bytes] = []
    left = nbytes
    while packed:
        stream = made()
        parts.append(stream.decompress(packed, left + 1))
        left -= len(parts[-1])
        if left < 0:
            raise ValueError(f"it holds more than the {nbytes} bytes that the index says")
        if not stream.eof:
            raise EOFError("it was cut short")
        packed = stream.unused_data.lstrip(b"\0")  # tapes are filled up with zeros
    return b"".join(parts)


def _codec(compression: str) -> Any:
    return pyarrow_for(f"reading shards packed by {compression}").Codec(_CODECS[compression])


def _decoded(encoding: str, data: bytes) -> Any:
    """What a column's bytes stand for, as users of the format know it; pictures as bytes where Pillow is not there."""
    name, _, form = encoding.partition(":")
    if name == "bytes":
        return data
    if name == "int":
        return int(np.frombuffer(data, "<i8")[0])
    if name in _NUMBERS:
        return np.frombuffer(data, np.dtype(name).newbyteorder("<"))[0]
    if name == "ndarray":
        return _array(data, form)
    if name in ("pil", "jpeg", "png"):
        return _picture(name, data)
    text = str(data, "utf-8")
    return _OF_TEXT[name](text)


def _array(data: bytes, form: str) -> NDArray[Any]:
    """`form`: nothing, the dtype, or dtype and shape, as `float32:3,4`; what it doesn't tell comes before the values: a
    byte for the dtype, and one for the number of axes and the size of the numbers of the shape, then these."""
    dtype, _, shape = form.partition(":")
    at = 0
    if not dtype:
        dtype, at = _OF_ARRAYS[data[0]], 1
    if shape:
        sizes = [int(word) for word in shape.split(",")]
    else:
        axes, width = data[at] >> 2, 1 << (data[at] & 3)
        sizes = np.frombuffer(data, f"<u{width}", axes, at + 1).tolist()
        at += 1 + axes * width
    return np.frombuffer(bytearray(data[at:]), np.dtype(dtype).newbyteorder("<")).reshape(sizes)


def _picture(name: str, data: bytes) -> Any:
    """A picture of Pillow. A raw one has width, height and the length of its mode before the mode and the pixels."""
    try:
        from PIL import Image
    except ImportError:
        return data
    if name != "pil":
        try:
            return Image.open(BytesIO(data), formats=[name])  # of others there are some that start programs
        except Image.DecompressionBombError as error:
            raise ValueError(error) from error
    width, height, length = np.frombuffer(data, _U32, 3).tolist()
    if width * height > 8 * len(data):
        raise ValueError(f"a picture of {width} x {height} in {len(data)} bytes")
    return Image.frombytes(str(data[12 : 12 + length], "ascii"), (width, height), data[12 + length :])
