"""A folder whose files are samples."""

from __future__ import annotations

import os

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
        """The file's path, as the folder was given, and what is in it."""
        return path, bytes(data)


def files_below(folder: str) -> list[str]:
    """Paths of the files in `folder` and in those below it, sorted; hidden ones are left out. Links are followed, and a
    folder that several paths lead to is read once."""
    found: list[str] = []
    seen: set[str] = set()
    for where, folders, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(where)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [os.path.join(where, name) for name in names if not name.startswith(".")]
    if not found:
        raise FormatError(folder, "folder", "has no files; check the path")
    return sorted(found)
