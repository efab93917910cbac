"""The page: caveats on top, the headline, then the pictures and tables. One file, no network, no library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sentinel.core.units import format_bytes, format_ns
from sentinel.reports import buckets, false_sharing, outcomes, ranges, who_moved
from sentinel.reports.caveats import counted, done_sentence
from sentinel.reports.html import by_layer
from sentinel.reports.html.columns import Columns
from sentinel.reports.html.heat import heat
from sentinel.reports.html.lanes import lanes
from sentinel.reports.html.shell import document, section
from sentinel.reports.html.svg import escape, tag
from sentinel.reports.html.tables import MAX_ROWS, Column, of_bytes, of_ns, of_share, pairs, plain, table, yes_no
from sentinel.reports.in_short import in_short
from sentinel.reports.text import headline_rows

if TYPE_CHECKING:
    import pandas as pd

    from sentinel.reports.report import Report


_SHOWN_CAVEATS = 5
"""Of the caveats; those after the most important ones are a click away."""


def page(report: Report) -> str:
    """The whole document."""
    title = f"Sentinel report · {report.setup.script}" if report.setup.script else "Sentinel report"
    body = "".join((_header(report), _caveats(report), _headline(report), *_pictures(report), *_tables(report)))
    return document(title, body)


def _header(report: Report) -> str:
    kind = report.headline["kind"] or "profiled only"
    badge = tag("span", escape(kind), class_=f"badge {kind.split()[0]}")
    script = tag("p", escape(report.setup.script), class_="script") if report.setup.script else ""
    done = tag("p", escape(done_sentence(report.headline)), class_="done-sentence")
    rows = "".join(f"{tag('dt', escape(what))}{tag('dd', _coded(said))}" for what, said in in_short(report.headline))
    short = f'<dl class="short">{rows}</dl>' if rows else ""
    return f"<header><h1>Migration report {badge}</h1>{script}{done}{short}</header>"


def _coded(sentence: str) -> str:
    """What stands between back-quotes as code."""
    parts = escape(sentence).split("`")
    return "".join(tag("code", part) if number % 2 else part for number, part in enumerate(parts))


def _caveats(report: Report) -> str:
    """All but what the header says already."""
    told = [caveat for caveat in report.caveats if caveat != done_sentence(report.headline)]
    if not told:
        return ""
    items = [tag("li", escape(caveat)) for caveat in told]
    first, rest = "".join(items[:_SHOWN_CAVEATS]), "".join(items[_SHOWN_CAVEATS:])
    more = f"<details><summary>{len(items) - _SHOWN_CAVEATS} more</summary><ul>{rest}</ul></details>" if rest else ""
    return (
        '<section class="caveats" aria-label="Caveats"><h2>Before you read the numbers</h2>'
        f"<ul>{first}</ul>{more}</section>"
    )


def _headline(report: Report) -> str:
    rows = headline_rows(report.headline)
    return (
        f'<section><h2>Headline</h2><div class="cards">{"".join(_cards(report.headline))}</div>'
        f"<details><summary>All figures</summary>{pairs(rows, 'Headline')}</details></section>"
    )


def _cards(h: dict[str, Any]) -> list[str]:
    applied, plain_ns, predicted = h["step_ns_applied"], h["step_ns_plain"], h["step_ns_predicted"]
    step = applied if applied is not None else predicted
    what = "Step, applied" if applied is not None else "Step, predicted"
    against = f"{step / plain_ns:.3f} × plain ({format_ns(plain_ns)})" if step and plain_ns else ""
    capacity, peak, fast = h["fast_capacity_bytes"], h["peak_bytes"], h["fast_peak_bytes"]
    share = f"{capacity / peak:.1%} of {format_bytes(peak)}" if capacity is not None and peak else ""
    served = h["fast_served_fraction"]
    live = h["live_bytes"]
    managed = h["managed_bytes"] / live if live else None
    near = f"{predicted / applied - 1:+.1%} against applied" if predicted and applied else ""
    return [
        _card("Fast budget", _bytes(capacity), share),
        _card(what, None if step is None else format_ns(step), against),
        _card("Served from fast", None if served is None else f"{served:.1%}", "of the bytes touched", served),
        _card("Migrated a step", _bytes(h["migrated_bytes_per_step"]), "both ways"),
        _card("Fast peak", _bytes(fast), "most held at one time", fast / capacity if fast and capacity else None),
        _card("Predicted", None if predicted is None else format_ns(predicted), near),
        _card("Managed", None if managed is None else f"{managed:.1%}", "of the fullest layer's bytes", managed),
        _card("Stall a step", None if h["stall_ns_per_step"] is None else format_ns(h["stall_ns_per_step"]), ""),
    ]


def _card(name: str, value: str | None, remark: str, share: float | None = None) -> str:
    number = value if value is not None else "unknown"
    meter = ""
    if share is not None:
        meter = f'<div class="meter" aria-hidden="true"><i style="width:{min(max(share, 0), 1):.1%}"></i></div>'
    low = ' class="unknown"' if value is None else ""
    title, small = tag("h3", escape(name)), tag("small", escape(remark))
    return f'<div class="card">{title}<p{low}>{escape(number)}</p>{small}{meter}</div>'


def _bytes(nbytes: int | None) -> str | None:
    return None if nbytes is None else format_bytes(nbytes)


def _pictures(report: Report) -> list[str]:
    profile, plan, run = report.profile, report.plan, report.run
    ids = profile.layers if profile else plan.layers if plan else ()
    if not ids:
        return []
    columns, layers = Columns(ids), report.frames()["layers"]
    word = report.headline["kind"] or "profiled"
    word = "simulated" if word == "declared" else word
    found = []
    if profile is not None:
        found.append(section("Footprint", by_layer.footprint(profile, columns)))
    if plan is not None:
        found.append(section("Occupancy of the tiers", by_layer.occupancy(plan, layers, columns)))
    if run is not None:
        found.append(section("Migrations on a timeline", lanes(run, plan, ids)))
        found.append(section("Predicted and executed, by layer", by_layer.times(layers, columns, word)))
    if profile is not None and len(profile.tensors):
        found.append(section("The largest tensors over the layers", heat(profile, plan, columns)))
    return found


def _tables(report: Report) -> list[str]:
    frames = report.frames()
    found = [section("Migrations", _migrations(frames["migrations"]))]
    if moved := who_moved.text_rows(report.executed):
        found.append(section("Who moved what", pairs(moved, who_moved.TITLE)))
    if stayed := outcomes.stayed_rows(report.executed):
        found.append(section(outcomes.TITLE, pairs(stayed, outcomes.TITLE)))
    if report.setup.buckets:
        found.append(section(buckets.TITLE, pairs(buckets.text_rows(report.setup.buckets), buckets.TITLE)))
    if "tensors" in frames:
        found.append(section("Tensors", _tensors(frames["tensors"], _unit(report))))
    if "ranges" in frames:
        found.append(section(ranges.TITLE, _ranges(frames["ranges"])))
    place: list[Column] = [("tensor", "tensor", str), ("nbytes", "bytes", of_bytes), ("reason", "reason", str)]
    for key, title in (("in_place", "Stayed in place"), ("unmanaged", "Fell back to malloc, all allocations added up")):
        if len(frames[key]):
            columns = [column for column in place if column[0] in frames[key]]
            columns = columns if key == "in_place" else columns[::-1]
            found.append(section(title, table(frames[key].sort_values("nbytes", ascending=False), columns, title)))
    if report.profile is not None and report.profile.sharing is not None:
        rows = false_sharing.rows(report.profile.sharing, report.profile.layers)
        found.append(section(false_sharing.TITLE, pairs(rows, false_sharing.TITLE)))
    found.append(section("Quality and origin", _quality(report)))
    return found


def _unit(report: Report) -> str:
    """What the tracker's counts count."""
    return report.profile.quality.counts if report.profile else "counts"


