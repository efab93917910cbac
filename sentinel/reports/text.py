"""The report for a terminal: what was done, caveats, headline, where the bytes are and what moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sentinel.core.units import format_bytes, format_ns
from sentinel.reports import buckets, false_sharing, outcomes, ranges, who_moved
from sentinel.reports.caveats import counted, done_sentence
from sentinel.reports.in_short import TITLE as IN_SHORT
from sentinel.reports.in_short import in_short

if TYPE_CHECKING:
    import pandas as pd

    from sentinel.reports.report import Report

WIDTH = 100
TOP = 10
"""Rows of a list; a note says how many more there are."""

_BARS = "▁▂▃▄▅▆▇█"


def text_of(report: Report) -> str:
    """Every section that there is something to say in."""
    frames = report.frames()
    sections = [
        _title(report),
        _in_short(report.headline),
        _caveats(report),
        _table("Headline", headline_rows(report.headline)),
        _footprint(frames),
        _migrations(frames["migrations"], report.headline["steps"]),
        _table(who_moved.TITLE, who_moved.text_rows(report.executed)),
        _table(outcomes.TITLE, outcomes.stayed_rows(report.executed)),
        _tensors(frames.get("tensors")),
        _table(ranges.TEXT_TITLE, ranges.text_rows(frames.get("ranges"))),
        _false_sharing(report),
        _table(buckets.TITLE, buckets.text_rows(report.setup.buckets)),
        _in_place(frames["in_place"], "Stayed in place"),
        _in_place(frames["unmanaged"], "Fell back to malloc, all allocations added up"),
        _origins(report),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def headline_rows(h: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(what, value, remark) of the headline table; the first row says what was done."""
    capacity, peak = h["fast_capacity_bytes"], h["peak_bytes"]
    share = f"{capacity / peak:.1%} of the footprint" if capacity is not None and peak else ""
    live = h["live_bytes"]
    managed = f"{h['managed_bytes'] / live:.1%}" if live else None
    applied, plain = h["step_ns_applied"], h["step_ns_plain"]
    versus = f"{applied / plain:.3f} of plain" if applied and plain else ""
    ahead = f"{h['step_ns_predicted'] / applied:.3f} of applied" if h["step_ns_predicted"] and applied else ""
    plain_kind = {True: "measured", False: "estimated", None: ""}[h["step_ns_plain_is_measured"]]
    gap = f"{h['optimality_gap']:+.1%}" if h["optimality_gap"] is not None else None
    served = f"{h['fast_served_fraction']:.1%}" if h["fast_served_fraction"] is not None else None
    cases = " · ".join(f"{n} × case {case}" for case, n in h["cases"].items()) if h["cases"] else None
    rows: list[tuple[str, str | None, str]] = [
        ("what was done", h["kind"] or "profiled and planned only", _in_words(h["kind"])),
        ("slow tier", h["slow"], ""),
        ("policy", h["policy"], f"MIL {h['mil']}" if h["mil"] is not None else ""),
        ("tracker", h["tracker"], _counted_by(h["quality"])),
        ("footprint, all fast", _b(peak), "packed in pages"),
        ("live peak", _b(h["live_peak_bytes"]), "tensors only"),
        ("managed", managed, "of the bytes that the fullest layer needs at some time"),
        ("unmanaged", _b(h["unmanaged_bytes"]), "fell back to malloc, at most at one time"),
        ("falsely shared", _b(h["false_sharing_bytes"]), "pages of tensors of unlike hotness, had malloc placed them"),
        ("fast budget", _b(capacity), share),
        ("fast peak", _b(h["fast_peak_bytes"]), "most held, migrations in flight included"),
        ("fast needed", _b(h["fast_needed_bytes"]), "the paper's bound"),
        ("served from fast", served, "of the bytes touched"),
        *ranges.headline_row(h),
        ("migrated a step", _b(h["migrated_bytes_per_step"]), ""),
        ("stall a step", _t(h["stall_ns_per_step"]), ""),
        ("step, plain", _t(plain), plain_kind),
        ("step, profiled", _t(h["step_ns_profiled"]), ""),
        ("step, applied", _t(applied), versus),
        ("step, predicted", _t(h["step_ns_predicted"]), ahead),
        ("step, bound", _t(h["step_ns_bound"]), f"predicted {gap} above it" if gap else ""),
        ("cases", cases, "promotions: 1 in time, 2 late for room, 3 late for time"),
        ("set-up", _t(h["setup_ns"]), "planning apart"),
        ("planning", _t(h["plan_ns"]), ""),
    ]
    return [(what, "unknown" if value is None else value, "" if value is None else note) for what, value, note in rows]


def _in_words(kind: str | None) -> str:
    """The kind in a few words."""
    return {
        "executed": "on this host's memory",
        "emulated": "executed with injected delays, not on slower memory",
        "simulated": "computed, nothing was applied",
        "declared": "this host has no slower memory: computed, nothing was applied",
    }.get(kind or "", "nothing was applied or simulated")


def _b(nbytes: int | None) -> str | None:
    return None if nbytes is None else format_bytes(nbytes)


def _t(ns: int | None) -> str | None:
    return None if ns is None else format_ns(ns)


def _title(report: Report) -> str:
    kind = report.headline["kind"]
    label = f" [{kind.upper()}]" if kind and kind != "executed" else ""
    script = f"\n{report.setup.script}" if report.setup.script else ""
    return f"Sentinel migration report{label}{script}\n{_wrapped(done_sentence(report.headline), '')}"


