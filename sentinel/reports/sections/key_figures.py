"""The headline: its figures as rows of text, and as cards on the page."""

from __future__ import annotations

from typing import Any

from sentinel.core.units import format_bytes, format_ns
from sentinel.reports.caveats import PHASES, busy
from sentinel.reports.facts import Facts
from sentinel.reports.html.svg import escape, tag
from sentinel.reports.html.tables import pairs
from sentinel.reports.html.terms import explained
from sentinel.reports.outside_plan import compared
from sentinel.reports.section import Document, Section, TextTable
from sentinel.reports.setup import StorageFigures
from sentinel.reports.summary import spread_in_words

TITLE = "Headline"
_WITH_A_FILE = {"footprint, all fast": "tensors of 1 MiB and more", "fast budget": "memory for them"}
_BUSY = "not compared: the host was busy"
_NO_WHOLE_STEP = "computed, since no whole step ran by an applied plan"


def headline_rows(h: dict[str, Any], *, begun: bool = False) -> list[tuple[str, str, str]]:
    """(what, value, remark) of the headline table; the first row says what was done. `begun`: a plan was applied."""
    capacity, peak = h["fast_capacity_bytes"], h["peak_bytes"]
    share = ""
    if capacity is not None and peak:
        of = "the footprint" if h["kind"] != "passive" else "what they took"
        share = f"{capacity / peak:.1%} of {of}" if capacity <= peak else f"more than {of}"
    live = h["live_bytes"]
    managed = f"{h['managed_bytes'] / live:.1%}" if live else None
    applied, plain = h["step_ns_applied"], h["step_ns_plain"]
    versus = f"{applied / plain:.3f} of plain" if applied and plain else ""
    ahead = f"{h['step_ns_predicted'] / applied:.3f} of applied" if h["step_ns_predicted"] and applied else ""
    if busy(h):
        versus = ahead = _BUSY
    plain_kind = {True: "measured", False: "estimated", None: ""}[h["step_ns_plain_is_measured"]]
    gap = f"{h['optimality_gap']:+.1%}" if h["optimality_gap"] is not None else None
    served = f"{h['fast_served_fraction']:.1%}" if h["fast_served_fraction"] is not None else None
    cases = " · ".join(f"{n} × case {case}" for case, n in h["cases"].items()) if h["cases"] else None
    spread, no_step = spread_in_words(h), begun and h["kind"] == "simulated"
    rows: list[tuple[str, str | None, str]] = [
        ("what was done", h["kind"] or "profiled and planned only", _NO_WHOLE_STEP if no_step else in_words(h["kind"])),
        ("slow tier", h["slow"], ""),
        ("policy", h["policy"], f"MIL {h['mil']}" if h["mil"] is not None else ""),
        ("tracker", h["tracker"], _counted_by(h["quality"])),
        ("footprint, all fast", _b(peak), "packed in pages" if h["kind"] != "passive" else "most at one time"),
        ("live peak", _b(h["live_peak_bytes"]), "tensors only"),
        ("managed", managed, "of the bytes alive in the fullest layer"),
        ("unmanaged", _b(h["unmanaged_bytes"]), "most at one time that fell back to malloc"),
        *_outside(h),
        ("falsely shared", _b(h["false_sharing_bytes"]), "pages that would hold hot and cold tensors under malloc"),
        ("fast budget", _b(capacity), share),
        ("fast peak", _b(h["fast_peak_bytes"]), "most held, migrations in flight included"),
        ("fast mean", _b(h["fast_mean_bytes"]), "held over the time of a step"),
        ("fast needed", _b(h["fast_needed_bytes"]), "what one layer needs at once"),
        ("served from fast", served, "of the bytes touched"),
        *_by_ranges(h),
        ("migrated a step", _b(h["migrated_bytes_per_step"]), ""),
        ("stall a step", _t(h["stall_ns_per_step"]), ""),
        ("step, plain", _t(plain), plain_kind),
        ("step, profiled", _t(h["step_ns_profiled"] or None), ""),  # none was, if it was estimated
        ("step, applied", _t(applied), versus),
        *([("step, spread", spread, "of the applied steps")] if spread else []),
        ("step, predicted", _t(h["step_ns_predicted"]), ahead),
        ("step, bound", _t(h["step_ns_bound"]), f"predicted {gap} above it" if gap else ""),
        ("cases", cases, "promotions: 1 in time, 2 late for room, 3 late for time"),
        *_by_load(h),
        ("set-up", _t(h["setup_ns"]), "planning apart"),
        ("planning", _t(h["plan_ns"]), ""),
    ]
    if h["kind"] == "passive":  # nothing was profiled: what is not known never will be
        rows = [(_WITH_A_FILE.get(row[0], row[0]), *row[1:]) for row in rows if row[1] is not None]
    return [(what, "unknown" if value is None else value, "" if value is None else note) for what, value, note in rows]


