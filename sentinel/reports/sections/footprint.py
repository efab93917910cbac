"""Bytes alive over the layers of a step by role, and what the plan holds in each tier."""

from __future__ import annotations

import numpy as np
import pandas as pd

from sentinel.core.trace import ROLES
from sentinel.core.units import format_bytes
from sentinel.reports.facts import Facts
from sentinel.reports.frame_columns import of_names, whole
from sentinel.reports.headline import median_by_layer
from sentinel.reports.html import layer_charts
from sentinel.reports.html.layer_axis import Columns
from sentinel.reports.section import Document, Section, TextTable
from sentinel.reports.text import sparkline


def _footprint(facts: Facts) -> pd.DataFrame | None:
    """Bytes alive in each layer by role, managed or not; one row a layer and role that occurs."""
    profile = facts.profile
    if profile is None:
        return None
    live = profile.live_bytes_by_role()
    present = np.flatnonzero(live.any(axis=1))
    layer = np.tile(np.arange(profile.n_layers), len(present))
    return pd.DataFrame(
        {
            "layer": whole(layer),
            "role": of_names(ROLES, np.repeat(present, profile.n_layers)),
            "nbytes": whole(live[present].reshape(-1)),
        }
    )


def _occupancy(facts: Facts) -> pd.DataFrame | None:
    """Bytes that the plan holds in each tier in each layer, migrations in flight counted on both sides; `ran_bytes`:
    what the run held there, the median over the steps that ran as planned."""
    plan, run = facts.plan, facts.run
    if plan is None:
        return None
    tiers, length = plan.held_bytes.shape
    ran, known = np.zeros((tiers, length), np.int64), np.zeros((tiers, length), np.bool_)
    for tier in range(tiers if run is not None and run.tier_names == plan.tier_names else 0):
        held = run.held_bytes(tier) if run is not None else None
        if run is not None and held is not None:
            ran[tier], known[tier] = median_by_layer(run, held, length)
    return pd.DataFrame(
        {
            "layer": whole(np.tile(np.arange(length), tiers)),
            "tier": of_names(plan.tier_names, np.repeat(np.arange(tiers), length)),
            "held_bytes": whole(plan.held_bytes.reshape(-1)),
            "capacity_bytes": whole(np.repeat(np.array(plan.capacity_bytes, np.int64), length)),
            "ran_bytes": whole(ran.reshape(-1), known.reshape(-1)),
        }
    )


def _text(report: Document[Facts]) -> TextTable:
    """Live bytes over layers, by role, and what the plan holds in each tier."""
    rows: list[tuple[str, str, str]] = []
    if "footprint" in report.tables and len(report.tables["footprint"]):
        table = report.tables["footprint"].pivot(index="layer", columns="role", values="nbytes").astype("float64")
        total = table.sum(axis=1)
        top = float(total.max())
        rows.append(("all roles", format_bytes(top), sparkline(total.tolist(), top)))
        for role in table.max().sort_values(ascending=False, kind="stable").index:
            column = table[role]
            rows.append((f"  {role}", format_bytes(float(column.max())), sparkline(column.tolist(), top)))
    if "occupancy" in report.tables:
        for tier, part in report.tables["occupancy"].groupby("tier", sort=False):
            held = part["held_bytes"].astype("float64")
            scale = max(float(held.max()), 1.0)
            rows.append((f"{tier} tier, planned", format_bytes(float(held.max())), sparkline(held.tolist(), scale)))
    title = "Bytes over the layers of a step (most, then layer by layer; of all that lives in any part of a layer)"
    return TextTable(title, rows)


def _footprint_chart(report: Document[Facts]) -> str:
    if report.facts.profile is None or not report.facts.layers:
        return ""
    return layer_charts.footprint(report.facts.profile, Columns(report.facts.layers))


def _occupancy_charts(report: Document[Facts]) -> str:
    if report.facts.plan is None or not report.facts.layers:
        return ""
    return layer_charts.occupancy(report.facts.plan, report.tables["occupancy"], Columns(report.facts.layers))


FOOTPRINT = Section[Facts]("Footprint", "footprint", _footprint, _text, _footprint_chart)
OCCUPANCY = Section[Facts]("Occupancy of the tiers", "occupancy", _occupancy, html=_occupancy_charts)
