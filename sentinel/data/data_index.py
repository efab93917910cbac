"""Opening a data set: which format its files have, and the index that says where their samples lie.

An index is a Layout in a Sentinel container. It lies in the user's cache, for that user alone, or beside the data where
`sentinel data index --beside` put it, with the rights that any new file of that user has. Nothing in it is executed,
and it is used only while each file has the size and the time that it had when it was indexed.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from sentinel.core.errors import FormatError, UsageError
from sentinel.core.interrupts import let_through
from sentinel.data.index_cache import mark_used, place_of, remove_unused
from sentinel.data.source_files import changed
from sentinel.data.sources.folder import FolderOfFiles
from sentinel.data.sources.mds_shards import INDEX, MdsShards, has_index, mds_shards
from sentinel.data.sources.parquet_rows import ParquetRows
from sentinel.data.sources.paths import files_below, files_named, is_folder
from sentinel.data.sources.records import Records, Rows
from sentinel.data.sources.source import FileChunks, FileRanges, Source, check_few, is_encoded
from sentinel.data.sources.stored_file import cannot_be_read, files_at, is_url, name_of
from sentinel.data.sources.tar_shards import TarShards
from sentinel.files import containers, load
from sentinel.files.disk import write_whole
from sentinel.samples import Layout
from sentinel.system.progress import telling

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

_FORMATS: dict[str, Callable[[], Source]] = {
    ".tar": TarShards,
    ".npy": Rows,
    ".safetensors": partial(Rows, "safetensors"),
    ".parquet": ParquetRows,
}
_COMPRESSED = (".gz", ".tgz", ".bz2", ".xz", ".zst", ".zstd")
_KNOWN = "give .tar shards, .parquet, .npy or .safetensors files, a folder, sentinel.data.records(...) or a Dataset"


@dataclass(frozen=True)
class RecordFiles:
    """Files, and what in them are the samples."""

    paths: tuple[str, ...]
    source: Source


FILES = (RecordFiles, str, os.PathLike, list, tuple)
"""What names files; a source of another type is a Dataset."""


@dataclass(frozen=True, eq=False)
class DataFiles:
    """A data set that was opened: `layout` has a chunk a file, whose names are below `root`."""

    layout: Layout
    root: str
    source: Source


def records(paths: Paths, dtype: DTypeLike, shape: int | tuple[int, ...]) -> RecordFiles:
    """Files of records without a header, such as tokens: `records("tokens.bin", "uint16", 1025)`.

    A record has `shape` numbers of `dtype`; a sample is an array of it. Raises UsageError for records without bytes.
    """
    return RecordFiles(tuple(files_named(paths)), Records(dtype, shape))


def parquet(paths: Paths, columns: str | Sequence[str] | None = None) -> RecordFiles:
    """Some columns of Parquet files: `parquet("docs-*.parquet", ["text"])`. Without `columns`, all.

    Raises UsageError if `columns` is empty."""
    return RecordFiles(tuple(files_named(paths)), ParquetRows(columns))


def safetensors(paths: Paths, tensor: str) -> RecordFiles:
    """The rows of one tensor of safetensors files that have several: `safetensors("shard-*.safetensors", "tokens")`."""
    return RecordFiles(tuple(files_named(paths)), Rows("safetensors", tensor))


def index(source: Paths | RecordFiles, path: str | os.PathLike[str] | None = None, *, beside: bool = False) -> Path:
    """Index a data set and write the index; returns its path. The files are only read, tar files only by headers.

    The index goes to `path`; with `beside` into the folder of the data; else into the user's cache, where `loader`
    finds it. Raises FormatError for a file that cannot be read sample by sample, UsageError if the source names no
    files, or if `path` is one of the data set's own files.
    """
    paths, made = _format_of(source)
    root = _root_of(paths)
    if path is not None and os.path.exists(path):
        place = os.path.realpath(path)
        own = [*paths, os.path.join(root, INDEX)] if isinstance(made, MdsShards) else paths
        if any(os.path.realpath(file) == place for file in own):
            what = f"{os.fspath(path)} is a file of the data set, and an index would replace it"
            raise UsageError(what, "give another path")
    if beside and is_url(root):
        raise UsageError(f"{root} is only read: no index is kept there", "leave beside out, or give a path")
    layout = _scanned(paths, root, made)
    if path is None and not beside:
        return _kept_in_cache(layout, _cached(made, paths, root))
    kept = Path(root) / _name(made, paths, root, "") if path is None else Path(path)
    _keep(layout, kept, 0o666)
    return kept


def open_data(source: Paths | RecordFiles, index_path: str | os.PathLike[str] | None = None) -> DataFiles:
    """The data set, with the index beside it or in the cache, or with one made now and kept in the cache.

    Raises FormatError for a file that changed since each of its indexes was made, and what `index` raises.
    """
    paths, made = _format_of(source)
    root = _root_of(paths)
    names = _names(paths, root)
    if index_path is not None:
        if not isinstance(index_path, str | os.PathLike):
            raise UsageError(f"index_path={index_path!r} is no path", "give that of an index, or leave it out")
        layout = _loaded(Path(index_path), names, made)
        if layout is None:
            raise FormatError(index_path, "layout", "is the index of other files; run `sentinel data index` on these")
        _unchanged(layout, root)
        return DataFiles(layout, root, made)
    cached = place_of(_cached(made, paths, root))
    stale: FormatError | None = None
    for place in (Path(root) / _name(made, paths, root, ""), cached):
        layout = _kept(place, names, made)
        if layout is None:
            continue
        try:
            _unchanged(layout, root)
        except FormatError as error:
            stale = stale or error  # the other place may have an index that was made since
        else:
            if place == cached:
                mark_used(cached)
            return DataFiles(layout, root, made)
    if stale is not None:
        raise stale
    layout = _scanned(paths, root, made)
    try:
        _kept_in_cache(layout, cached.name)
    except (OSError, FormatError, UsageError) as error:
        let_through(error)  # a cache, or an index, that cannot be written: the next job indexes again
    return DataFiles(layout, root, made)


def _format_of(source: Paths | RecordFiles) -> tuple[list[str], Source]:
    """The files of a source, and the reader of their format."""
    if isinstance(source, RecordFiles):
        return list(source.paths), source.source
    given = [source] if isinstance(source, str | os.PathLike) else list(source)
    strange = next((word for word in given if not isinstance(word, str | os.PathLike)), None)
    if strange is not None:
        what = f"a list of sources has a {type(strange).__name__}, which is no path"
        raise UsageError(what, "give paths of files, or wrap samples in a torch Dataset with __len__ and __getitem__")
    folders = [os.fspath(word) for word in given if is_folder(os.fspath(word))]
    if folders:
        if len(given) > 1:
            raise UsageError(f"{folders[0]} is a folder among several sources", "give one folder, or files only")
        if has_index(folders[0]):
            return mds_shards(folders[0])
        paths = files_below(folders[0])
    else:
        paths = files_named(given)
    kinds = {_suffix(path): path for path in reversed(paths)}
    if folders and not _shards_in(folders[0], kinds):
        return paths, FolderOfFiles()
    if ".mds" in kinds or any(f".mds{packed}" in path for packed in _COMPRESSED for path in kinds.values()):
        raise UsageError("MDS shards do not tell their columns", f"give the folder that holds their {INDEX}")
    if packed := kinds.keys() & set(_COMPRESSED):
        what = "is compressed, and no sample in it can be read alone; decompress it first"
        raise FormatError(kinds[min(packed)], "file", what)
    if len(kinds) > 1:
        raise UsageError(f"the source has files of several formats ({', '.join(sorted(kinds))})", "give those of one")
    ((kind, path),) = kinds.items()
    made = _FORMATS.get(kind)
    if made is None:
        what = f"there is no reader for {kind} files" if kind else f"{path} has no suffix that names its format"
        raise UsageError(what, _KNOWN)
    return paths, made()


def _suffix(path: str) -> str:
    return os.path.splitext(name_of(path))[1].lower()


def _shards_in(folder: str, kinds: dict[str, str]) -> bool:
    """Whether the files of a folder, one of each suffix, are shards; if not, each is a sample. Raises UsageError where
    that can't be told."""
    known = kinds.keys() & {*_FORMATS, ".mds"}
    if not known:
        return False
    kind = min(known)
    if len(kinds) > 1:
        other = kinds[min(kinds.keys() - {kind})]
        raise UsageError(
            f"{folder} has {kind} files and others, such as {os.path.basename(other)}: it is unclear"
            " which are the samples",
            f"give '{folder}/**/*{kind}', or make tar shards of the files by `sentinel data pack`",
        )
    if kind == ".npy":
        raise UsageError(
            f"{folder} is a folder of .npy files, of which each row or each file may be a sample",
            f"give '{folder}/**/*.npy' for rows; make one sample of each file by `sentinel data pack`",
        )
    return True