def _tensors(frame: pd.DataFrame, unit: str) -> str:
    columns: list[Column] = [
        ("tensor", "tensor", str),
        ("role", "role", str),
        ("nbytes", "bytes", of_bytes),
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
    return table(largest, columns, "Tensors, largest first", total=len(frame))


def _ranges(frame: pd.DataFrame) -> str:
    columns: list[Column] = [
        ("tensor", "tensor", str),
        ("first_page", "first page", plain),
        ("stop_page", "stop page", plain),
        ("nbytes", "bytes", of_bytes),
        ("density", "pages touched, a layer", of_share),
        ("share_of_touches", "of the tensor's touches", of_share),
        ("tier", "tier", str),
        ("fast_bytes", "bytes in fast", of_bytes),
        ("migrations", "migrations a step", plain),
    ]
    return table(frame, columns, ranges.TITLE)


def _migrations(frame: pd.DataFrame) -> str:
    if not len(frame):
        return tag("p", "The plan has no migrations.", class_="note")
    keys = ["source", "target", "reason", "outcome"]
    grouped = frame.groupby(keys, dropna=False, sort=True)
    summary = grouped.agg(
        count=("nbytes", "size"), nbytes=("nbytes", "sum"), moved=("moved_bytes", "sum")
    ).reset_index()
    summary["count"] = summary["count"].astype("Int64")
    if frame["moved_bytes"].isna().all():
        summary["moved"] = summary["moved"].where(summary["moved"].isna())
    columns: list[Column] = [
        ("source", "from", str),
        ("target", "to", str),
        ("reason", "reason", str),
        ("outcome", "outcome", str),
        ("count", "count", plain),
        ("nbytes", "bytes to move", of_bytes),
        ("moved", "bytes moved", of_bytes),
    ]
    steps = frame["step"].nunique()
    return table(
        summary, columns, f"Migrations over {counted(steps, 'step')}" if steps else "Migrations planned for each step"
    )


def _quality(report: Report) -> str:
    words = {True: "proved by digest", False: "not the one shown here", None: "not recorded"}
    rows = [(f"{what} made from this {source}", words[state], "") for what, source, state in report.provenance]
    quality = report.profile.quality if report.profile else None
    if quality is not None:
        rows += [
            ("tracker", quality.tracker, ""),
            ("what a count means", quality.counts, f"one of {quality.period} counted"),
            ("sees", " and ".join(quality.sees) or "nothing", ""),
            ("granularity", format_bytes(quality.granularity_bytes), ""),
            ("lost; attributed late", f"{quality.lost:,}; {quality.late:,}", "events"),
            ("own cost in the profiled step", of_ns(quality.overhead_ns), "taken off the layers' times"),
            ("blind to", ", ".join(quality.blind_to) or "nothing known", ""),
        ]
    if report.run is not None:
        rows += [(*_counter(name, n), "counted in the run") for name, n in sorted(report.run.counters.items())]
    return pairs(rows, "Quality and origin") if rows else ""


def _counter(name: str, count: int) -> tuple[str, str]:
    """A counter's name and value, the unit taken from the name to the value."""
    words = name.replace("_", " ")
    if name.endswith("_bytes"):
        return words.removesuffix(" bytes"), format_bytes(count)
    if name.endswith("_ns"):
        return words.removesuffix(" ns"), format_ns(count)
    return words, f"{count:,}"
