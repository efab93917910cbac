"""Which noun is which format. A version rises when a reader of the old one would misread the new one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Any

import numpy as np

from sentinel.core.machine import Machine
from sentinel.core.plan import USE_DTYPE, Plan
from sentinel.core.profile import ACCESS_DTYPE, RANGE_DTYPE, TENSOR_DTYPE, Profile
from sentinel.core.run import HELD_DTYPE, LAYER_DTYPE, MIGRATION_DTYPE, STEP_DTYPE, Run
from sentinel.core.trace import EVENT_DTYPE, PAGE_RUN_DTYPE, Trace

_NS = np.dtype("<i8")


@dataclass(frozen=True)
class Format:
    """`tables`: the noun's fields that are arrays, with their dtypes. `added`: in which version a table came, if not in
    the first; a file of an older one has none. `text`: the file is JSON, else a container."""

    noun: type[Any]
    name: str
    version: int
    tables: dict[str, np.dtype[Any]] = field(default_factory=dict)
    added: dict[str, int] = field(default_factory=dict)
    text: bool = False

    def of_version(self, version: int) -> Format:
        """The format as it was in an older version."""
        kept = {name: dtype for name, dtype in self.tables.items() if self.added.get(name, 1) <= version}
        return self if version == self.version else replace(self, version=version, tables=kept)

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


FORMATS = (
    Format(Machine, "sentinel-machine", 1, text=True),
    Format(Plan, "sentinel-plan", 1, {"uses": USE_DTYPE}, text=True),
    Format(Trace, "sentinel-trace", 2, {"layer_ns": _NS, "events": EVENT_DTYPE, "pages": PAGE_RUN_DTYPE}),
    Format(
        Profile,
        "sentinel-profile",
        2,
        {"layer_ns": _NS, "flops": _NS, "tensors": TENSOR_DTYPE, "accesses": ACCESS_DTYPE, "ranges": RANGE_DTYPE},
    ),
    Format(
        Run,
        "sentinel-run",
        2,
        {"steps": STEP_DTYPE, "layers": LAYER_DTYPE, "migrations": MIGRATION_DTYPE, "held": HELD_DTYPE},
        added={"held": 2},
    ),
)
BY_NAME = {form.name: form for form in FORMATS}
BY_NOUN: dict[type[Any], Format] = {form.noun: form for form in FORMATS}


def written_by() -> str:
    """Program and version, for the eyes of a reader; nothing depends on it."""
    try:
        return f"sentinel {metadata.version('sentinel-hm')}"
    except metadata.PackageNotFoundError:
        return "sentinel"
