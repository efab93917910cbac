"""Reading chunks and samples from the files of a data set, by any process of a job."""

from __future__ import annotations

import os
from collections import OrderedDict
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import FormatError
from sentinel.samples import Layout

_OPEN_FILES = 64


class SourceFiles:
    """The files of `layout`, whose names are below the folder `root`. Opened for reading only, and as they were when
    they were indexed. For several threads, and for a process that was forked or gets it pickled."""

    def __init__(self, layout: Layout, root: str) -> None:
        self.layout, self._root = layout, root
        self._open: OrderedDict[int, _OpenFile] = OrderedDict()
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"layout": self.layout, "_root": self._root}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["layout"], state["_root"])  # type: ignore[misc]

    def path_of(self, sample: int) -> str:
        """The path of the file in which a sample lies."""
        return self._path(int(self.layout.chunk_file[self.layout.chunk_of[sample]]))

    def chunk(self, chunk: int) -> NDArray[np.uint8]:
        """(chunk_nbytes,) The bytes of a chunk. Raises FormatError for a file that changed, is cut short or is gone."""
        layout = self.layout
        file, nbytes = int(layout.chunk_file[chunk]), int(layout.chunk_nbytes[chunk])
        return self._read(file, int(layout.chunk_offset[chunk]), nbytes, f"chunk {chunk}")

    def sample(self, sample: int) -> NDArray[np.uint8]:
        """(sample_nbytes,) The bytes of one sample, read alone. Raises what `chunk` raises, naming the sample."""
        layout = self.layout
        chunk = int(layout.chunk_of[sample])
        at = int(layout.chunk_offset[chunk] + layout.sample_offset[sample])
        return self._read(int(layout.chunk_file[chunk]), at, int(layout.sample_nbytes[sample]), f"sample {sample}")

    def _read(self, file: int, at: int, nbytes: int, what: str) -> NDArray[np.uint8]:
        data = np.empty(nbytes, np.uint8)
        view, done = data.data, 0
        opened = self._opened(file)
        while done < nbytes:
            try:
                count = os.preadv(opened.descriptor, [view[done:]], at + done)
            except OSError as error:
                raise FormatError(
                    self._path(file), what, f"cannot be read: {error.strerror}; check the disk"
                ) from error
            if not count:
                raise FormatError(
                    self._path(file), what, "the file ends within it: it was cut short; restore it, or index it anew"
                )
            done += count
        self._check(file, opened.descriptor)  # after the read: one that is rewritten in place stays open
        return data

    def _opened(self, file: int) -> _OpenFile:
        with self._lock:
            opened = self._open.get(file)
            if opened is not None:
                self._open.move_to_end(file)
                return opened
            opened = _OpenFile(self._path(file))
            self._check(file, opened.descriptor)
            self._open[file] = opened
            if len(self._open) > _OPEN_FILES:
                self._open.popitem(last=False)  # closed once the last thread has read from it
            return opened

    def _check(self, file: int, descriptor: int) -> None:
        status, layout = os.fstat(descriptor), self.layout
        then = int(layout.file_nbytes[file]), int(layout.file_mtime_ns[file])
        if (status.st_size, status.st_mtime_ns) != then:
            raise changed(self._path(file), then[0], status.st_size)

    def _path(self, file: int) -> str:
        return os.path.join(self._root, self.layout.files[file])


class _OpenFile:
    """A descriptor that is closed with the last reference to it."""

    def __init__(self, path: str) -> None:
        try:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError as error:
            self.descriptor = -1
            raise FormatError(
                path, "file", f"cannot be read: {error.strerror}; restore it, or index it anew"
            ) from error

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


def changed(path: str, then_nbytes: int, now_nbytes: int) -> FormatError:
    """A file is another one than it was when it was indexed."""
    what = "its time is another one" if then_nbytes == now_nbytes else f"{then_nbytes} bytes then, {now_nbytes} now"
    return FormatError(
        path, "file", f"changed since it was indexed ({what}); restore it, or run `sentinel data index` on the data set"
    )
