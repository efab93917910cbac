"""Layout: where the samples of a data set lie, chunk by chunk, in the files that it has."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import UsageError
from sentinel.core.ragged import positions
from sentinel.core.rules import require

_REMEDY = "index the data set again"
_OF_FILES, _OF_CHUNKS, _OF_SAMPLES = ("file_nbytes", "file_mtime_ns"), "chunk_", "sample_"


@dataclass(frozen=True, eq=False)
class Layout:
    """Files, the chunks in them and the samples in those. Sample i is the i-th of the data set: chunks are numbered
    file by file, samples chunk by chunk, so a chunk's samples have neighbouring numbers.

    A chunk is what can be read by one request: a run of samples of a raw file, a Parquet row group, a compressed shard.
    `files`: (n_files) their names as the source gave them. `format`: which reader understands them; `description`: what
    it needs besides, in its own words, such as columns or a dtype. `encoded`: a chunk is read and decoded as a whole.
    Raises UsageError, naming the column and the row, for what cannot be.
    """

    format: str
    files: tuple[str, ...]
    file_nbytes: NDArray[np.int64]
    """(n_files,) Size when the layout was made."""
    file_mtime_ns: NDArray[np.int64]
    """(n_files,) Time of the last change, then; no part of the digest."""
    chunk_file: NDArray[np.int32]
    """(n_chunks,) Index of the file, never less than that of the chunk before."""
    chunk_offset: NDArray[np.int64]
    """(n_chunks,) Where the chunk begins in its file, in bytes; in an encoded one also a number of the format's own."""
    chunk_nbytes: NDArray[np.int64]
    """(n_chunks,) Bytes that reading it takes from the source."""
    chunk_samples: NDArray[np.int32]
    """(n_chunks,) How many samples lie in it, at least 1."""
    sample_offset: NDArray[np.int64]
    """(n_samples,) Where the sample begins in its chunk, in bytes; if `encoded`, in the decoded chunk."""
    sample_nbytes: NDArray[np.int64]
    """(n_samples,) Bytes that the sample takes in the arena, at least 1."""
    encoded: bool = False
    description: str = ""

    def __post_init__(self) -> None:
        for f in fields(self):
            column = getattr(self, f.name)
            if f.name.startswith((*_OF_FILES, _OF_CHUNKS, _OF_SAMPLES)):
                dtype = np.dtype(np.int32 if f.name in ("chunk_file", "chunk_samples") else np.int64)
                if not isinstance(column, np.ndarray) or column.dtype != dtype or column.ndim != 1:
                    raise UsageError(f"layout: {f.name} is no column of {dtype}", _REMEDY)
        self._lengths_fit()
        self._rows_fit()

    def _lengths_fit(self) -> None:
        n_files, n_chunks, n_samples = len(self.files), self.n_chunks, self.n_samples
        if not n_samples:
            raise UsageError("layout: there are no samples", "name files that have some")
        for f in fields(self):
            prefix = f.name.partition("_")[0] + "_"
            expected = {"file_": n_files, _OF_CHUNKS: n_chunks, _OF_SAMPLES: n_samples}.get(prefix)
            if expected is not None and len(getattr(self, f.name)) != expected:
                raise UsageError(f"layout: {f.name} has {len(getattr(self, f.name))} rows, not {expected}", _REMEDY)
        if int(self.chunk_samples.sum(dtype=np.int64)) != n_samples:
            raise UsageError("layout: chunk_samples do not add up to the number of samples", _REMEDY)

    def _rows_fit(self) -> None:
        _refuse("chunk_samples", self.chunk_samples < 1, "holds no sample")
        _refuse("chunk_file", (self.chunk_file < 0) | (self.chunk_file >= len(self.files)), "names no file")
        _refuse("chunk_file", np.diff(self.chunk_file, prepend=self.chunk_file[0]) < 0, "goes back to an earlier file")
        for name in ("file_nbytes", "chunk_offset", "sample_offset"):
            _refuse(name, getattr(self, name) < 0, "is negative")
        for name in ("chunk_nbytes", "sample_nbytes"):
            _refuse(name, getattr(self, name) < 1, "is less than one byte")
        if not self.encoded:  # sums, not ends, would overflow for what a damaged file may claim
            end = self.file_nbytes[self.chunk_file] - self.chunk_nbytes
            _refuse("chunk_offset", self.chunk_offset > end, "reaches beyond its file")
            last = self.chunk_nbytes[self.chunk_of] - self.sample_nbytes
            _refuse("sample_offset", self.sample_offset > last, "reaches beyond its chunk")

    @property
    def n_samples(self) -> int:
        """Number of samples."""
        return len(self.sample_nbytes)

    @property
    def n_chunks(self) -> int:
        """Number of chunks."""
        return len(self.chunk_nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes of all samples."""
        return int(self.sample_nbytes.sum())

    @cached_property
    def first_sample(self) -> NDArray[np.int64]:
        """(n_chunks + 1,) The samples of chunk c are those of [first_sample[c], first_sample[c + 1])."""
        return np.concatenate([[0], np.cumsum(self.chunk_samples, dtype=np.int64)])

    @cached_property
    def chunk_of(self) -> NDArray[np.int32]:
        """(n_samples,) The chunk of each sample."""
        return np.repeat(np.arange(self.n_chunks, dtype=np.int32), self.chunk_samples)

    @cached_property
    def alone_nbytes(self) -> NDArray[np.int64]:
        """(n_samples,) Bytes that reading a sample alone takes from the source: of an encoded chunk, all of it."""
        return self.chunk_nbytes[self.chunk_of] if self.encoded else self.sample_nbytes

    @cached_property
    def digest(self) -> str:
        """`sha256:...` of what lies where, times of change left out: a copy of the data set has the same."""
        state = hashlib.sha256(f"{self.format}/{self.encoded}/{self.description}/{len(self.files)}".encode())
        for name in self.files:
            encoded = name.encode("utf-8", "surrogateescape")
            state.update(len(encoded).to_bytes(8, "little") + encoded)
        for f in fields(self):
            if f.name != "file_mtime_ns" and isinstance(column := getattr(self, f.name), np.ndarray):
                state.update(f"{f.name} {len(column)};".encode())
                state.update(np.ascontiguousarray(column, column.dtype.newbyteorder("<")).data)
        return f"sha256:{state.hexdigest()}"

    def cut(self, samples: int) -> Layout:
        """The same data set in chunks of at most `samples` samples, each a part of one of these chunks; the samples
        keep their numbers. Raises UsageError where chunks are encoded, for these are read whole."""
        require(
            (self.encoded, f"chunks of {self.format} cannot be read in parts", "read whole chunks"),
            (samples < 1, f"a chunk cannot have {samples} samples", "give at least 1"),
        )
        parts = -(-self.chunk_samples.astype(np.int64) // samples)
        whole = np.repeat(np.arange(self.n_chunks), parts)
        first = self.first_sample[:-1][whole] + positions(parts) * samples
        stop = np.minimum(first + samples, self.first_sample[1:][whole])
        begin = np.minimum.reduceat(self.sample_offset, first)
        end = np.maximum.reduceat(self.sample_offset + self.sample_nbytes, first)
        counts = stop - first
        return replace(
            self,
            chunk_file=self.chunk_file[whole],
            chunk_offset=self.chunk_offset[whole] + begin,
            chunk_nbytes=end - begin,
            chunk_samples=counts.astype(np.int32),
            sample_offset=self.sample_offset - np.repeat(begin, counts),
        )


def _refuse(name: str, bad: NDArray[Any], what: str) -> None:
    """Raises UsageError for the first row that is `bad`."""
    if bad.any():
        raise UsageError(f"layout: row {int(bad.argmax())} of {name} {what}", _REMEDY)
