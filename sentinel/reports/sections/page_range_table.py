"""Hot and cold ranges of large tensors: how densely each is touched, and where the plan has it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from sentinel.core.extents import extent_shares, merge_extents
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES, format_bytes
from sentinel.reports.facts import Facts
from sentinel.reports.frame_columns import of_names, whole
from sentinel.reports.html.tables import Column, of_share, plain, table
from sentinel.reports.section import NO_TEXT, Document, Section, TextTable

TITLE = "Hot and cold ranges of large tensors"
TEXT_TITLE = f"{TITLE} (the most touched; density: the share of its pages that a layer touches)"
TOP = 4
"""Tensors whose ranges the text shows, those of the most touches; the other forms show all."""


def _frame(facts: Facts) -> pd.DataFrame | None:
    """One row a range of a tensor that has several, by tensor and page; None if no tensor has.

    `density`: of its pages, the share that a layer touches, over the layers that touch the tensor.
    `share_of_touches`: of all touches of the tensor. `tier`: where most of it is as layer 0 begins; `fast_bytes`: how
    much of it is in the fast tier then; `migrations`: of its blocks, a step.
    """
    profile, plan = facts.profile, facts.plan
    if profile is None or not profile.is_cut:
        return None
    extents, n = profile.extents, len(profile.extents)
    tensor, nbytes = extents["tensor"], extents["nbytes"]
    chosen = np.flatnonzero(np.bincount(tensor)[tensor] > 1)
    a = profile.accesses[profile.accesses["pages_touched"] > 0]
    touches = np.bincount(a["extent"], a["pages_touched"], n)
    layers = np.bincount(a["extent"], minlength=n)
    of_tensor = np.bincount(tensor, touches)[tensor]
    whole_a = merge_extents(profile).accesses
    steps = np.bincount(whole_a["extent"][whole_a["pages_touched"] > 0], minlength=len(profile.names))[tensor]
    first, pages = extents["offset"] // PAGE_BYTES, -(-nbytes // PAGE_BYTES)
    tier, fast, moves = _places(plan, profile) if plan is not None else (np.full(n, -1), nbytes, nbytes)
    return pd.DataFrame(
        {
            "tensor": of_names(profile.names, tensor[chosen]),
            "first_page": whole(first[chosen]),
            "stop_page": whole((first + pages)[chosen]),
            "nbytes": whole(nbytes[chosen]),
            "touched_layers": whole(layers[chosen]),
            "page_touches": whole(touches[chosen]),
            "density": _real((touches / np.maximum(pages * steps, 1))[chosen]),
            "share_of_touches": _real((touches / np.maximum(of_tensor, 1))[chosen]),
            "tier": of_names(plan.tier_names if plan is not None else (), tier[chosen]),
            "fast_bytes": whole(fast[chosen], plan is not None),
            "migrations": whole(moves[chosen], plan is not None),
        }
    )


def _real(values: Any) -> Any:
    return pd.array(values, dtype="Float64")


def _places(plan: Plan, profile: Profile) -> tuple[Any, Any, Any]:
    """Per extent: the tier of most of it as layer 0 begins, its bytes in fast, its migrations."""
    n = len(profile.extents)
    block, extent, share = extent_shares(plan, profile)
    tier = plan.block_columns.tier[block]
    times = np.bincount(plan.move_columns.block, minlength=len(plan.blocks))
    held, moves = np.zeros((len(plan.tier_names), n), np.int64), np.zeros(n, np.int64)
    np.add.at(held, (tier, extent), np.rint(share * profile.extents["nbytes"][extent]).astype(np.int64))
    np.add.at(moves, extent, times[block])
    return np.where(held.any(axis=0), held.argmax(axis=0), -1), held[0], moves


def _text(report: Document[Facts]) -> TextTable:
    """The tensors with the most touches, each with all its ranges."""
    table = report.tables.get("ranges")
    if table is None:
        return NO_TEXT
    most = table.groupby("tensor", sort=False)["page_touches"].sum().sort_values(ascending=False, kind="stable")
    rows: list[tuple[str, ...]] = [("bytes", "pages", "density", "of its touches", "tier", "tensor")]
    for name in most.index[:TOP]:
        for row in table[table["tensor"] == name].astype(object).to_dict("records"):
            figures = (f"{row['density']:.1%}", f"{row['share_of_touches']:.1%}")
            pages = f"[{row['first_page']}:{row['stop_page']}]"  # as blocks are named
            rows.append((format_bytes(row["nbytes"]), pages, *figures, _tier(row), str(name)))
    return TextTable(TEXT_TITLE, rows)


def _tier(row: Any) -> str:
    if pd.isna(row["tier"]):
        return "unknown"
    moves = row["migrations"]
    return f"{row['tier']}, moves" if moves else str(row["tier"])


def _html(report: Document[Facts]) -> str:
    if "ranges" not in report.tables:
        return ""
    columns: list[Column] = [
        ("tensor", "tensor", str),
        ("first_page", "first page", plain),
        ("stop_page", "stop page", plain),
        ("nbytes", "bytes", format_bytes),
        ("density", "pages touched, a layer", of_share),
        ("share_of_touches", "of the tensor's touches", of_share),
        ("tier", "tier", str),
        ("fast_bytes", "bytes in fast", format_bytes),
        ("migrations", "migrations a step", plain),
    ]
    return table(report.tables["ranges"], columns, TITLE)


PAGE_RANGES = Section[Facts](TITLE, "ranges", _frame, _text, _html)