def _by_ranges(h: dict[str, Any]) -> list[tuple[str, str, str]]:
    """What page ranges serve from fast memory, beside what whole tensors would; empty where not both are known."""
    ranged, whole = h["fast_served_fraction_ranged"], h["fast_served_fraction_whole"]
    if ranged is None or whole is None:
        return []
    return [("served, planned by", f"page ranges {ranged:.1%}", f"whole tensors {whole:.1%}, at equal fast memory")]


def _outside(h: dict[str, Any]) -> list[tuple[str, str, str]]:
    """What no budget covers, and the fast memory of all; empty where it is next to nothing."""
    told = compared(h)
    if told is None or not told[2]:
        return []
    fast, whole, outside = told
    return [
        (
            "outside of the plan",
            format_bytes(outside),
            "stayed in place or was not managed: no budget covers it",
        ),
        ("fast memory of all", format_bytes(fast), f"{fast / whole:.1%} of {format_bytes(whole)}, planned or not"),
    ]


def _by_load(h: dict[str, Any]) -> list[tuple[str, str, str]]:
    """How busy the host was, and what the training thread waited; empty where that is not known."""
    busy_shares, waits = (
        {name: h[f"{what}_{phase}_share"] for phase, name in PHASES.items()} for what in ("busy", "waited")
    )
    by_waits = [name for phase, name in PHASES.items() if h[f"others_{phase}_share"] is None and busy_shares[name]]
    instead = f"; not known in the {' and '.join(by_waits)}: waits instead" if by_waits else ""
    rows = (
        ("host busy", busy_shares, f"what others had of the processors{instead}"),
        ("waits", waits, "of the training thread for a processor; own threads make it wait too"),
    )
    told = [
        (what, ", ".join(f"{share:.1%} in the {name}" for name, share in shares.items() if share is not None), note)
        for what, shares, note in rows
        if any(share is not None for share in shares.values())
    ]
    times = {"in the profiled step": h["cpu_ns_profiled"], "an applied one": h["cpu_ns_per_applied_step"]}
    spent = [f"{format_ns(ns)} {name}" for name, ns in times.items() if ns is not None]
    return [
        *told,
        *([("processor time", ", ".join(spent), "of all threads of this process")] if told and spent else []),
    ]


def in_words(kind: str | None) -> str:
    """The kind in a few words."""
    return {
        "executed": "on this host's memory",
        "emulated": "executed; copies are real, delays of slow accesses are injected",
        "simulated": "computed; nothing was applied",
        "passive": "executed under a budget, without a plan",
        "declared": "this host has no slower memory: computed; nothing was applied",
    }.get(kind or "", "nothing was applied or simulated")


def _b(nbytes: int | None) -> str | None:
    return None if nbytes is None else format_bytes(nbytes)


def _t(ns: int | None) -> str | None:
    return None if ns is None else format_ns(ns)


def _counted_by(quality: dict[str, Any] | None) -> str:
    if quality is None:
        return ""
    amiss = f"{quality['lost']:,} lost, {quality['late']:,} late"
    return f"counts {quality['counts']} ({quality['sees']}); {amiss}; own time {format_ns(quality['tracker_ns'])}"


def _text(report: Document[Facts]) -> TextTable:
    return TextTable(TITLE, headline_rows(report.facts.headline, begun=report.facts.executed is not None))


