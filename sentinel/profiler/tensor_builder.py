"""Tensors as a walk along the logs builds them: births, uses, then names, roles and groups. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.lifetimes import PREVIOUS
from sentinel.core.trace import BORN, EVENT_DTYPE, FREED, LayerId, Role, TensorInfo

Row = tuple[int, int, int, int, int, int, int]
"""An event, in the order of EVENT_DTYPE: kind, layer, tensor, op, nbytes, offset, time_ns."""

SMALL_REASON = "smaller than 1 KiB"


@dataclass
class TensorBuilder:
    """What is known so far of one tensor.

    `layer` of birth, -1: before the step. `name` "": to be named by layer and operator.
    `small`: for small storages that did not outlive the stretch they were born in, that stretch. `source`: as in
    TensorInfo.
    """

    address: int
    nbytes: int
    layer: int
    key: tuple[int, int] | None = None
    name: str = ""
    role: Role | None = None
    aliases: tuple[str, ...] = ()
    managed: bool = True
    reason: str = ""
    small: int | None = None
    maker: str = ""  # the operator that gave it, else the one that first wrote it
    made_backward: bool = False
    read_backward: bool = False
    read: bool = False
    written: bool = False
    source: str = ""


def finalize(
    builders: list[TensorBuilder], rows: list[Row], ring: tuple[LayerId, ...]
) -> tuple[tuple[TensorInfo, ...], NDArray[Any]]:
    """The tensors and events of a Trace. Small storages that one layer needs count as one tensor."""
    builders, rows = _group_small(builders, rows)
    for builder in builders:
        if builder.role is None:
            builder.role = _role(builder)
    names = _names(builders, ring)
    tensors = tuple(
        TensorInfo(name, d.role or "workspace", d.nbytes, d.address, d.key, d.aliases, d.managed, d.reason, d.source)
        for name, d in zip(names, builders, strict=True)
    )
    return tensors, np.array(rows, EVENT_DTYPE)


def _role(builder: TensorBuilder) -> Role:
    if builder.layer < 0:
        return "workspace" if builder.written else "input"
    return "activation" if builder.read_backward and builder.maker and not builder.made_backward else "workspace"


def _names(builders: list[TensorBuilder], ring: tuple[LayerId, ...]) -> list[str]:
    """Unique and the same in every run: given names first, then layer, operator and number of that kind."""
    taken = {d.name for d in builders if d.name and not (d.role == "grad" and d.layer < 0)}
    used: Counter[str] = Counter()
    numbers: Counter[str] = Counter()
    names = []
    for d in builders:
        name = d.name
        if d.role == "grad" and d.layer < 0 and name in taken:
            name += PREVIOUS
        if not name:
            made = f"{ring[d.layer]}/{d.maker or 'unwritten'}" if d.layer >= 0 else d.role or "workspace"
            name = f"{made}#{numbers[made]}"
            numbers[made] += 1
        used[name] += 1
        names.append(name if used[name] == 1 else f"{name}~{used[name]}")
    return names


def _group_small(builders: list[TensorBuilder], rows: list[Row]) -> tuple[list[TensorBuilder], list[Row]]:
    """Small storages that died in the stretch of their birth become one tensor a stretch, as large as ever."""
    freed = {row[2] for row in rows if row[0] == FREED}
    groups: dict[int, int] = {}
    kept: list[TensorBuilder] = []
    target: list[int] = []
    for index, builder in enumerate(builders):
        if builder.small is None or builder.name or index not in freed:
            target.append(len(kept))
            kept.append(builder)
            continue
        if builder.small not in groups:
            groups[builder.small] = len(kept)
            kept.append(
                TensorBuilder(
                    0, 0, builder.layer, role="workspace", managed=False, reason=SMALL_REASON, maker="small storages"
                )
            )
        target.append(groups[builder.small])
    members = set(groups.values())
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    alive: Counter[int] = Counter()
    for at, row in enumerate(rows):
        group = target[row[2]] if row[2] >= 0 else -1
        if group in members and row[0] in (BORN, FREED):
            first.setdefault(group, at)
            last[group] = at
            alive[group] += row[4] if row[0] == BORN else -row[4]
            kept[group].nbytes = max(kept[group].nbytes, alive[group])
    merged: list[Row] = []
    for at, (kind, layer, tensor, op, nbytes, offset, time_ns) in enumerate(rows):
        to = target[tensor] if tensor >= 0 else -1
        if to not in members:
            merged.append((kind, layer, to, op, nbytes, offset, time_ns))
        elif kind in (BORN, FREED):
            if at in (first[to], last[to]):
                merged.append((kind, layer, to, op, kept[to].nbytes, 0, time_ns))
        else:
            merged.append((kind, layer, to, op, min(nbytes, kept[to].nbytes), 0, time_ns))
    return kept, merged
