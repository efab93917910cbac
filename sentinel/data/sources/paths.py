"""The files that a user means: braces as WebDataset writes them, globs, folders, lists of these."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence
from itertools import product

from sentinel.core.errors import FormatError, UsageError
from sentinel.data.sources.stored_file import asked_of_store, cannot_be_read, is_url, name_of

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MOST_FILES = 10_000_000


def expand_braces(pattern: str) -> list[str]:
    """`"a-{00..02}.tar"` and `"{a,b}.tar"` as the texts that they stand for, in their order."""
    parts = _BRACES.split(pattern)
    choices: list[Sequence[str]] = []
    total = 1
    for number, part in enumerate(parts):
        choices.append(_choices(part) if number % 2 else (part,))
        total *= len(choices[-1])
        if total > _MOST_FILES:
            raise UsageError(f"{pattern!r} stands for more than {_MOST_FILES} files", "give fewer")
    return ["".join(words) for words in product(*choices)]


def _choices(inner: str) -> Sequence[str]:
    matched = _RANGE.fullmatch(inner)
    if matched is None:
        if "," not in inner:
            raise UsageError(f"{{{inner}}} stands for no range", "write {000..146} or {a,b}")
        return inner.split(",")
    first, last = int(matched[1]), int(matched[2])
    if first > last or last - first >= _MOST_FILES:
        raise UsageError(f"{{{inner}}} is not a rising range", "write the lower number first")
    width = len(matched[1]) if matched[1].startswith("0") or len(matched[1]) == len(matched[2]) else 0
    return [f"{number:0{width}d}" for number in range(first, last + 1)]


def files_named(given: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """Paths of the files that `given` means, each once, in its order; those of one glob sorted.

    Raises FormatError where one is not there, UsageError for a pattern that stands for nothing or a file named twice.
    """
    words = [given] if isinstance(given, str | os.PathLike) else list(given)
    found: list[str] = []
    for word in words:
        text = os.fspath(word)
        if "\0" in text:
            raise UsageError(f"the path {text!r} has a byte 0, which no path has", "give another")
        for path in [text] if not is_url(text) and os.path.exists(text) else expand_braces(text):
            found += _matching(path)
    if not found:
        raise UsageError("the source names no files", "give paths, a pattern or a folder")
    seen: set[str] = set()
    for path in found:
        same = path if is_url(path) else os.path.abspath(path)
        if same in seen:
            raise UsageError(f"{path} is given twice", "name each file once")
        seen.add(same)
    return found


def is_folder(path: str) -> bool:
    """Whether a path or URL is that of a folder. A URL with a pattern or the suffix of a file is not asked for."""
    if not is_url(path):
        return os.path.isdir(path)
    name = name_of(path)
    if glob.has_magic(name) or "{" in name or os.path.splitext(name)[1][1:].isalpha():
        return False
    return bool(asked_of_store(path, lambda store, name: store.isdir(name)))


_OF_THE_FILE_SYSTEM = "lost+found"
"""At the root of many disks: nobody but root may list it, and it has no samples."""


def files_below(folder: str) -> list[str]:
    """Paths of the files in `folder` and in those below it, sorted; hidden ones and lost+found are left out. Links are
    followed, and a folder that several paths lead to is read once. Raises FormatError for a folder that cannot be
    listed."""

    def refused(error: OSError) -> None:
        raise cannot_be_read(error.filename or folder, "folder", error) from error

    found: list[str] = []
    seen: set[str] = set()
    if is_url(folder):
        below = asked_of_store(
            folder, lambda store, name: [path.removeprefix(name).lstrip("/") for path in store.find(name)]
        )
        found = [f"{folder.rstrip('/')}/{path}" for path in below if not f"/{path}".count("/.")]
    for where, folders, names in () if is_url(folder) else os.walk(folder, onerror=refused, followlinks=True):
        if (real := os.path.realpath(where)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != _OF_THE_FILE_SYSTEM)
        found += [os.path.join(where, name) for name in names if not name.startswith(".")]
    if not found:
        raise FormatError(folder, "folder", "has no files; check the path")
    return sorted(found)


def _matching(path: str) -> list[str]:
    if is_url(path) and glob.has_magic(name_of(path)):
        found = sorted(
            asked_of_store(path, lambda store, name: [store.unstrip_protocol(match) for match in store.glob(name)])
        )
    elif is_url(path) or os.path.exists(path) or not glob.has_magic(path):
        return [path]
    else:
        found = sorted(glob.glob(path, recursive=True))
    if not found:
        raise FormatError(path, "file", "no file has such a name; check the pattern")
    return found
