"""Parquet files: a sample is a row, a chunk is a row group, which is read and decoded as a whole.

In the arena a row is a message of Arrow's IPC format without its schema, so that a worker decodes it alone. It takes
some 200 bytes more than its values. How many bytes each row takes is known from the footer where all columns have
values of one size; otherwise the file is read once for it.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import FormatError, UsageError
from sentinel.core.interrupts import let_through
from sentinel.data.sources.source import Buffer, FileChunks, SourceFile, pyarrow_for
from sentinel.data.sources.stored_file import OpenedFile, Stream, file_at, opened

_pyarrow = partial(pyarrow_for, "reading Parquet")


class _UnpackedRows:
    """A row group, nearly always in one batch."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = batches
        self._first = np.cumsum([0, *(batch.num_rows for batch in batches)])

    def samples(self, numbers: NDArray[np.int64]) -> tuple[Buffer, NDArray[np.int64], NDArray[np.int64]]:
        """As UnpackedChunk says: messages, one after the other."""
        of = np.searchsorted(self._first, numbers, "right") - 1
        rows = zip(of.tolist(), (numbers - self._first[of]).tolist(), strict=True)
        made = [_row(self._batches[batch], row).serialize() for batch, row in rows]
        nbytes = np.array([message.size for message in made], np.int64)
        return made[0] if len(made) == 1 else b"".join(made), np.cumsum(nbytes) - nbytes, nbytes


