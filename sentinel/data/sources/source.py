"""What a format of training data must tell: where the samples of a file lie, and what is in a sample's bytes.

No source opens a file for writing, renames one or deletes one.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import FormatError

Buffer = bytes | memoryview


@dataclass(frozen=True)
class SourceFile:
    """A file of training data as it was when it was looked at."""

    path: str
    nbytes: int
    mtime_ns: int

    @classmethod
    def at(cls, path: str) -> SourceFile:
        """The file at `path` now. Raises FormatError where there is no regular file."""
        try:
            status = os.stat(path)
        except OSError as error:
            raise FormatError(path, "file", f"cannot be read: {error.strerror}; check the path") from error
        if not stat.S_ISREG(status.st_mode):
            raise FormatError(path, "file", "is no regular file; give the files of the data set")
        return cls(path, status.st_size, status.st_mtime_ns)


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


class Source(Protocol):
    """A format. `kind` names it, and the index of a data set of another kind is no index of it."""

    kind: str

    def scan(self, file: SourceFile) -> FileRanges:
        """Where the samples of `file` lie. Raises FormatError, naming the file, for what cannot be read."""

    def decode(self, data: Buffer, path: str) -> Any:
        """The sample in `data`, bytes of the file at `path`, in the form that users of the format know."""
