"""Packing a data set in tar shards of WebDataset, shuffled once: where reading what there is would not be worth it.

The shards are written in a hidden folder beside the one that is asked for, which gets its name at the end. So it is
there with all of them or not at all, and what was there before is never written over.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import sentinel.data
from sentinel.core.errors import FormatError, UsageError
from sentinel.core.rules import require
from sentinel.core.units import format_bytes, parse_amount, parse_bytes
from sentinel.data.data_index import Paths, RecordFiles, open_data
from sentinel.data.feeding import permutation
from sentinel.data.sources.mds_shards import has_index
from sentinel.data.sources.paths import files_below, is_folder
from sentinel.data.sources.stored_file import cannot_be_read, files_at, opened
from sentinel.data.sources.tar_shards import split_name
from sentinel.samples import Order
from sentinel.system.progress import telling

_OF_MEMBER = 1024
"""Bytes of a tar that a member takes besides its content, in the mean: its header, and blocks that are not full."""
_BATCH = 64
_LEAST_MEMORY = 4 << 20
"""Bytes; a share of a small data set is too little for any."""
Members = tuple[str, dict[str, bytes]]
"""The key of a sample and its members by extension."""


@dataclass
class Packed:
    """What was written: `pattern` names the shards, for `loader` and WebDataset."""

    pattern: str = ""
    samples: int = 0
    shards: int = 0
    nbytes: int = 0
    """Of the shards."""


def pack(
    source: Paths | RecordFiles,
    to: str | os.PathLike[str],
    *,
    seed: int = 0,
    shard: str | int = "256MiB",
    memory: str | int = "20%",
) -> Packed:
    """Writes the samples of `source` to new shards in the new folder `to`, in the random order of `seed`.

    A folder gives a sample for each set of files of one name, such as `a/1.jpg` and `a/1.cls`, whose key is `a/1`. Of a
    tar keys and members are kept. Of other formats the key is a running number, and each column a member: bytes as they
    are, str as UTF-8, numbers as text, arrays as `.npy`, all else as `.json`. `shard`: the size after which another one
    begins. `memory`: for samples that are read ahead, as in `loader`.

    Raises UsageError for a folder that is there, FormatError for samples that make no members, and what `loader`
    raises; nothing is left in either case.
    """
    target = Path(to)
    require(
        (os.path.lexists(target), f"{target} is there already, and nothing is written over", "name a new folder"),
        (not target.parent.is_dir(), f"there is no folder {target.parent}", "create it"),
    )
    limit = parse_bytes(shard)
    if limit < 1:
        raise UsageError(f"shards of {limit} bytes hold nothing", "give a size such as 256MiB")
    single = source if isinstance(source, str | os.PathLike) else None
    if single is None and isinstance(source, list | tuple) and len(source) == 1:
        single = source[0]
    folder = os.fspath(single) if single is not None else ""
    if folder and is_folder(folder) and not _is_a_set(folder):
        total, needed, samples = _of_folder(folder, seed)
    else:
        total, needed, samples = _of_loader(source, seed, memory)
    free = shutil.disk_usage(target.parent).free
    if needed > free:
        raise UsageError(
            f"the shards take some {format_bytes(needed)}, {target.parent} has {format_bytes(free)} left",
            "name a folder of another disk",
        )
    writing = _Writing(Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent)), limit)
    try:
        with telling(f"packing {total} samples", lambda: f"{writing.done.samples} done"):
            for key, members in samples:
                writing.add(key, members)
            writing.close()
        last = writing.done.shards - 1
        os.chmod(writing.folder, 0o777 & ~_umask())
        os.rename(writing.folder, target)  # over an empty folder at most, which somebody made meanwhile
    except BaseException:
        writing.abandon()
        raise
    done = writing.done
    done.pattern = str(target / (f"shard-{{000000..{last:06d}}}.tar" if last else "shard-000000.tar"))
    return done


@dataclass
class _Writing:
    folder: Path
    limit: int
    done: Packed = field(default_factory=Packed)
    tar: tarfile.TarFile | None = None
    keys: set[str] = field(default_factory=set)
    extensions: frozenset[str] = frozenset()
    """Of the first sample, and so of all."""

    def add(self, key: str, members: dict[str, bytes]) -> None:
        """Another sample: its key is its own in the set. Raises UsageError for one that would not be found again."""
        while key in self.keys:
            key = f"{key}-{self.done.samples:08d}"
        self._check(key, members)
        self.keys.add(key)
        if self.tar is None:
            path = self.folder / f"shard-{self.done.shards:06d}.tar"
            self.tar = tarfile.open(path, "w", format=tarfile.GNU_FORMAT)  # noqa: SIM115  # closed by `close`
            self.done.shards += 1
        for extension, content in members.items():
            member = tarfile.TarInfo(f"{key}.{extension}")
            member.size = len(content)
            self.tar.addfile(member, io.BytesIO(content))
        self.done.samples += 1
        if self.tar.offset >= self.limit:
            self.close()

    def _check(self, key: str, members: dict[str, bytes]) -> None:
        remedy = "rename the column, leave it out, or give each sample the same columns"
        for extension in members:
            name = f"{key}.{extension}"
            if split_name(name) != (key, extension) or "\0" in name or ".." in key.split("/") or key.startswith("/"):
                raise UsageError(f"the column {extension!r} of the sample {key!r} makes no name of a member", remedy)
        self.extensions = self.extensions or frozenset(members)
        if not members:
            raise UsageError(f"the sample {key!r} has no column but its key", remedy)
        if unlike := sorted(members.keys() ^ self.extensions):
            has = "has a" if unlike[0] in members else "has no"
            raise UsageError(f"the sample {key!r} {has} member {unlike[0]!r}, unlike the first sample", remedy)

    def close(self) -> None:
        """The shard that is written is whole, and on the disk."""
        if self.tar is not None:
            self.tar.close()
            path = Path(str(self.tar.name))
            self.tar = None
            with open(path, "rb") as file:
                os.fsync(file.fileno())
            self.done.nbytes += path.stat().st_size

    def abandon(self) -> None:
        """Nothing is left of it."""
        if self.tar is not None and self.tar.fileobj is not None:
            with contextlib.suppress(OSError):  # of a full disk, where closing tries to write once more
                self.tar.fileobj.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _is_a_set(folder: str) -> bool:
    """Whether a folder is read as shards or rows, rather than as files that are samples."""
    suffixes = {os.path.splitext(path)[1].lower() for path in files_below(folder)}
    return has_index(folder) or suffixes in ({".tar"}, {".parquet"}, {".safetensors"})


def _of_folder(folder: str, seed: int) -> tuple[int, int, Iterator[Members]]:
    """(samples, bytes of the shards, samples in their order): one of all files whose names are the same up to the first
    dot of the last part."""
    groups: dict[str, dict[str, str]] = {}
    paths = files_below(folder)
    for path in paths:
        name = path.removeprefix(folder).lstrip("/")
        split = split_name(name)
        if split is None:
            raise FormatError(path, "name", "has no suffix, which members of shards need; rename it, or leave it out")
        if split[1] in groups.setdefault(split[0], {}):
            raise FormatError(path, "name", f"is {split[0]}.{split[1]} a second time; rename it")
        groups[split[0]][split[1]] = path
    _require_no_numbers(folder, groups)
    keys = list(groups)
    kinds = {frozenset(group) for group in groups.values()}
    if len(kinds) > 1:
        first = groups[keys[0]]
        key = next(key for key in keys if groups[key].keys() != first.keys())
        raise FormatError(
            os.path.join(folder, key),
            "sample",
            f"has {', '.join(sorted(groups[key]))}, {keys[0]} has {', '.join(sorted(first))};"
            " give samples of the same files",
        )

    def samples() -> Iterator[Members]:
        for number in permutation(len(keys), Order(seed=seed), 0).tolist():
            key = keys[number]
            yield key, {extension: _content(path) for extension, path in sorted(groups[key].items())}

    return len(keys), sum(file.nbytes for file in files_at(paths)) + len(paths) * _OF_MEMBER, samples()


def _require_no_numbers(folder: str, groups: Mapping[str, Mapping[str, str]]) -> None:
    """Raises FormatError for files that are samples, but would be members of one: `a.0001.png` and `a.0002.png`. Those
    of `a.left.png` and `a.right.png` are members."""
    for key, group in groups.items():
        first: dict[str, str] = {}
        for extension, path in group.items():
            number, _, suffix = extension.rpartition(".")
            if not number.isdigit():
                continue
            if suffix in first:
                said = (
                    f"and {os.path.relpath(path, folder)} would be one sample, {key}: all before the first dot is its"
                )
                remedy = "rename them, so that their names have no dot before the number"
                raise FormatError(first[suffix], "name", f"{said} key; {remedy}")
            first[suffix] = path


def _content(path: str) -> bytes:
    try:
        file = opened(path)
        return file.read(0, file.state().nbytes)
    except OSError as error:
        raise cannot_be_read(path, "file", error) from error


def _of_loader(source: Paths | RecordFiles, seed: int, memory: str | int) -> tuple[int, int, Iterator[Members]]:
    """The same of any other source, whose samples a loader brings."""
    layout = open_data(source).layout
    room = max(parse_amount(memory).of(layout.nbytes), _LEAST_MEMORY)
    loader = sentinel.data.loader(source, batch_size=_BATCH, memory=room, seed=seed, rank=0, world=1, collate_fn=list)

    def samples() -> Iterator[Members]:
        number = 0
        try:
            for batch in loader:
                for sample in batch:
                    yield members_of(sample, number)
                    number += 1
        finally:
            loader.close()

    return layout.n_samples, layout.nbytes + layout.n_samples * _OF_MEMBER, samples()


def members_of(sample: Any, number: int) -> Members:
    """The key and members of a sample as a loader gives it; `number` is its key where it has none.

    Raises UsageError for what makes no member.
    """
    if isinstance(sample, tuple):  # a file of a folder
        return f"{number:08d}", {os.path.splitext(sample[0])[1].lstrip(".").lower() or "bin": sample[1]}
    if not isinstance(sample, dict):
        sample = {"": sample}
    members: dict[str, bytes] = {}
    for name, value in sample.items():
        if "/" in name:
            raise UsageError(f"a column is named {name!r}, and no member may be", "rename it, or leave it out")
        if name != "__key__":
            content, suffix = _member(name, value)
            extension = f"{name}{'.' if name and suffix else ''}{suffix}".lower()
            if extension in members:
                what = f"the column {name!r} of the sample {number} makes a second member {extension!r}"
                raise UsageError(what, "rename it, or leave it out")
            members[extension] = content
    return str(sample.get("__key__", f"{number:08d}")), members


def _member(name: str, value: Any) -> tuple[bytes, str]:
    """(content, suffix)"""
    if isinstance(value, bytes):
        return value, ""
    if isinstance(value, str):
        return value.encode(), ""
    if isinstance(value, bool | int | float | np.number):
        return str(value).encode(), ""
    if isinstance(value, np.ndarray):
        made = io.BytesIO()
        np.save(made, value, allow_pickle=False)
        return made.getvalue(), "npy"
    if type(value).__module__ == "torch":
        what = f"column {name!r} has rows of {value.dtype}, which no .npy can hold"
        raise UsageError(what, "leave the file as it is: its rows are read as fast as packed ones")
    if isinstance(held := getattr(value, "fp", None), io.BytesIO):  # a picture of Pillow, as it is in the source
        form = str(value.format).lower()
        return held.getvalue(), "jpeg" if form == "mpo" else form  # a JPEG of several pictures
    try:
        return json.dumps(value).encode(), "json"
    except TypeError:
        kind = type(value).__name__
        raise UsageError(f"column {name!r} has a {kind}, which makes no member", "leave it out") from None
