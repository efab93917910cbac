"""A folder whose files are samples."""

from __future__ import annotations

import numpy as np

from sentinel.core.errors import FormatError
from sentinel.data.sources.source import Buffer, FileRanges, SourceFile


class FolderOfFiles:
    """A sample is (path, bytes) of one file."""

    kind = "folder"

    def scan(self, file: SourceFile) -> FileRanges:
        """The whole file. Raises FormatError for an empty one."""
        if not file.nbytes:
            raise FormatError(file.path, "file", "is empty; leave it out")
        return FileRanges(np.zeros(1, np.int64), np.array([file.nbytes], np.int64))

    def decode(self, data: Buffer, path: str) -> tuple[str, bytes]:
        """The file's path, from the root or a URL, and what is in it."""
        return path, bytes(data)
