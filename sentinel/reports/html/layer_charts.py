"""The pictures over layers: footprint by role, occupancy of each tier, predicted against executed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sentinel.core.trace import ROLES
from sentinel.core.units import format_bytes, format_ns
from sentinel.reports.html.layer_axis import Columns, Floats
from sentinel.reports.html.svg import WIDTH, Frame, byte_ticks, escape, figure, legend, tag, text, time_ticks, y_axis

if TYPE_CHECKING:
    import pandas as pd

    from sentinel.core.plan import Plan
    from sentinel.core.profile import Profile

_LEFT, _RIGHT, _TOP, _BELOW = 78, 96, 12, 44


def frame_of(y_max: float, height: float = 240) -> Frame:
    """The place of the data in a picture of that height of data."""
    return Frame(_LEFT, _TOP, WIDTH - _LEFT - _RIGHT, height, max(y_max, 1.0))


def footprint(profile: Profile, columns: Columns) -> str:
    """Bytes alive by role, stacked, what lives longest at the bottom."""
    live = profile.live_bytes_by_role()
    order = [r for r in np.argsort(-live.min(axis=1), kind="stable") if live[r].any()]
    total = live.sum(axis=0)
    values = live[order][:, columns.layers_of_most(total)].astype(np.float64)
    frame = frame_of(float(values.sum(axis=0).max()) * 1.05)
    tops = values.cumsum(axis=0)
    body = columns.axis(frame) + y_axis(frame, byte_ticks(frame.y_max))
    for row, role in enumerate(order):
        low = tops[row] - values[row]
        body += columns.steps(frame, low, tops[row], fill=f"var(--{ROLES[role]})", class_="area")
    middles = [(ROLES[r], float(tops[i, -1] - values[i, -1] / 2)) for i, r in enumerate(order) if values[i, -1]]
    body += _labels(frame, middles)
    names = [ROLES[role] for role in order]
    body += columns.readers(
        frame,
        lambda i: "\n".join(
            f"{name}: {format_bytes(value)}"
            for name, value in (*zip(names[::-1], values[::-1, i], strict=True), ("all", values[:, i].sum()))
            if value
        ),
    )
    peak = int(total.argmax())
    shared = " A column of several layers shows the one of most bytes." if columns.count < len(total) else ""
    says = (
        f"Bytes alive in each layer by role. Most in layer {peak} ({profile.layers[peak]}):"
        f" {format_bytes(int(total[peak]))}; "
        + ", ".join(f"{ROLES[r]} {format_bytes(int(live[r, peak]))}" for r in order)
        + f". A layer counts all that lives in any part of it, which may be more than the peak at one time.{shared}"
    )
    swatches = legend([(f'fill="var(--{name})"', name) for name in reversed(names)])
    return figure("Footprint over layers by role", says, body, frame.bottom + _BELOW, swatches)


def _labels(frame: Frame, wanted: list[tuple[str, float]]) -> str:
    """Names at the right edge, bottom to top, pushed apart where they would overlap."""
    parts, last = [], frame.bottom + 8
    for name, value in wanted:
        y = min(frame.y(value) + 4, last - 13)
        parts.append(text(frame.left + frame.width + 8, y, name, class_="label"))
        last = y
    return "".join(parts)


def occupancy(plan: Plan, table: pd.DataFrame, columns: Columns) -> str:
    """What each tier holds in each layer, as planned and as run, against its budget. `table`: that of this name."""
    ran = known(table, "ran_bytes").reshape(plan.held_bytes.shape)
    return "".join(_tier(plan, tier, ran[tier], columns) for tier in range(len(plan.tier_names)))


def _tier(plan: Plan, tier: int, measured: Floats, columns: Columns) -> str:
    name, capacity, held = plan.tier_names[tier], plan.capacity_bytes[tier], plan.held_bytes[tier]
    top = max(float(held.max()), np.nanmax(measured, initial=0.0))
    near = capacity <= 2 * top
    frame = frame_of(max(top, capacity if near else 0.0) * 1.08, 130)
    planned = columns.largest(held)
    body = columns.axis(frame) + y_axis(frame, byte_ticks(frame.y_max))
    body += columns.steps(frame, np.zeros_like(planned), planned, class_="held")
    line = columns.largest(np.nan_to_num(measured)) if not np.isnan(measured).all() else np.full(columns.count, np.nan)
    body += columns.line(frame, line, class_="ran")
    if near:
        y = frame.y(capacity)
        body += tag("line", x1=frame.left, x2=frame.left + frame.width, y1=y, y2=y, class_="budget")
        body += text(frame.left + frame.width + 8, y + 4, "budget", class_="label")
    body += columns.readers(
        frame,
        lambda i: (
            f"planned: {format_bytes(planned[i])}"
            + ("" if np.isnan(line[i]) else f"\nrun: {format_bytes(line[i])}")
            + f"\nbudget: {format_bytes(capacity)}"
        ),
    )
    share = f" ({held.max() / capacity:.0%})" if capacity else ""
    far = "" if near else " The budget lies far above and is not drawn."
    says = f"Tier {name}: at most {format_bytes(int(held.max()))} planned of {format_bytes(capacity)}{share}.{far}"
    entries = [('class="held"', "planned, migrations in flight counted on both sides")]
    if not np.isnan(line).all():
        entries.append(('class="ranswatch"', "run, median of the steps"))
    heading = tag("h3", escape(f"Tier {name}"))
    return heading + figure(f"Occupancy of tier {name}", says, body, frame.bottom + _BELOW, legend(entries))


def times(layers: pd.DataFrame, columns: Columns, word: str) -> str:
    """Time of each layer: plain, predicted and run, and the stalls in it."""
    series = [
        ("plain", "plain_ns", "plainline"),
        ("predicted", "predicted_ns", "predictedline"),
        (word, "duration_ns", "ran"),
    ]
    if word == "simulated":  # the run is the prediction
        series = [series[0], (word, "predicted_ns", "predictedline")]
    values = {label: _largest_known(columns, known(layers, column)) for label, column, _ in series}
    stalls = _largest_known(columns, known(layers, "stall_ns"))
    top = max((float(np.nanmax(v, initial=0.0)) for v in values.values()), default=0.0)
    frame = frame_of(top * 1.08, 200)
    body = columns.axis(frame) + y_axis(frame, time_ticks(frame.y_max))
    body += columns.steps(frame, np.zeros(columns.count), np.nan_to_num(stalls), class_="stall")
    for label, _, style in series:
        body += columns.line(frame, values[label], class_=style)
    body += columns.readers(
        frame,
        lambda i: "\n".join(
            f"{k}: {format_ns(v[i])}" for k, v in {**values, "stall": stalls}.items() if not np.isnan(v[i])
        ),
    )
    entries = [(f'class="{style}swatch"', label) for label, _, style in series if not np.isnan(values[label]).all()]
    sums = [f"{k} {format_ns(float(known(layers, c).sum()))}" for k, c, _ in series if not np.isnan(values[k]).all()]
    ran = word != "simulated" and not np.isnan(values[word]).all()
    apart = " Medians of layers need not add up to the headline's median step." if ran else ""
    says = f"Time of each layer, median of the steps. Sum over the layers: {', '.join(sums)}.{apart}"
    return figure(
        "Time of each layer", says, body, frame.bottom + _BELOW, legend([*entries, ('class="stall"', "stall")])
    )


def known(table: pd.DataFrame, column: str) -> Floats:
    """A column as floats, NaN where it is not known."""
    found: Floats = table[column].to_numpy(dtype="float64", na_value=np.nan)
    return found


def _largest_known(columns: Columns, values: Floats) -> Floats:
    return columns.largest(values) if len(values) else np.full(columns.count, np.nan)
