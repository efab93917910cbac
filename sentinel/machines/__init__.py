"""Described machines, known by file stem: 24 cores at 1.5 TFLOP/s sustained fp32 (`slow-…`: 0.5), a Cascade Lake
socket's memory as the fast tier and optane-6dimm, cxl-asic-x8 or numa-remote-clx (see `sentinel.tiers.presets`) as the
slow one; migration at 2, 5 or 10 GB/s per direction or at link speed: the slower of the source's read and the
target's write bandwidth. Nothing of it is measured. Fixed before any policy was tuned; not to be changed.

What moves take from compute is 0 on these. `cxl-m2-priced` and `cxl-m5-priced` are the same machines with a price, each
link with its source in `declared_by` (decision 181).
"""

from __future__ import annotations

from pathlib import Path

from sentinel.core.errors import UsageError
from sentinel.core.machine import Machine
from sentinel.files import load_machine

_FOLDER = Path(__file__).parent


def names() -> tuple[str, ...]:
    """The names of all described machines, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def load(name: str) -> Machine:
    """The described machine of that name; UsageError, listing all of them, if there is none."""
    if name not in names():
        remedy = f"choose one of {', '.join(names())}, or a file that `sentinel calibrate -o` writes"
        raise UsageError(f"there is no described machine {name!r}", remedy)
    return load_machine(_FOLDER / f"{name}.json")
