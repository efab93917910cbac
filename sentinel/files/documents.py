"""The JSON form: one object with the format's name, its version and the noun."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import FormatError, UsageError
from sentinel.core.units import format_bytes
from sentinel.files.codec import Misfit, decode, encode
from sentinel.files.digests import Noun, canonical, checksum, format_of
from sentinel.files.disk import PathLike
from sentinel.files.formats import BY_NAME, Format, written_by

MAX_BYTES = 128 << 20
"""Of a JSON file. A plan for 100,000 tensors has some 50 MiB; a parser needs up to twenty times the text."""


def render(noun: Noun) -> bytes:
    """The file of a Machine or Plan. Raises UsageError for one that no reader would take."""
    form = format_of(noun)
    body = encode(noun, leave_out=form.tables)
    for table in form.tables:
        rows = getattr(noun, table)
        body[table] = {name: rows[name].tolist() for name in rows.dtype.names}
    lines = [
        f'  "checksum": {json.dumps(checksum(form, canonical(body), {}))}',
        f'  "format": {json.dumps(form.name)}',
        f'  "{form.short}": {_indented(body)}',
        f'  "version": {form.version}',
        f'  "written_by": {json.dumps(written_by())}',
    ]
    data = ("{\n" + ",\n".join(lines) + "\n}\n").encode()
    check_size(form, "file", len(data), MAX_BYTES)
    return data


def check_size(form: Format, what: str, nbytes: int, most: int) -> None:
    """Raises UsageError where a file has more bytes in one of its parts than are read."""
    if nbytes > most:
        raise UsageError(
            f"this {form.short} cannot be saved: its {what} would have {format_bytes(nbytes)}, of which at most"
            f" {format_bytes(most)} are read",
            "save one of fewer files, layers or tensors",
        )


def _indented(body: dict[str, Any]) -> str:
    """Keys sorted and indented; a list of objects has one on each line, so that a difference is read by line."""
    parts = []
    for key in sorted(body):
        value = body[key]
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = (json.dumps(item, sort_keys=True, allow_nan=False) for item in value)
            text = "[\n      " + ",\n      ".join(rows) + "\n    ]"
        elif isinstance(value, dict) and value:
            rows = (f"{json.dumps(k)}: {json.dumps(value[k], sort_keys=True, allow_nan=False)}" for k in sorted(value))
            text = "{\n      " + ",\n      ".join(rows) + "\n    }"
        else:
            text = json.dumps(value, sort_keys=True, allow_nan=False)
        parts.append(f"    {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n  }"


def _table(value: Any, dtype: np.dtype[Any], where: str) -> NDArray[Any]:
    """A table out of an object with one list of whole numbers a column."""
    names = dtype.names or ()
    if type(value) is not dict or set(value) != set(names):
        raise Misfit(f"is not an object with the columns {', '.join(names)}", where)
    columns = {}
    for name in names:
        items = value[name]
        if type(items) is not list or not {int}.issuperset(map(type, items)):
            raise Misfit("is not a list of whole numbers", f"{where}.{name}")
        limits = np.iinfo(dtype[name])
        if items and not (limits.min <= min(items) and max(items) <= limits.max):
            raise Misfit(f"has a number that does not fit in {dtype[name].itemsize} bytes", f"{where}.{name}")
        columns[name] = items
    if len({len(items) for items in columns.values()}) > 1:
        raise Misfit("has columns of different lengths", where)
    table = np.zeros(len(columns[names[0]]), dtype)
    for name in names:
        table[name] = columns[name]
    return table


def parse(path: PathLike, data: bytes) -> Noun:
    """The noun in the JSON text `data`."""
    top = parse_json(path, data)
    if not isinstance(top, dict):
        raise FormatError(path, "file", "is JSON, but not an object; give a file that `sentinel` wrote")
    form = told_format(path, top.get("format"), top.get("version"))
    if not form.text:
        raise FormatError(path, "format", f"a {form.short} is not stored as JSON; give the file that `sentinel` wrote")
    for key in top:
        if key not in ("checksum", "format", form.short, "version", "written_by"):
            raise FormatError(path, key[:80], f"is not known in format {form.name} {form.version}; remove it")
    if form.short not in top:
        raise FormatError(path, form.short, "is missing; the file holds no content")
    body = top[form.short]
    told = top.get("checksum")
    try:
        if type(body) is not dict:
            raise Misfit("is not an object")
        tables = {name: _table(body[name], dtype, name) for name, dtype in form.tables.items() if name in body}
        noun: Noun = decode(form.noun, {k: v for k, v in body.items() if k not in tables}, tables)
        if told is not None and told != checksum(form, canonical(body), {}):
            raise FormatError(
                path,
                "checksum",
                "does not fit the content: the file is damaged, or was edited; if you edited it, remove the line with"
                " the checksum",
            )
    except Misfit as error:
        raise FormatError(
            path, error.within(form.short).field, f"{error.rule}; correct it or write the file again"
        ) from error
    return noun


def parse_json(path: PathLike, data: bytes | str, where: str = "file") -> Any:
    """A JSON value. Refuses NaN, Infinity, bad UTF-8, hundreds of nested lists, numbers of thousands of digits."""
    try:
        return json.loads(data, parse_constant=_no_constant)
    except RecursionError:
        raise FormatError(path, where, "is nested too deeply; write it again") from None
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError, too many digits
        raise FormatError(path, where, f"is not JSON: {str(error)[:120]}; write it again") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def told_format(path: PathLike, name: Any, version: Any) -> Format:
    """The format that a file says it has, in the version that it says, if this program reads it."""
    form = BY_NAME.get(name) if isinstance(name, str) else None
    if form is None:
        known = ", ".join(BY_NAME)
        raise FormatError(path, "format", f"is {str(name)[:40]!r}, none of {known}; give a file that `sentinel` wrote")
    if type(version) is not int or version < 1:
        raise FormatError(path, "version", f"is {str(version)[:20]!r}, not a number from 1 on; write the file again")
    if version > form.version:
        raise FormatError(
            path,
            "version",
            f"is {str(version)[:20]}, this program reads {form.name} up to {form.version}; update sentinel-hm",
        )
    return form.of_version(version)
