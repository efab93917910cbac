"""What a noun says, in one hash: equal content, equal digest, on every machine and in every process."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import UsageError
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.run import Run
from sentinel.core.trace import Trace
from sentinel.files.codec import encode, valid_unicode
from sentinel.files.formats import BY_NOUN, TEXTS, Format
from sentinel.samples import Layout

_HASHED_ROWS = 1 << 18  # at a time

Noun = Machine | Trace | Profile | Plan | Run | Layout
Derived = TypeVar("Derived", Trace, Profile, Plan, Run)


def digest(noun: Noun) -> str:
    """`sha256:...` of the content of `noun`, its `origin` left out: what it says, not where it came from."""
    form = format_of(noun)
    header = encode(noun, leave_out=("origin", *form.tables))
    return checksum(form, canonical(header), columns_of(noun, form))


def with_origin(noun: Derived, **inputs: Noun | str) -> Derived:
    """`noun`, its origin naming what it was made from: `with_origin(plan, profile=profile, machine=machine)`.

    A noun is named by its digest, a string as it is. What the origin said before under other names stays.
    """
    named = {key: value if isinstance(value, str) else digest(value) for key, value in inputs.items()}
    return dataclasses.replace(noun, origin={**noun.origin, **named})


def format_of(noun: Noun) -> Format:
    """The format of `noun`; UsageError if it is no noun."""
    form = BY_NOUN.get(type(noun))
    if form is None:
        raise UsageError(
            f"a {type(noun).__name__} has no file format", "save a Machine, Trace, Profile, Plan, Run or Layout"
        )
    return form


def columns_of(noun: Noun, form: Format) -> dict[str, NDArray[Any]]:
    """The noun's tables, split by column, which may be views of these. Raises UsageError for a text that no column can
    have."""
    found: dict[str, NDArray[Any]] = {}
    for table, dtype in form.tables.items():
        array = getattr(noun, table)
        if dtype == TEXTS:
            found[table] = _joined(array)
        elif dtype.names is None:
            found[table] = np.ascontiguousarray(array, dtype)
        else:
            found.update({f"{table}.{name}": array[name] for name in dtype.names})
    return found


def _joined(texts: tuple[str, ...]) -> NDArray[np.uint8]:
    """(nbytes,) As TEXTS has them."""
    for text in texts:
        if "\0" in text or not valid_unicode(text):
            raise UsageError(f"the text {text[:40]!r} cannot be saved", "use valid Unicode without NUL")
    return np.frombuffer("\0".join(texts).encode(), np.uint8)


def canonical(value: Any) -> str:
    """The one spelling of a JSON value that is hashed: keys sorted, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def checksum(form: Format, header: str, columns: dict[str, NDArray[Any]]) -> str:
    """`sha256:...` over format, header and columns; each part's length goes first, so parts cannot run together."""
    state = hashlib.sha256()
    for part in (f"{form.name}/{form.version}".encode(), header.encode()):
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    for name in sorted(columns):
        column = columns[name]
        state.update(f"{name} {column.dtype.str} {len(column)};".encode())
        for low in range(0, len(column), _HASHED_ROWS):  # a column is a view, and may be longer than there is memory
            state.update(np.ascontiguousarray(column[low : low + _HASHED_ROWS]).data)
    return f"sha256:{state.hexdigest()}"