def _root_of(paths: Sequence[str]) -> str:
    schemes = {path.partition("://")[0] if is_url(path) else "" for path in paths}
    if len(schemes) > 1:
        raise UsageError("the source has files of several stores", "give those of one")
    (scheme,) = schemes
    if not scheme:
        return os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths])
    folders = [path.partition("://")[2].split("/")[:-1] for path in paths]
    common = folders[0]
    for parts in folders[1:]:
        common = [part for part, _ in takewhile(lambda both: both[0] == both[1], zip(common, parts, strict=False))]
    return f"{scheme}://{'/'.join(common)}"


def _names(paths: Sequence[str], root: str) -> tuple[str, ...]:
    """The paths below the root."""
    if is_url(root):
        return tuple(path[len(root) :].lstrip("/") for path in paths)
    return tuple(os.path.relpath(path, root) for path in paths)


def _name(source: Source, paths: Sequence[str], root: str, more: str) -> str:
    state = hashlib.sha256(f"{source.kind}\0{more}\0".encode("utf-8", "surrogateescape"))
    for name in _names(paths, root):
        state.update(name.encode("utf-8", "surrogateescape") + b"\0")
    return f".sentinel-layout-{state.hexdigest()[:16]}.safetensors"


def _cached(source: Source, paths: Sequence[str], root: str) -> str:
    return _name(source, paths, root, root).removeprefix(".sentinel-")


