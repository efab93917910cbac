"""Which noun is which format. A version rises when a reader of the old one would misread the new one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Any

import numpy as np

from sentinel.core.extents import RANGE_DTYPE
from sentinel.core.machine import Machine
from sentinel.core.plan import USE_DTYPE, Plan
from sentinel.core.profile import ACCESS_DTYPE, EXTENT_DTYPE, TENSOR_DTYPE, Profile
from sentinel.core.run import HELD_DTYPE, LAYER_DTYPE, MIGRATION_DTYPE, STEP_DTYPE, Run
from sentinel.core.trace import EVENT_DTYPE, PAGE_RUN_DTYPE, Trace
from sentinel.samples import Layout

TEXTS = np.dtype("|u1")
"""Of a table whose field is a tuple of texts: their UTF-8, with a NUL between two of them."""
_INT64 = np.dtype("<i8")
_INT32 = np.dtype("<i4")


@dataclass(frozen=True)
class Format:
    """`tables`: the noun's fields that are arrays, or TEXTS, with their dtypes. `earlier`: those of older versions that
    had other ones, each up to the version given. `text`: the file is JSON, else a container."""

    noun: type[Any]
    name: str
    version: int
    tables: dict[str, np.dtype[Any]] = field(default_factory=dict)
    earlier: dict[int, dict[str, np.dtype[Any]]] = field(default_factory=dict)
    text: bool = False

    def of_version(self, version: int) -> Format:
        """The format as it was in an older version."""
        last = min((known for known in self.earlier if known >= version), default=None)
        return replace(self, version=version, tables=self.tables if last is None else self.earlier[last])

    @property
    def short(self) -> str:
        """The noun in lower case, such as `plan`."""
        return self.name.removeprefix("sentinel-")

    @property
    def columns(self) -> dict[str, np.dtype[Any]]:
        """Name and dtype of each array in the container: `table.column`, or `table` for a plain one."""
        found: dict[str, np.dtype[Any]] = {}
        for table, dtype in self.tables.items():
            if dtype.names is None:
                found[table] = dtype
            else:
                found.update({f"{table}.{name}": dtype[name] for name in dtype.names})
        return found


_NAMES = ACCESS_DTYPE.names or ()
_WHOLE_ACCESS_DTYPE = np.dtype([(name.replace("extent", "tensor"), ACCESS_DTYPE[name]) for name in _NAMES])
_TIMES_AND_TENSORS = {"layer_ns": _INT64, "flops": _INT64, "tensors": TENSOR_DTYPE}
_RUN_TABLES = {"steps": STEP_DTYPE, "layers": LAYER_DTYPE, "migrations": MIGRATION_DTYPE}
_LAYOUT_TABLES: dict[str, np.dtype[Any]] = {
    "file_nbytes": _INT64,
    "file_mtime_ns": _INT64,
    "chunk_file": _INT32,
    "chunk_offset": _INT64,
    "chunk_nbytes": _INT64,
    "chunk_samples": _INT32,
    "sample_offset": _INT64,
    "sample_nbytes": _INT64,
}

FORMATS = (
    Format(Machine, "sentinel-machine", 1, text=True),
    Format(Plan, "sentinel-plan", 1, {"uses": USE_DTYPE}, text=True),
    Format(Trace, "sentinel-trace", 2, {"layer_ns": _INT64, "events": EVENT_DTYPE, "pages": PAGE_RUN_DTYPE}),
    Format(
        Profile,
        "sentinel-profile",
        3,
        {**_TIMES_AND_TENSORS, "extents": EXTENT_DTYPE, "accesses": ACCESS_DTYPE},
        earlier={2: {**_TIMES_AND_TENSORS, "accesses": _WHOLE_ACCESS_DTYPE, "ranges": RANGE_DTYPE}},
    ),
    Format(Run, "sentinel-run", 2, {**_RUN_TABLES, "held": HELD_DTYPE}, earlier={1: _RUN_TABLES}),
    Format(Layout, "sentinel-layout", 2, {"files": TEXTS, **_LAYOUT_TABLES}, earlier={1: _LAYOUT_TABLES}),
)
BY_NAME = {form.name: form for form in FORMATS}
BY_NOUN: dict[type[Any], Format] = {form.noun: form for form in FORMATS}


def written_by() -> str:
    """Program and version, for the eyes of a reader; nothing depends on it."""
    try:
        return f"sentinel {metadata.version('sentinel-hm')}"
    except metadata.PackageNotFoundError:
        return "sentinel"
