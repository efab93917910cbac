"""What a format of training data must tell: where the samples of a file lie, and what is in a sample's bytes.

No source opens a file for writing, renames one or deletes one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import CapabilityError, UsageError

if TYPE_CHECKING:
    from sentinel.data.sources.stored_file import OpenedFile

Buffer = bytes | memoryview
MOST_SAMPLES = 100_000_000
"""13 bytes a sample, whether it is in memory or not: 1.3 GB for these."""


def check_few(n: int) -> None:
    """Raises UsageError for a data set of at least `n` samples, if these are more than MOST_SAMPLES: before they are
    listed, where their number is known before."""
    if n > MOST_SAMPLES:
        raise UsageError(
            f"the data set has at least {n} samples, each of which needs an entry in memory",
            f"give at most {MOST_SAMPLES} at once",
        )


class SourceFile(NamedTuple):
    """A file of training data as it was when it was looked at. `mtime_ns`: of a URL, a number made of its tag."""

    path: str
    nbytes: int
    mtime_ns: int


def pyarrow_for(what: str) -> Any:
    """The package pyarrow. Raises CapabilityError where it is not installed, which `what` needs."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise CapabilityError(what, "pyarrow is not installed", "in a checkout: pip install '.[data]'") from error
    return pa


@dataclass(frozen=True, eq=False)
class FileChunks:
    """The chunks of one file, all int64: `offset`, `nbytes`, `samples`, of (chunks,), where each lies and how many
    samples it has; `sample_offset`, `sample_nbytes`, of (samples,), as Layout has them."""

    offset: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    samples: NDArray[np.int64]
    sample_offset: NDArray[np.int64]
    sample_nbytes: NDArray[np.int64]

    @classmethod
    def encoded(cls, offset: list[int], nbytes: list[int], sample_nbytes: list[NDArray[np.int64]]) -> FileChunks:
        """Chunks that are decoded as a whole: `sample_nbytes` of each, in the arena."""
        begins = [np.cumsum(sizes) - sizes for sizes in sample_nbytes]
        return cls(
            np.array(offset, np.int64),
            np.array(nbytes, np.int64),
            np.array([len(sizes) for sizes in sample_nbytes], np.int64),
            np.concatenate(begins),
            np.concatenate(sample_nbytes),
        )


@dataclass(frozen=True, eq=False)
class FileRanges:
    """Where the samples of one file lie: `begins`, `nbytes`, both (samples,) int64, in bytes."""

    begins: NDArray[np.int64]
    nbytes: NDArray[np.int64]

    @classmethod
    def of(cls, begins: list[int], ends: list[int]) -> FileRanges:
        """From the first byte of each sample and the first one after it."""
        first = np.array(begins, np.int64)
        return cls(first, np.array(ends, np.int64) - first)

    def as_chunk(self) -> FileChunks:
        """One chunk, from the first sample to the last."""
        offset, end = int(self.begins.min()), int((self.begins + self.nbytes).max())
        at, nbytes, samples = (np.array([value], np.int64) for value in (offset, end - offset, len(self.begins)))
        return FileChunks(at, nbytes, samples, self.begins - offset, self.nbytes)


class UnpackedChunk(Protocol):
    """A chunk that is decoded."""

    def samples(self, numbers: NDArray[np.int64]) -> tuple[Buffer, NDArray[np.int64], NDArray[np.int64]]:
        """Of samples `numbers` (k,) of the chunk, counted from 0: bytes, and where in them each begins, (k,), and how
        many it has, (k,)."""


class Source(Protocol):
    """A format. `kind` names it, and the index of a data set of another kind is no index of it."""

    kind: str

    def scan(self, file: SourceFile) -> FileRanges | FileChunks:
        """Where the samples of `file` lie. Raises FormatError, naming the file, for what cannot be read."""

    def decode(self, data: Buffer, path: str) -> Any:
        """The sample in `data`, bytes of the file at `path`, in the form that users of the format know."""


@runtime_checkable
class EncodedSource(Source, Protocol):
    """A format whose chunks are read and decoded whole."""

    def unpack(self, file: OpenedFile, nbytes: int, number: int) -> UnpackedChunk:
        """Chunk `number` of those that `scan` found in the file, which has `nbytes`. A sample has at most the bytes
        that `scan` told."""


def is_encoded(source: Source) -> bool:
    """Whether the chunks of a source are decoded as a whole."""
    return isinstance(source, EncodedSource)