def _in_short(headline: dict[str, Any]) -> str:
    rows = [_wrapped(f"  {what:<8}{sentence}", " " * 10) for what, sentence in in_short(headline)]
    return "\n".join([IN_SHORT, *rows]) if rows else ""


def _caveats(report: Report) -> str:
    """All but what the title says already."""
    told = [caveat for caveat in report.caveats if caveat != done_sentence(report.headline)]
    return "\n".join(["Caveats", *(_wrapped(f"  ! {caveat}", "    ") for caveat in told)]) if told else ""


def _wrapped(sentence: str, indent: str) -> str:
    import textwrap

    return textwrap.fill(sentence, WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def _counted_by(quality: dict[str, Any] | None) -> str:
    if quality is None:
        return ""
    amiss = f"{quality['lost']:,} lost, {quality['late']:,} late"
    return f"counts {quality['counts']} ({quality['sees']}); {amiss}; own time {format_ns(quality['tracker_ns'])}"


def _table(title: str, rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest entry; the last one as it is."""
    if not rows:
        return ""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append(("  " + "  ".join([*cells, row[-1]])).rstrip())
    return "\n".join([title, *lines])


def sparkline(values: Sequence[float], top: float, width: int = 64) -> str:
    """Bars of at most `width` characters; each shows the largest of the layers that it stands for."""
    if not len(values) or top <= 0:
        return ""
    parts = np.array_split(np.asarray(values, float), min(width, len(values)))
    return "".join(_BARS[min(int(part.max() / top * 8), 7)] if part.max() > 0 else " " for part in parts).rstrip()


def _footprint(frames: dict[str, pd.DataFrame]) -> str:
    """Live bytes over layers, by role, and what the plan holds in each tier."""
    rows: list[tuple[str, str, str]] = []
    if "footprint" in frames and len(frames["footprint"]):
        table = frames["footprint"].pivot(index="layer", columns="role", values="nbytes").astype("float64")
        total = table.sum(axis=1)
        top = float(total.max())
        rows.append(("all live", format_bytes(top), sparkline(total.tolist(), top)))
        for role in table.max().sort_values(ascending=False, kind="stable").index:
            column = table[role]
            rows.append((f"  {role}", format_bytes(float(column.max())), sparkline(column.tolist(), top)))
    if "occupancy" in frames:
        for tier, part in frames["occupancy"].groupby("tier", sort=False):
            held = part["held_bytes"].astype("float64")
            scale = max(float(held.max()), 1.0)
            rows.append((f"{tier} tier, planned", format_bytes(float(held.max())), sparkline(held.tolist(), scale)))
    return _table("Bytes over the layers of a step (peak, then layer by layer)", rows)


def _migrations(table: pd.DataFrame, steps: int | None) -> str:
    if not len(table):
        return ""
    keys = ["source", "target", "reason", "outcome"]
    groups = table.groupby(keys, dropna=False, sort=True)["nbytes"].agg(["count", "sum"])
    rows = [("direction", "reason", "outcome", "count", "bytes")]
    for key, row in groups.iterrows():
        source, target, reason, outcome = (str(part) for part in key)  # type: ignore[attr-defined]
        word = "planned" if outcome == "<NA>" else outcome
        rows.append((f"{source} → {target}", reason, word, str(int(row["count"])), format_bytes(float(row["sum"]))))
    over = f"over {counted(steps, 'step')}" if steps else "planned for each step"
    return _table(f"Migrations, {over}", rows)


def _tensors(table: pd.DataFrame | None) -> str:
    if table is None or not len(table):
        return ""
    largest = table.sort_values(["nbytes", "tensor"], ascending=[False, True]).head(TOP)
    rows = [("bytes", "role", "layers", "touched in", "tier", "tensor")]
    for row in largest.astype(object).where(largest.notna(), None).to_dict("records"):
        layers, touched = f"{row['first_layer']}–{row['last_layer']}", counted(row["touched_layers"], "layer")
        tier = row["tier"] or "unknown"
        rows.append((format_bytes(row["nbytes"]), row["role"], layers, touched, tier, _shown(row["tensor"])))
    return _table(f"Largest tensors ({len(largest)} of {len(table)})", rows)


def _shown(name: str) -> str:
    """A tensor's name without what would break the line or drive the terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name)


def _in_place(table: pd.DataFrame, title: str) -> str:
    if not len(table):
        return ""
    largest = table.sort_values("nbytes", ascending=False, kind="stable").head(TOP)
    rows = []
    for row in largest.to_dict("records"):
        named = [_shown(str(row["tensor"]))] if "tensor" in row else []
        rows.append((format_bytes(row["nbytes"]), str(row["reason"]), *named))
    return _table(f"{title} ({len(largest)} of {len(table)})", rows)


def _false_sharing(report: Report) -> str:
    profile = report.profile
    if profile is None or profile.sharing is None:
        return ""
    return _table(false_sharing.TITLE, false_sharing.rows(profile.sharing, profile.layers))


def _origins(report: Report) -> str:
    words = {True: "proved by digest", False: "NOT the one shown here", None: "not recorded"}
    rows = [(f"{what} made from this {source}", words[state]) for what, source, state in report.provenance]
    quality = report.profile.quality if report.profile else None
    if quality:
        sees, spent = " and ".join(quality.sees) or "nothing", format_ns(quality.overhead_ns)
        rows.append(("tracker counts", f"{quality.counts} ({sees}), one of {quality.period}; {spent} spent"))
    return _table("Origin and quality", rows)
