"""Reading chunks and samples from the files of a data set, by any process of a job."""

from __future__ import annotations

import os
import resource
import time
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import FormatError
from sentinel.data.retries import Outages
from sentinel.data.sources.source import EncodedSource, Source, SourceFile
from sentinel.data.sources.stored_file import (
    LocalFile,
    OpenedFile,
    OutageError,
    cannot_be_read,
    expect_what_is_asked,
    is_url,
    opened,
)
from sentinel.samples import JoinedRanges, Layout

_OPEN_ENCODED = 64
"""Open files at most: with one of Parquet its footer is kept."""
_OPEN_FILES = 1024
"""The same of raw files, where the process may have four times as many."""
_OF_MANY: WeakValueDictionary[int, SourceFiles] = WeakValueDictionary()
"""By id, those of this process that have more raw files than _OPEN_ENCODED: they share a quarter of its descriptors."""


class ChunkRead(NamedTuple):
    """`data`: bytes of a chunk; `begins`: (k,) where in them each of the samples begins that were asked for. `ranges`,
    `nbytes`: in how many ranges the source was read, and their bytes."""

    data: NDArray[np.uint8]
    begins: NDArray[np.int64]
    ranges: int
    nbytes: int


class SourceFiles:
    """The files of `layout`, whose names are below the folder or URL `root`. Opened for reading only, and as they were
    when they were indexed. For several threads, and for a process that was forked or gets it pickled.

    `source`: the format, which decodes whole chunks where the layout says so. `gap_bytes`: of other chunks only the
    samples that are asked for are read, and gaps up to so long (see JoinedRanges); None to read all.
    """

    def __init__(self, layout: Layout, root: str, source: Source | None = None, gap_bytes: int | None = None) -> None:
        self.layout, self._root, self._source, self._gap_bytes = layout, root, source, gap_bytes
        self._open: OrderedDict[int, OpenedFile] = OrderedDict()
        self._lock = Lock()
        self.endured = Outages().endured
        """For reads that nobody else does."""
        if not layout.encoded and len(layout.files) > _OPEN_ENCODED:
            _OF_MANY[id(self)] = self
            for other in filter(None, (reference() for reference in _OF_MANY.valuerefs())):
                other._close_oldest()

    def __reduce__(self) -> tuple[Any, ...]:
        return SourceFiles, (self.layout, self._root, self._source, self._gap_bytes)

    def path_of_file(self, file: int) -> str:
        """The path of a file of the layout, by its number."""
        found = self._open.get(file)
        return os.path.join(self._root, self.layout.files[file]) if found is None else found.path

    def chunk(self, chunk: int, samples: NDArray[np.int64]) -> ChunkRead:
        """Reads a chunk, or what `samples` (k,) of it need; each has as many bytes as the layout says, and zeros follow
        what is less. Raises FormatError for a file that changed, is cut short or is gone."""
        layout = self.layout
        file, nbytes = int(layout.chunk_file[chunk]), int(layout.chunk_nbytes[chunk])
        if not layout.encoded:
            if self._gap_bytes is not None:
                return self._parts(chunk, file, samples, self._gap_bytes)
            read = self._read(file, int(layout.chunk_offset[chunk]), nbytes, "chunk", chunk)
            return ChunkRead(np.frombuffer(read, np.uint8), layout.sample_offset[samples], 1, nbytes)
        data, begins, found = self._unpacked(chunk, file, samples)
        most = layout.sample_nbytes[samples]
        if (found == most).all():
            return ChunkRead(data, begins, 1, nbytes)
        filled, at = np.zeros(int(most.sum()), np.uint8), np.cumsum(most) - most
        for to, begin, count in zip(at.tolist(), begins.tolist(), found.tolist(), strict=True):
            filled[to : to + count] = data[begin : begin + count]
        return ChunkRead(filled, at, 1, nbytes)

    def sample(self, sample: int) -> NDArray[np.uint8]:
        """The bytes of one sample, read alone, which takes `layout.alone_nbytes[sample]`; at most (sample_nbytes,) of
        them. Raises what `chunk` raises, naming the sample."""
        layout = self.layout
        chunk = int(layout.chunk_of[sample])
        if layout.encoded:
            file = int(layout.chunk_file[chunk])
            data, (begin,), (count,) = self._unpacked(chunk, file, np.array([sample]))
            return data[begin : begin + count].copy()  # a view would keep all of it
        at = int(layout.chunk_offset[chunk] + layout.sample_offset[sample])
        nbytes = int(layout.sample_nbytes[sample])
        return np.frombuffer(self._read(int(layout.chunk_file[chunk]), at, nbytes, "sample", sample), np.uint8)

    def alone(self, samples: NDArray[np.int64]) -> Iterator[memoryview]:
        """The bytes of each of `samples` (k,), read when it is asked for, and tried again if that fails, for up to a
        minute while its store does not answer. Raises what `sample` raises.

        From a page cache a sample is read as fast as Python can ask for it. So where they lie is looked up for all at
        once, and of files of this machine it is only asked after the last one whether they are as they were indexed:
        whoever uses bytes before has to `check`, should they look wrong.
        """
        layout = self.layout
        if layout.encoded:
            for sample in samples.tolist():
                yield self.endured(partial(self.sample, sample)).data
            return
        chunks = layout.chunk_of[samples]
        at = layout.chunk_offset[chunks] + layout.sample_offset[samples]
        columns = (layout.chunk_file[chunks], at, layout.sample_nbytes[samples], samples)
        held = self._open if len(self._open) < self._most_open else {}  # if there are more, the order of use counts
        unchecked: dict[LocalFile, int] = {}  # what was closed and opened anew in the meantime is two of them
        for file, begin, nbytes, sample in zip(*(column.tolist() for column in columns), strict=True):
            found, data = held.get(file), b""  # the bytes before are let go of: these have the same memory then
            if isinstance(found, LocalFile):
                unchecked[found] = file
                data = found.read_once(begin, nbytes)
            if len(data) != nbytes:
                data = self.endured(partial(self._read, file, begin, nbytes, "sample", sample))
            yield memoryview(data)
        for found, file in unchecked.items():
            if not found.is_as_indexed():
                self.endured(partial(self._check_after, file, found))

    def check(self, samples: NDArray[np.int64]) -> None:
        """Raises FormatError if a file that is open, of one of `samples` (k,), is not as it was when it was indexed."""
        for file in np.unique(self.layout.chunk_file[self.layout.chunk_of[samples]]).tolist():
            with self._lock:
                found = self._open.get(file)
            if found is not None:
                self._check(file, found)

    def _check_after(self, file: int, found: OpenedFile) -> None:
        """As `_check`; a file that can't be asked any more is opened anew, which says whether it is as indexed."""
        try:
            self._check(file, found)
        except OutageError:
            self._opened(file)

    def _parts(self, chunk: int, file: int, samples: NDArray[np.int64], gap_bytes: int) -> ChunkRead:
        """What `samples` need of a chunk."""
        layout, at = self.layout, int(self.layout.chunk_offset[chunk])
        offset = layout.sample_offset[samples]
        ranges = JoinedRanges.between(np.zeros_like(offset), offset, layout.sample_nbytes[samples], gap_bytes)
        told = zip(ranges.begin.tolist(), ranges.nbytes.tolist(), strict=True)
        parts = [self._read(file, at + begin, nbytes, "chunk", chunk) for begin, nbytes in told]
        data = np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), np.uint8)
        moved = np.cumsum(ranges.nbytes) - ranges.nbytes - ranges.begin
        return ChunkRead(data, offset + moved[ranges.of], len(parts), len(data))

    def _unpacked(
        self, chunk: int, file: int, samples: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
        """Bytes, and where in them each of `samples` (k,) of the chunk begins, (k,), and how many it has, (k,)."""
        layout, source = self.layout, self._source
        assert isinstance(source, EncodedSource)
        found = self._opened(file)
        try:
            number = chunk - int(np.searchsorted(layout.chunk_file, file))
            unpacked = source.unpack(found, int(layout.file_nbytes[file]), number)
        except OSError as error:
            self._forget(file, found)
            raise cannot_be_read(found.path, f"chunk {chunk}", error) from error
        except FormatError:
            self._check(file, found)  # of another file it says so
            raise
        self._check(file, found)
        data, begins, nbytes = unpacked.samples(samples - int(layout.first_sample[chunk]))
        wrong = np.flatnonzero((nbytes < 1) | (nbytes > layout.sample_nbytes[samples]))
        if len(wrong):
            what = f"has {nbytes[wrong[0]]} bytes, other than were indexed; index it again"
            raise FormatError(found.path, f"sample {samples[wrong[0]]}", what)
        return np.frombuffer(data, np.uint8), begins, nbytes

    def _read(self, file: int, at: int, nbytes: int, what: str, number: int) -> bytes:
        found = self._opened(file)
        try:
            data = found.read(at, nbytes)
        except OSError as error:
            self._forget(file, found)
            raise cannot_be_read(found.path, f"{what} {number}", error) from error
        if len(data) != nbytes and is_url(found.path):
            self._check(file, found)
            said = f"cannot be read: its server sent {len(data)} bytes of {nbytes}; check that it knows ranges"
            raise OutageError(found.path, f"{what} {number}", said)
        if len(data) != nbytes:
            raise FormatError(
                found.path,
                f"{what} {number}",
                "the file ends within it: it was cut short; restore it, or index it again",
            )
        self._check(file, found)  # after the read: one that is rewritten in place stays open
        return data

    def _opened(self, file: int) -> OpenedFile:
        with self._lock:
            found = self._open.get(file)
            if found is not None:
                self._open.move_to_end(file)
                return found
        found = opened(self.path_of_file(file))  # of a store this takes a request, which others need not wait for
        self._check(file, found)
        expect_what_is_asked(found)
        with self._lock:
            found = self._open.setdefault(file, found)
            self._open.move_to_end(file)
        self._close_oldest()
        return found

    @property
    def _most_open(self) -> int:
        if self.layout.encoded:
            return _OPEN_ENCODED
        may = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4  # below 0: any number
        return (min(may, _OPEN_FILES) if may >= 0 else _OPEN_FILES) // max(len(_OF_MANY), 1)

    def _close_oldest(self) -> None:
        most = max(self._most_open, 1)
        with self._lock:
            while len(self._open) > most:
                self._open.popitem(last=False)  # closed once the last thread has read from it

    def close(self) -> None:
        """Each file is closed once the last thread has read from it, and opened again when it is needed."""
        with self._lock:
            self._open.clear()

    def _forget(self, file: int, found: OpenedFile) -> None:
        """The next read opens it anew: a descriptor of a server that has started again reads nothing any more."""
        with self._lock:
            if self._open.get(file) is found:
                del self._open[file]

    def _check(self, file: int, found: OpenedFile) -> None:
        if found.recheck_s and time.monotonic() - found.checked_s < found.recheck_s:
            return
        try:
            now = found.state()
        except OSError as error:
            self._forget(file, found)
            raise cannot_be_read(found.path, "file", error) from error
        if found.indexed is None:
            nbytes, mtime_ns = self.layout.file_nbytes[file], self.layout.file_mtime_ns[file]
            found.indexed = SourceFile(found.path, int(nbytes), int(mtime_ns))
        if now != found.indexed:
            raise changed(found.path, found.indexed.nbytes, now.nbytes)
        if found.recheck_s:
            found.checked_s = time.monotonic()


def changed(path: str, then_nbytes: int, now_nbytes: int) -> FormatError:
    """A file is another one than it was when it was indexed."""
    what = "its time is another one" if then_nbytes == now_nbytes else f"{then_nbytes} bytes then, {now_nbytes} now"
    return FormatError(
        path, "file", f"changed since it was indexed ({what}); restore it, or run `sentinel data index` on the data set"
    )
