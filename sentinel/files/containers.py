"""The container form: a safetensors file, one array a column, the JSON header in its metadata.

The layout (8 bytes: length of the JSON index; the index; the arrays) is read here as far as the index, so
that names, types, shapes and lengths are known to be sound before any array is read.
"""

from __future__ import annotations

import json
from typing import Any, BinaryIO

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from sentinel.core.errors import FormatError
from sentinel.core.rules import first_broken
from sentinel.files.codec import Misfit, encode
from sentinel.files.digests import Noun, canonical, checksum, columns_of, format_of
from sentinel.files.disk import PathLike, read_exactly
from sentinel.files.documents import check_size, parse_json, told_format
from sentinel.files.earlier_versions import noun_of
from sentinel.files.formats import TEXTS, Format, written_by

MAX_BYTES = 4 << 30
MAX_INDEX_BYTES = 100_000_000
"""Of the index, by the definition of safetensors."""

_KEY = "sentinel"
_DTYPES = {"U8": "|u1", "BOOL": "|b1", "I32": "<i4", "I64": "<i8"}
_FOREIGN = "is not a Sentinel file; give a file that `sentinel` wrote"


def render(noun: Noun) -> bytes:
    """The file of a Trace, Profile, Run or Layout. Raises UsageError for one that no reader would take."""
    form = format_of(noun)
    columns = {name: np.ascontiguousarray(column) for name, column in columns_of(noun, form).items()}
    header = encode(noun, leave_out=form.tables)
    described = {
        "checksum": checksum(form, canonical(header), columns),
        "format": form.name,
        "header": header,
        "version": form.version,
        "written_by": written_by(),
    }
    data: bytes = safetensors.numpy.save(columns, {_KEY: canonical(described)})
    check_size(form, "index", int.from_bytes(data[:8], "little"), MAX_INDEX_BYTES)
    check_size(form, "file", len(data), MAX_BYTES)
    return data


def parse(path: PathLike, file: BinaryIO, nbytes: int) -> Noun:
    """The noun in the container `file` of `nbytes`."""
    first = read_exactly(file, 8, path)
    index_bytes = int.from_bytes(first, "little")
    if index_bytes > min(nbytes - 8, MAX_INDEX_BYTES):
        raise FormatError(path, "index", f"claims {index_bytes} bytes in a file of {nbytes}; it is cut short")
    text = read_exactly(file, index_bytes, path)
    index = parse_json(path, text, "index")
    form, described = _described(path, index)
    _columns_fit(path, form, index, nbytes - 8 - index_bytes)
    columns = _arrays(path, form, first + text + read_exactly(file, nbytes - 8 - index_bytes, path))
    if described.get("checksum") != checksum(form, canonical(described["header"]), columns):
        raise FormatError(path, "checksum", "does not fit the content: the file is damaged; write it again")
    return _assembled(path, form, described["header"], columns)


def _described(path: PathLike, index: Any) -> tuple[Format, dict[str, Any]]:
    """Format and description out of the index's metadata."""
    known = index.get("__metadata__") if isinstance(index, dict) else None
    inner = known.get(_KEY) if isinstance(known, dict) else None
    if not isinstance(inner, str):
        raise FormatError(path, "file", _FOREIGN)
    described = parse_json(path, inner, "header")
    if not isinstance(described, dict):
        raise FormatError(path, "header", _FOREIGN)
    form = told_format(path, described.get("format"), described.get("version"))
    if form.text:
        raise FormatError(
            path, "format", f"a {form.short} is stored as JSON, not in a container; give the file that `sentinel` wrote"
        )
    if "header" not in described:
        raise FormatError(path, "header", "is missing; write the file again")
    return form, described


def _columns_fit(path: PathLike, form: Format, index: dict[str, Any], room_bytes: int) -> None:
    """The index has exactly the columns of the format, of its types, of one length a table, within the file."""
    present = set(index) - {"__metadata__"}
    for name in sorted(present ^ set(form.columns)):
        rule = "is missing" if name not in present else f"is not known in {form.name} {form.version}"
        raise FormatError(path, name[:80], f"{rule}; write the file again")
    rows_of: dict[str, int] = {}
    claimed = 0
    for name, dtype in form.columns.items():
        entry = index[name] if isinstance(index[name], dict) else {}
        shape, told = entry.get("shape"), entry.get("dtype")
        is_column = isinstance(shape, list) and len(shape) == 1 and type(shape[0]) is int and shape[0] >= 0
        rows = int(shape[0]) if shape and is_column else 0
        of_table = rows_of.setdefault(name.split(".")[0], rows)
        problem = first_broken(
            (not is_column, "is no column of one dimension; write the file again"),
            (rows > room_bytes, "claims more rows than the file has bytes; it is cut short or damaged"),
            (
                not isinstance(told, str) or _DTYPES.get(told) != dtype.str,
                f"has type {str(told)[:20]}, not {dtype.str}; write the file again",
            ),
            (rows != of_table, f"has {rows} rows, its table {of_table}; write the file again"),
        )
        if problem is not None:
            raise FormatError(path, name, problem)
        claimed += rows * dtype.itemsize
    if claimed != room_bytes:
        raise FormatError(
            path,
            "index",
            f"claims {claimed} bytes of columns, the file has {room_bytes}; it is cut short or damaged",
        )


def _arrays(path: PathLike, form: Format, data: bytes) -> dict[str, NDArray[Any]]:
    try:
        columns: dict[str, NDArray[Any]] = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise FormatError(path, "index", f"cannot be read: {str(error)[:120]}; write the file again") from error
    for name, dtype in form.columns.items():  # of an index with one key twice, we and the library may see two things
        column = columns.get(name)
        if column is None or column.dtype != dtype or column.ndim != 1 or len(columns) != len(form.columns):
            raise FormatError(path, name, "is not what the index says; write the file again")
        if dtype.kind == "b" and len(column) and column.view(np.uint8).max() > 1:
            raise FormatError(path, name, "holds truth values other than 0 and 1; write the file again")
    return columns


def _assembled(path: PathLike, form: Format, header: Any, columns: dict[str, NDArray[Any]]) -> Noun:
    tables: dict[str, Any] = {}
    for table, dtype in form.tables.items():
        if dtype == TEXTS:
            tables[table] = _texts(path, table, columns)
        elif dtype.names is None:
            tables[table] = columns[table].copy()
        else:
            array = np.zeros(len(columns[f"{table}.{dtype.names[0]}"]), dtype)
            for name in dtype.names:
                array[name] = columns[f"{table}.{name}"]
            tables[table] = array
    try:
        return noun_of(form, header, tables)
    except Misfit as error:
        raise FormatError(path, error.within("header").field, f"{error.rule}; write the file again") from error


def _texts(path: PathLike, table: str, columns: dict[str, NDArray[Any]]) -> tuple[str, ...]:
    data = columns[table].tobytes()
    count = data.count(0) + 1
    if count > max(len(column) for name, column in columns.items() if name != table):
        # a byte of the file would take eight of memory, or more
        raise FormatError(path, table, f"has {count} texts, and no column has as many rows; write the file again")
    try:
        return tuple(data.decode().split("\0"))
    except UnicodeDecodeError as error:
        raise FormatError(path, table, "is not UTF-8; write the file again") from error