class ParquetRows:
    """A sample is a dict of the row's columns: numbers, str, bytes; a list of numbers is an array."""

    def __init__(self, columns: str | Sequence[str] | None = None) -> None:
        """`columns`: those that are read, all of them if None."""
        columns = [columns] if isinstance(columns, str) else columns
        if columns is not None and not columns:
            raise UsageError("no column is named", "name some, or leave columns out for all")
        if columns and not (isinstance(columns, Sequence) and all(isinstance(name, str) for name in columns)):
            raise UsageError(f"columns={columns!r} are no names", 'give a list of them, such as ["text"]')
        self._columns = None if columns is None else list(columns)
        self.kind = "parquet" if columns is None else f"parquet of {','.join(columns)}"
        self._schema: Any = None

    def scan(self, file: SourceFile) -> FileChunks:
        """The row groups of one file, and what each row takes. Raises FormatError for rows unlike those of the files
        before it."""
        source = opened(file.path)
        schema = self._schema_in(source, file.nbytes)
        if self._schema is None:
            self._schema = schema
        if not schema.equals(self._schema):
            other = next((name for name in schema.names if name not in self._schema.names), None) or next(
                (field.name for field in self._schema if field not in list(schema)), "?"
            )
            raise FormatError(
                file.path, "parquet", f"has other columns than the first file, see {other!r}; give files of one form"
            )
        offset, nbytes, sizes = [], [], []
        same = _row_nbytes(schema)
        groups = _groups(source)
        _check_footer(source, file.nbytes, groups)
        for group in groups:
            begins = self._begins(source, file.nbytes, group)
            offset.append(begins[0][0])
            nbytes.append(sum(size for _, size in begins))
            if same is not None:
                sizes.append(np.full(source.kept.row_group(group).num_rows, same, np.int64))
            else:
                sizes.append(_sizes(self._batches(source, file.nbytes, group), file.path))
        if not sizes:
            raise FormatError(file.path, "parquet", "has no rows; leave it out")
        return FileChunks.encoded(offset, nbytes, sizes)

    def unpack(self, file: OpenedFile, nbytes: int, number: int) -> _UnpackedRows:
        """The rows of a row group, each made a message when it is asked for."""
        if file.kept is None:
            self._schema_in(file, nbytes)
        return _UnpackedRows(self._batches(file, nbytes, _groups(file)[number]))

    def decode(self, data: Buffer, path: str) -> dict[str, Any]:
        """One row."""
        pa = _pyarrow()
        if self._schema is None:  # the index came from the cache
            self._schema = self._schema_in(opened(path), file_at(path).nbytes)
        try:
            batch = pa.ipc.read_record_batch(pa.py_buffer(data), self._schema)
            batch.validate(full=True)
            return {name: _value(column[0]) for name, column in zip(self._schema.names, batch.columns, strict=True)}
        except (pa.ArrowException, IndexError, EOFError, OSError) as error:
            let_through(error)
            raise FormatError(path, "parquet", f"a row is damaged ({str(error)[:80]}); index it again") from error
        except (ValueError, OverflowError, KeyError) as error:
            what = f"has a row that Python cannot hold ({str(error)[:80]})"
            raise FormatError(path, "parquet", f"{what}; name other columns, as `--columns` or columns=") from error

    def _schema_in(self, file: OpenedFile, nbytes: int) -> Any:
        """The columns of a file, dictionaries as the values that they stand for. Its footer is kept with it."""
        pa = _pyarrow()
        import pyarrow.parquet as pq

        try:
            file.kept = pq.read_metadata(Stream(file, nbytes))
            found = file.kept.schema.to_arrow_schema().remove_metadata()
        except (pa.ArrowException, ValueError) as error:
            raise _not_sound(file.path, str(error)) from error
        for name in self._columns or found.names:
            if found.names.count(name) > 1:
                raise FormatError(file.path, "parquet", f"has several columns {name!r}; give each a name of its own")
        for name in self._columns or ():
            if name not in found.names:
                near = difflib.get_close_matches(name, found.names, 1) or found.names[:8]
                raise FormatError(file.path, "parquet", f"has no column {name!r}; give {' or '.join(near)}")
        fields = [found.field(name) for name in self._columns or found.names]
        for field in fields:
            if _has_dictionary_within(field.type):
                what = f"column {field.name!r} has dictionaries within its values, which are not read"
                raise FormatError(file.path, "parquet", f"{what}; name other columns, as `--columns` or columns=")
        return pa.schema([pa.field(field.name, _plain(field.type)) for field in fields])

    def _begins(self, file: OpenedFile, nbytes: int, group: int) -> list[tuple[int, int]]:
        """(place, bytes) of what is read of a row group of a file of `nbytes`: its columns, neighbours together."""
        told, found = file.kept.row_group(group), []
        try:
            columns = [told.column(number) for number in range(told.num_columns)]
            columns = [one for one in columns if self._columns is None or _top(one.path_in_schema, self._columns)]
        except (_pyarrow().ArrowException, ValueError) as error:
            raise _not_sound(file.path, str(error)) from error
        for column in columns:
            places = (column.data_page_offset, column.dictionary_page_offset)
            at, size = min((place for place in places if place), default=0), column.total_compressed_size
            if not (at > 0 and 0 < size <= nbytes - at):
                raise _not_sound(file.path, f"a column has bytes {at} to {at + size}, the file {nbytes}")
            found.append((at, size))
        if not found:
            raise _not_sound(file.path, f"row group {group} has no columns")
        found.sort()
        joined = found[:1]
        for at, size in found[1:]:
            last, before = joined[-1]
            if at <= last + before:
                joined[-1] = last, max(before, at + size - last)
            else:
                joined.append((at, size))
        return joined

    def _batches(self, file: OpenedFile, nbytes: int, group: int) -> list[Any]:
        """The rows of a row group, nearly always in one batch."""
        pa = _pyarrow()
        import pyarrow.parquet as pq

        held = [(at, file.read(at, size)) for at, size in self._begins(file, nbytes, group)]
        try:
            stream = Stream(file, nbytes, held)
            source = pq.ParquetFile(stream, metadata=file.kept)
            table = source.read_row_group(group, self._columns, use_threads=False)
            plain = [
                column.cast(_plain(column.type)) if pa.types.is_dictionary(column.type) else column
                for column in table.columns
            ]
            ordered = pa.table(plain, names=table.column_names).select(self._columns or table.column_names)
            made: list[Any] = ordered.combine_chunks().to_batches()
            return made
        except (pa.ArrowException, OSError, ValueError) as error:
            let_through(error)
            what = f"row group {group} cannot be decoded ({str(error)[:80]})"
            raise FormatError(file.path, "parquet", f"{what}; copy the file again") from error