def _scanned(paths: Sequence[str], root: str, source: Source) -> Layout:
    """The layout of the files as they are now. Raw files are a chunk each."""
    done = n = 0
    found: list[FileChunks] = []
    with telling(f"indexing {len(paths)} files", lambda: f"{done} done"):
        files = files_at(paths)
        for file in files:
            try:
                told = source.scan(file)
            except OSError as error:
                raise cannot_be_read(file.path, "file", error) from error
            found.append(told.as_chunk() if isinstance(told, FileRanges) else told)
            n += len(found[-1].sample_nbytes)
            check_few(n)
            done += 1
    return Layout(
        format=source.kind,
        files=_names(paths, root),
        file_nbytes=np.array([file.nbytes for file in files], np.int64),
        file_mtime_ns=np.array([file.mtime_ns for file in files], np.int64),
        chunk_file=np.repeat(np.arange(len(files), dtype=np.int32), [len(chunks.offset) for chunks in found]),
        chunk_offset=np.concatenate([chunks.offset for chunks in found]),
        chunk_nbytes=np.concatenate([chunks.nbytes for chunks in found]),
        chunk_samples=np.concatenate([chunks.samples for chunks in found]).astype(np.int32),
        sample_offset=np.concatenate([chunks.sample_offset for chunks in found]),
        sample_nbytes=np.concatenate([chunks.sample_nbytes for chunks in found]),
        encoded=is_encoded(source),
    )


def _kept_in_cache(layout: Layout, name: str) -> Path:
    path = place_of(name)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _keep(layout, path, 0o600)
    remove_unused(path)
    return path


def _keep(layout: Layout, path: Path, mode: int) -> None:
    for name in layout.files:
        try:
            name.encode()
        except UnicodeEncodeError:
            what = "is not UTF-8, and an index cannot hold such a name; rename the file"
            raise FormatError(ascii(name), "name", what) from None
    write_whole(path, containers.render(layout), mode)


def _kept(path: Path, names: tuple[str, ...], source: Source) -> Layout | None:
    """The layout at `path`, None if there is none for these files. One that cannot be read is warned of."""
    try:
        return _loaded(path, names, source) if os.path.exists(path) else None  # False where a folder may not be entered
    except FormatError as error:
        warnings.warn(f"this index is not used: {error}", RuntimeWarning, stacklevel=3)
        return None


def _loaded(path: Path, names: tuple[str, ...], source: Source) -> Layout | None:
    found = load(path)
    if not isinstance(found, Layout):
        raise FormatError(path, "format", "is not the index of a data set; run `sentinel data index`")
    if found.encoded != is_encoded(source) or (not found.encoded and len(found.chunk_file) != len(names)):
        return None
    return found if (found.files, found.format) == (names, source.kind) else None


def _unchanged(layout: Layout, root: str) -> None:
    """Raises FormatError for the first file that is another one than it was when it was indexed."""
    for now, nbytes, mtime_ns in zip(
        files_at([os.path.join(root, name) for name in layout.files]),
        layout.file_nbytes.tolist(),
        layout.file_mtime_ns.tolist(),
        strict=True,
    ):
        if (now.nbytes, now.mtime_ns) != (nbytes, mtime_ns):
            raise changed(now.path, nbytes, now.nbytes)
