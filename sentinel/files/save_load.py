"""Save any noun; load any noun, or one of a known kind."""

from __future__ import annotations

from typing import TypeVar

from sentinel.core.errors import FormatError
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.run import Run
from sentinel.core.trace import Trace
from sentinel.core.units import format_bytes
from sentinel.files import containers, documents
from sentinel.files.digests import Noun, format_of
from sentinel.files.disk import PathLike, open_regular, read_exactly, write_whole
from sentinel.files.formats import BY_NOUN
from sentinel.files.validity import problem_of

Wanted = TypeVar("Wanted", Machine, Trace, Profile, Plan, Run)


def save(noun: Noun, path: PathLike) -> None:
    """Write `noun` to `path`, whole or not at all. The suffix is the caller's; the content tells the format. Raises
    UsageError for a noun that is too large to be read again."""
    form = format_of(noun)
    write_whole(path, documents.render(noun) if form.text else containers.render(noun))


def load(path: PathLike) -> Noun:
    """The noun in the file at `path`. Raises FormatError for anything that is not a sound Sentinel file."""
    with open_regular(path, containers.MAX_BYTES) as (file, nbytes):
        head = read_exactly(file, min(nbytes, 9), path)
        file.seek(0)
        if head.lstrip()[:1] == b"{" and b"\0" not in head:  # a container's length may begin with a space and a brace
            if nbytes > documents.MAX_BYTES:
                over = f"{format_bytes(nbytes - documents.MAX_BYTES)} more than the {format_bytes(documents.MAX_BYTES)}"
                raise FormatError(path, "file", f"is JSON, {over} that are read; give a file that `sentinel` wrote")
            noun = documents.parse(path, read_exactly(file, nbytes, path))
        elif nbytes > 9 and head[8:] == b"{":
            noun = containers.parse(path, file, nbytes)
        else:
            raise FormatError(path, "file", "is not a Sentinel file; give a file that `sentinel` wrote")
    problem = problem_of(noun)
    if problem:
        raise FormatError(path, format_of(noun).short, f"{problem}; write the file again")
    return noun


def load_machine(path: PathLike) -> Machine:
    """The Machine at `path`; FormatError if the file holds another noun."""
    return _load(path, Machine)


def load_trace(path: PathLike) -> Trace:
    """The Trace at `path`; FormatError if the file holds another noun."""
    return _load(path, Trace)


def load_profile(path: PathLike) -> Profile:
    """The Profile at `path`; FormatError if the file holds another noun."""
    return _load(path, Profile)


def load_plan(path: PathLike) -> Plan:
    """The Plan at `path`; FormatError if the file holds another noun."""
    return _load(path, Plan)


def load_run(path: PathLike) -> Run:
    """The Run at `path`; FormatError if the file holds another noun."""
    return _load(path, Run)


def _load(path: PathLike, wanted: type[Wanted]) -> Wanted:
    noun = load(path)
    if not isinstance(noun, wanted):
        raise FormatError(
            path,
            "format",
            f"the file holds a {format_of(noun).short}, not a {BY_NOUN[wanted].short}; give the other file",
        )
    return noun