def _not_sound(path: str, why: str) -> FormatError:
    return FormatError(path, "parquet", f"has no sound footer ({why[:80]}); copy it again")


class _NothingRead(Stream):
    """One that gives no bytes."""

    SAID = "nothing is read"

    def read(self, size: int | None = -1) -> bytes:  # noqa: ARG002 -- as of any file
        """Raises OSError."""
        raise OSError(self.SAID)


def _check_footer(file: OpenedFile, nbytes: int, groups: list[int]) -> None:
    """Raises FormatError for row groups whose columns the footer does not tell soundly. What throws there within
    `ColumnChunkMetaData` ends the process, for pyarrow 26 lets it through C; as it begins to read, it is an error."""
    import pyarrow.parquet as pq

    counts = [file.kept.row_group(group).num_rows for group in range(file.kept.num_row_groups)]
    if min(counts, default=0) < 0 or sum(counts) != file.kept.num_rows:
        raise _not_sound(file.path, f"its row groups have other than {file.kept.num_rows} rows")
    source = pq.ParquetFile(_NothingRead(file, nbytes), metadata=file.kept, pre_buffer=True)
    for group in groups:
        try:
            source.read_row_group(group, use_threads=False)
        except (_pyarrow().ArrowException, OSError, ValueError) as error:
            let_through(error)
            if _NothingRead.SAID not in str(error):
                raise _not_sound(file.path, str(error)) from error


def _groups(file: OpenedFile) -> list[int]:
    """The row groups that have rows."""
    return [group for group in range(file.kept.num_row_groups) if file.kept.row_group(group).num_rows]


def _top(path: str, columns: Sequence[str]) -> bool:
    """Whether a column, `a.list.element` for a list, is part of one of these."""
    return any(path == name or path.startswith(f"{name}.") for name in columns)


def _plain(kind: Any) -> Any:
    """The type of the values of a column."""
    return kind.value_type if _pyarrow().types.is_dictionary(kind) else kind


def _has_dictionary_within(kind: Any) -> bool:
    types = _pyarrow().types
    inner = [kind.field(number).type for number in range(kind.num_fields)] if types.is_nested(kind) else []
    return any(types.is_dictionary(each) or _has_dictionary_within(each) for each in inner)


def _row_nbytes(schema: Any) -> int | None:
    """What a row takes at most, where all columns have values of one size; None where they have not."""
    pa = _pyarrow()
    if not all(pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind) for kind in schema.types):
        return None
    nothing = [pa.nulls(1, kind) for kind in schema.types]  # with room for what says which are missing
    return int(pa.ipc.get_record_batch_size(pa.record_batch(nothing, schema=schema)))


def _row(batch: Any, row: int) -> Any:
    """A batch of that row alone. Of a slice that begins where small buffers do, Arrow writes these as a whole, which is
    more than a row takes: where all rows take the same, that one is copied."""
    if row == 0 and _row_nbytes(batch.schema) is not None:
        return batch.take(_pyarrow().array([0]))
    return batch.slice(row, 1)


def _sizes(batches: Sequence[Any], path: str) -> NDArray[np.int64]:
    """What each row takes."""
    pa = _pyarrow()
    size = pa.ipc.get_record_batch_size
    try:
        return np.array([size(_row(batch, row)) for batch in batches for row in range(batch.num_rows)], np.int64)
    except pa.ArrowException as error:
        what = f"has columns that are not read ({str(error)[:80]})"
        raise FormatError(path, "parquet", f"{what}; name others, as `--columns` or columns=") from error


def _value(scalar: Any) -> Any:
    """A number, str, bytes, None; a list of numbers as an array of its own, all else as pyarrow has it for Python."""
    types = _pyarrow().types
    kind = scalar.type
    listed = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if listed and scalar.is_valid and (types.is_integer(kind.value_type) or types.is_floating(kind.value_type)):
        values = scalar.values
        if not values.null_count:
            return values.to_numpy(zero_copy_only=False, writable=True)
    return scalar.as_py()
