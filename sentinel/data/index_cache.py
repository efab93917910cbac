"""Indexes of data sets in the user's cache. One that goes costs its next job the time of making it again."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from sentinel.core.interrupts import let_through
from sentinel.files.containers import MAX_BYTES
from sentinel.system.compiler import cache_folder

MOST_BYTES = MAX_BYTES
"""Of all of them together: as many as the largest one may have."""
_INDEX, _TEMPORARY = "layout-", ".sentinel-"
"""How names begin: of indexes, and of one that is being written, or was as its job was killed."""
_WRITTEN_NS = 3600 * 10**9
"""One that was written to so lately is another job's."""


def place_of(name: str) -> Path:
    """Where the index of that name is kept."""
    return cache_folder() / "data" / name


def mark_used(path: Path) -> None:
    """The index at `path` has just been used, which the time of its file says."""
    try:
        os.utime(path)
    except OSError as error:  # a cache that is only read
        let_through(error)


def remove_unused(newest: Path) -> None:
    """Removes those that were not used for longest, until all have no more than MOST_BYTES; `newest` stays."""
    try:
        _remove_unused(newest)
    except OSError as error:  # a folder that others share: theirs stay
        let_through(error)


def _remove_unused(newest: Path) -> None:
    found, now_ns = [], time.time_ns()
    with os.scandir(newest.parent) as entries:
        for entry in entries:
            temporary = entry.name.startswith(_TEMPORARY)
            if temporary or entry.name.startswith(_INDEX):
                with suppress(FileNotFoundError):  # another job removes too
                    status = entry.stat(follow_symlinks=False)
                    stays = entry.name == newest.name or (temporary and now_ns - status.st_mtime_ns < _WRITTEN_NS)
                    found.append((stays, status.st_mtime_ns, status.st_size, entry.path))
    room = MOST_BYTES
    for stays, _, nbytes, path in sorted(found, reverse=True):
        room -= nbytes
        if room < 0 and not stays:
            with suppress(FileNotFoundError):
                os.unlink(path)
