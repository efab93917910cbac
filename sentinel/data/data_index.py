"""Opening a data set: which format its files have, and the index that says where their samples lie.

An index is a Layout in a Sentinel container, mode 0600. It lies in the user's cache, or beside the data where
`sentinel data index --beside` put it. Nothing in it is executed, and it is used only while each file has the size and
the time that it had when it was indexed.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from sentinel.core.errors import FormatError, UsageError
from sentinel.data.source_files import changed
from sentinel.data.sources.folder import FolderOfFiles, files_below
from sentinel.data.sources.paths import files_named
from sentinel.data.sources.records import Records, Rows
from sentinel.data.sources.source import Source, SourceFile
from sentinel.data.sources.tar_shards import TarShards
from sentinel.files import containers, load
from sentinel.files.disk import write_whole
from sentinel.samples import Layout
from sentinel.system.compiler import cache_folder
from sentinel.system.progress import telling

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

_FORMATS: dict[str, type[TarShards] | type[Rows]] = {".tar": TarShards, ".npy": Rows}
_COMPRESSED = (".gz", ".tgz", ".bz2", ".xz", ".zst", ".zstd")
_KNOWN = "give .tar shards, .npy arrays, a folder of files, sentinel.data.records(...) or a Dataset"


@dataclass(frozen=True)
class RecordFiles:
    """Files without a header, and what their records are."""

    paths: tuple[str, ...]
    source: Records


@dataclass(frozen=True, eq=False)
class DataFiles:
    """A data set that was opened: `layout` has a chunk a file, whose names are below `root`."""

    layout: Layout
    root: str
    source: Source


def records(paths: Paths, dtype: DTypeLike, shape: int | tuple[int, ...]) -> RecordFiles:
    """Files of records without a header, such as tokens: `records("tokens.bin", "uint16", 1025)`.

    A record has `shape` numbers of `dtype`; a sample is an array of it. Raises UsageError for one without bytes.
    """
    return RecordFiles(tuple(files_named(paths)), Records(dtype, shape))


def index(source: Paths | RecordFiles, path: str | os.PathLike[str] | None = None, *, beside: bool = False) -> Path:
    """Index a data set anew and keep the index; returns its path. The files are only read, of a tar only its headers.

    It is kept at `path`, with `beside` in the folder of the data, else in the user's cache, where `loader` finds it.
    Raises FormatError for a file that cannot be read sample by sample, UsageError for what names no files.
    """
    paths, made = _format_of(source)
    root = _root_of(paths)
    layout = _scanned(paths, root, made)
    if path is not None:
        kept = Path(path)
    else:
        kept = (
            Path(root) / _name(made, paths, root, "")
            if beside
            else cache_folder() / "data" / _cached(made, paths, root)
        )
        kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _keep(layout, kept)
    return kept


def open_data(source: Paths | RecordFiles, index_path: str | os.PathLike[str] | None = None) -> DataFiles:
    """The data set, with the index that is kept, or one made now and kept in the cache.

    Raises FormatError for a file that changed since it was indexed, and what `index` raises.
    """
    paths, made = _format_of(source)
    root = _root_of(paths)
    names = tuple(os.path.relpath(path, root) for path in paths)
    if index_path is not None:
        layout = _loaded(Path(index_path), names, made)
        if layout is None:
            raise FormatError(index_path, "layout", "is the index of other files; run `sentinel data index` on these")
    else:
        cached = cache_folder() / "data" / _cached(made, paths, root)
        places = (Path(root) / _name(made, paths, root, ""), cached)
        layout = next((found for place in places if (found := _kept(place, names, made)) is not None), None)
        if layout is None:
            layout = _scanned(paths, root, made)
            try:
                cached.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                _keep(layout, cached)
            except (OSError, FormatError):
                pass  # a cache that cannot be written: the next job indexes again
            return DataFiles(layout, root, made)
    _unchanged(layout, root)
    return DataFiles(layout, root, made)


def _format_of(source: Paths | RecordFiles) -> tuple[list[str], Source]:
    """The files of a source, and the reader of their format."""
    if isinstance(source, RecordFiles):
        return list(source.paths), source.source
    given = [source] if isinstance(source, str | os.PathLike) else list(source)
    folders = [os.fspath(word) for word in given if os.path.isdir(word)]
    if folders:
        if len(given) > 1:
            raise UsageError(f"{folders[0]} is a folder among several sources", "give one folder, or files only")
        if os.path.exists(os.path.join(folders[0], "index.json")):
            raise UsageError(f"{folders[0]} has an index.json: MDS is not read yet", _KNOWN)
        paths = files_below(folders[0])
        kinds = {os.path.splitext(path)[1] for path in paths}
        if len(kinds) > 1 or kinds.isdisjoint(_FORMATS):
            return paths, FolderOfFiles()
    else:
        paths = files_named(given)
    kinds = {os.path.splitext(path)[1].lower() for path in paths}
    if kinds & set(_COMPRESSED):
        path = next(path for path in paths if os.path.splitext(path)[1].lower() in _COMPRESSED)
        raise FormatError(path, "file", "is compressed, and no sample in it can be read alone; decompress it first")
    if len(kinds) > 1:
        raise UsageError(f"the source has files of several formats ({', '.join(sorted(kinds))})", "give those of one")
    kind = kinds.pop()
    made = _FORMATS.get(kind)
    if made is None:
        what = f"there is no reader for {kind} files" if kind else f"{paths[0]} has no suffix that names its format"
        raise UsageError(what, _KNOWN)
    return paths, made()


def _root_of(paths: Sequence[str]) -> str:
    return os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths])


def _name(source: Source, paths: Sequence[str], root: str, more: str) -> str:
    state = hashlib.sha256(f"{source.kind}\0{more}\0".encode())
    for path in paths:
        state.update(os.path.relpath(path, root).encode("utf-8", "surrogateescape") + b"\0")
    return f".sentinel-layout-{state.hexdigest()[:16]}.safetensors"


def _cached(source: Source, paths: Sequence[str], root: str) -> str:
    return _name(source, paths, root, root).removeprefix(".sentinel-")


def _scanned(paths: Sequence[str], root: str, source: Source) -> Layout:
    """The layout of the files as they are now, a chunk a file."""
    done = 0
    files: list[SourceFile] = []
    begins, sizes, counts = [], [], []
    with telling(f"indexing {len(paths)} files", lambda: f"{done} done"):
        for path in paths:
            file = SourceFile.at(path)
            ranges = source.scan(file)
            files.append(file)
            begins.append(ranges.begins)
            sizes.append(ranges.nbytes)
            counts.append(len(ranges.begins))
            done += 1
    begin, nbytes = np.concatenate(begins), np.concatenate(sizes)
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    offset = np.minimum.reduceat(begin, first)
    return Layout(
        format=source.kind,
        files=tuple(os.path.relpath(path, root) for path in paths),
        file_nbytes=np.array([file.nbytes for file in files], np.int64),
        file_mtime_ns=np.array([file.mtime_ns for file in files], np.int64),
        chunk_file=np.arange(len(files), dtype=np.int32),
        chunk_offset=offset,
        chunk_nbytes=np.maximum.reduceat(begin + nbytes, first) - offset,
        chunk_samples=np.array(counts, np.int32),
        sample_offset=begin - np.repeat(offset, counts),
        sample_nbytes=nbytes,
    )


def _keep(layout: Layout, path: Path) -> None:
    write_whole(path, containers.render(layout), mode=0o600)


def _kept(path: Path, names: tuple[str, ...], source: Source) -> Layout | None:
    """The layout at `path`, None if there is none for these files. One that cannot be read is warned of."""
    try:
        return _loaded(path, names, source) if path.exists() else None
    except FormatError as error:
        warnings.warn(f"this index is not used: {error}", RuntimeWarning, stacklevel=4)
        return None


def _loaded(path: Path, names: tuple[str, ...], source: Source) -> Layout | None:
    found = load(path)
    if not isinstance(found, Layout):
        raise FormatError(path, "format", "is no index of a data set; run `sentinel data index`")
    if found.encoded or len(found.chunk_file) != len(names):
        return None
    return found if (found.files, found.format) == (names, source.kind) else None


def _unchanged(layout: Layout, root: str) -> None:
    """Raises FormatError for the first file that is another one than it was when it was indexed."""
    for name, nbytes, mtime_ns in zip(
        layout.files, layout.file_nbytes.tolist(), layout.file_mtime_ns.tolist(), strict=True
    ):
        path = os.path.join(root, name)
        now = SourceFile.at(path)
        if (now.nbytes, now.mtime_ns) != (nbytes, mtime_ns):
            raise changed(path, nbytes, now.nbytes)
