"""The tensors of a step: sizes, lifetimes, accesses, and where the plan has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sentinel.core.extents import merge_extents
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.trace import ROLES
from sentinel.core.units import counted, format_bytes
from sentinel.reports.facts import Facts
from sentinel.reports.frame_columns import of_names, truths, whole, words
from sentinel.reports.html.heat import heat
from sentinel.reports.html.layer_axis import Columns
from sentinel.reports.html.tables import MAX_ROWS, Column, plain, table, yes_no
from sentinel.reports.section import NO_TEXT, Document, Section, TextTable

TOP = 10
"""Rows of the text; its title says of how many."""


def _tensors(facts: Facts) -> pd.DataFrame | None:
    """One row a tensor. Layers first_layer..last_layer, both within; last < first: alive across the step's end."""
    profile, plan = facts.profile, facts.plan
    if profile is None:
        return None
    rows, n = profile.tensors, len(profile.names)
    a = merge_extents(profile).accesses
    count = np.bincount(a["extent"], minlength=n)[:n]
    reads, writes = (_sum_known(a[name], a["extent"], n) for name in ("reads", "writes"))
    touched = np.zeros(n, np.int64)
    np.add.at(touched, a["extent"], a["touched_bytes"])
    tier, moves, moved = _places(profile, plan)
    reasons = {name: reason for name, _, reason in facts.setup.in_place}
    return pd.DataFrame(
        {
            "tensor": pd.array(list(profile.names), dtype="string"),
            "name": pd.array(list(profile.names), dtype="string"),
            "role": of_names(ROLES, rows["role"].astype(np.int64)),
            "nbytes": whole(rows["nbytes"]),
            "first_layer": whole(rows["start"]),
            "last_layer": whole((rows["stop"] - 1) % profile.n_layers),
            "lifetime_layers": whole(rows["stop"] - rows["start"]),
            "persistent": truths(rows["persistent"]),
            "touched_layers": whole(count),
            "touched_bytes": whole(touched),
            "reads": reads,
            "writes": writes,
            "tier": of_names(plan.tier_names if plan else (), tier),
            "migrations": whole(moves, plan is not None),
            "migrated_bytes": whole(moved, plan is not None),
            "managed": truths(rows["managed"]),
            "reason": words(reasons.get(name) for name in profile.names),
        }
    )


def _sum_known(values: NDArray[Any], of: NDArray[Any], n: int) -> Any:
    """Sum per tensor; unknown as soon as one part is."""
    out, unknown = np.zeros(n, np.int64), np.zeros(n, np.bool_)
    np.add.at(out, of, np.maximum(values, 0))
    unknown[of[values < 0]] = True
    return whole(out, ~unknown)


def _places(profile: Profile, plan: Plan | None) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Per tensor: tier of birth (persistent: as layer 0 begins) of most of its bytes, -1 unknown; migrations
    of its blocks a step; its own bytes that these move."""
    n = len(profile.names)
    tiers = 1 if plan is None else len(plan.tier_names)
    begins, moves, moved = (np.zeros(shape, np.int64) for shape in ((tiers, n), n, n))
    if plan is not None:
        blocks = plan.block_columns
        tensor, owner = blocks.tensors, blocks.owner
        times = np.bincount(plan.move_columns.block, minlength=len(blocks))[owner]
        held = np.minimum(profile.tensors["nbytes"][tensor], blocks.nbytes[owner])
        np.add.at(begins, (blocks.tier[owner], tensor), held)
        np.add.at(moves, tensor, times)
        np.add.at(moved, tensor, times * held)
    placed = begins.any(axis=0) & profile.tensors["managed"]
    return np.where(placed, begins.argmax(axis=0), -1), moves, moved


def _accesses(facts: Facts) -> pd.DataFrame | None:
    """One row a tensor and layer in which it is touched."""
    profile = facts.profile
    if profile is None:
        return None
    a = merge_extents(profile).accesses
    known = {name: whole(a[name], a[name] >= 0) for name in ("pages_touched", "pages_written", "reads", "writes")}
    return pd.DataFrame(
        {
            "tensor": of_names(profile.names, a["extent"]),
            "layer": whole(a["layer"]),
            **known,
            "read_bytes": whole(a["read_bytes"]),
            "written_bytes": whole(a["written_bytes"]),
            "touched_bytes": whole(a["touched_bytes"]),
        }
    )


def _text(report: Document[Facts]) -> TextTable:
    table = report.tables.get("tensors")
    if table is None or not len(table):
        return NO_TEXT
    largest = table.sort_values(["nbytes", "tensor"], ascending=[False, True]).head(TOP)
    rows = [("bytes", "role", "layers", "touched in", "tier", "tensor")]
    for row in largest.astype(object).where(largest.notna(), None).to_dict("records"):
        layers, touched = f"{row['first_layer']}–{row['last_layer']}", counted(row["touched_layers"], "layer")
        tier = row["tier"] or "unknown"
        rows.append((format_bytes(row["nbytes"]), row["role"], layers, touched, tier, row["tensor"]))
    return TextTable(f"Largest tensors ({len(largest)} of {len(table)})", rows)


def _html(report: Document[Facts]) -> str:
    if report.facts.profile is None:
        return ""
    frame, unit = report.tables["tensors"], report.facts.profile.quality.counts
    columns: list[Column] = [
        ("tensor", "tensor", str),
        ("role", "role", str),
        ("nbytes", "bytes", format_bytes),
        ("first_layer", "first layer", plain),
        ("last_layer", "last layer", plain),
        ("touched_layers", "touched layers", plain),
        ("reads", f"reads ({unit})", plain),
        ("writes", f"writes ({unit})", plain),
        ("tier", "tier", str),
        ("migrations", "migrations a step", plain),
        ("managed", "managed", yes_no),
    ]
    largest = frame.sort_values(["nbytes", "tensor"], ascending=[False, True]).head(MAX_ROWS)
    keys = [str(key) for key in report.facts.alike.of[largest.index.to_numpy()]]
    return table(largest, columns, "Tensors, largest first", total=len(frame), keys=keys)


def _heat(report: Document[Facts]) -> str:
    profile = report.facts.profile
    if profile is None or not len(profile.tensors) or not profile.layers:
        return ""
    slow = report.facts.slow_accesses
    costs = np.zeros(len(profile.names)) if slow is None else slow.nbytes if slow.ns is None else slow.ns
    return heat(profile, report.facts.plan, Columns(profile.layers), costs, report.facts.alike.of)


TENSORS = Section[Facts]("Tensors", "tensors", _tensors, _text, _html)
ACCESSES = Section[Facts]("Accesses", "accesses", _accesses)
HEAT = Section[Facts]("Tensors over the layers", html=_heat)