def _html(report: Document[Facts]) -> str:
    rows, storage = (
        headline_rows(report.facts.headline, begun=report.facts.executed is not None),
        report.facts.setup.storage,
    )
    cards = _cards(report.facts.headline) if storage is None else _cards_on_a_file(storage)
    return (
        f'<div class="cards">{"".join(cards)}</div>'
        f"<details><summary>All figures</summary>{pairs(rows, TITLE)}</details>"
    )


def _cards(h: dict[str, Any]) -> list[str]:
    applied, plain_ns, predicted = h["step_ns_applied"], h["step_ns_plain"], h["step_ns_predicted"]
    step = applied if applied is not None else predicted
    what = "Step, applied" if applied is not None else "Step, predicted"
    against = f"{step / plain_ns:.3f} × plain ({format_ns(plain_ns)})" if step and plain_ns else ""
    against = _BUSY if against and busy(h) else against
    capacity, peak, fast = h["fast_capacity_bytes"], h["peak_bytes"], h["fast_peak_bytes"]
    share = f"{capacity / peak:.1%} of {format_bytes(peak)}" if capacity is not None and peak else ""
    if _outside(h) and (told := compared(h)) is not None:
        share += f"; with what is outside of the plan {told[0] / told[1]:.1%} of {format_bytes(told[1])}"
    served = h["fast_served_fraction"]
    live = h["live_bytes"]
    managed = h["managed_bytes"] / live if live else None
    doubtful, spread = bool(busy(h)), spread_in_words(h)
    against = "; ".join(filter(None, (against, spread)))
    stall = h["stall_ns_per_step"]
    near = f"{predicted / applied - 1:+.1%} against applied" if predicted and applied and not busy(h) else ""
    return [
        _card("Fast budget", _b(capacity), share),
        _card(what, None if step is None else format_ns(step), against, doubtful=doubtful),
        _card("Served from fast", None if served is None else f"{served:.1%}", "of the bytes touched", served),
        _card("Migrated a step", _b(h["migrated_bytes_per_step"]), "both ways"),
        _card("Fast peak", _b(fast), "most held at one time", fast / capacity if fast and capacity else None),
        _card("Predicted", None if predicted is None else format_ns(predicted), near, doubtful=doubtful),
        _card("Managed", None if managed is None else f"{managed:.1%}", "of the fullest layer's bytes", managed),
        _card("Stall a step", None if stall is None else format_ns(stall), "median of the steps", doubtful=doubtful),
    ]


def _cards_on_a_file(told: StorageFigures) -> list[str]:
    """Of a session without a plan. What is not known yet has no card."""
    wanted, there = told.tensor_peak_bytes, told.for_tensors_bytes
    share = there / wanted if wanted else None
    bound = f"at least {format_ns(told.bound_ns)} in this memory" if told.bound_ns else "median of the last 64"
    cap = f"of it up to {format_bytes(told.most_taken_bytes)} beside tensors"
    waits = f"{format_ns(told.wait_before_ns)} without reading ahead"
    return [
        *([_card("Cap on the process", format_bytes(told.cap_bytes), cap)] if told.cap_bytes else []),
        _card("Memory for tensors", format_bytes(there), f"which take {format_bytes(wanted)}", share),
        *([_card("A step", format_ns(told.step_ns), bound)] if told.step_ns else []),
        *([_card("Waits of a step", format_ns(told.wait_after_ns), waits)] if told.recorded else []),
        _card("Read", format_bytes(told.read_bytes), "from the file, until now"),
        _card("Written", format_bytes(told.written_bytes), "to the file, until now"),
    ]


def _card(name: str, value: str | None, remark: str, share: float | None = None, *, doubtful: bool = False) -> str:
    """`doubtful`: a time of a busy host, in grey."""
    number = value if value is not None else "unknown"
    meter = ""
    if share is not None:
        meter = f'<div class="meter" aria-hidden="true"><i style="width:{min(max(share, 0), 1):.1%}"></i></div>'
    low = ' class="unknown"' if value is None else ""
    title, small = tag("h3", explained(name)), tag("small", explained(remark))
    return f'<div class="card{" doubtful" * doubtful}">{title}<p{low}>{escape(number)}</p>{small}{meter}</div>'


KEY_FIGURES = Section[Facts](TITLE, text=_text, html=_html)
