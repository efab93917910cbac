"""The layers of a step: what each took, as profiled, predicted and run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from sentinel.core.profile import Profile
from sentinel.core.run import Run
from sentinel.reports.facts import Facts
from sentinel.reports.frame_columns import whole, words
from sentinel.reports.headline import median_by_layer
from sentinel.reports.html import layer_charts
from sentinel.reports.html.layer_axis import Columns
from sentinel.reports.outside_plan import live_by_layer
from sentinel.reports.section import Document, Section

_MEDIANS = ("stall_ns", "slow_ns", "fast_bytes", "slow_bytes", "served_fast_bytes")


def _layers(facts: Facts) -> pd.DataFrame:
    """One row a layer. Of a run: the median over the steps that ran as planned; without one, the profile's time."""
    profile, ids, length = facts.profile, facts.layers, len(facts.layers)
    unknown = whole(np.zeros(length, np.int64), False)
    plain = whole(profile.layer_ns) if profile else unknown
    taken = profile.quality.layer_overhead_ns if profile else ()
    of_run, predicted = _medians(facts.run, length), _medians(facts.simulated, length)
    managed, live = live_by_layer(profile) if profile else (np.zeros(length), np.zeros(length))
    return pd.DataFrame(
        {
            "layer": whole(np.arange(length)),
            "name": words(layer.name for layer in ids),
            "phase": words(layer.phase for layer in ids),
            "duration_ns": of_run.get("duration_ns", plain),
            "flops": whole(profile.flops, profile.flops >= 0) if profile else unknown,
            "nbytes_touched": _touched(profile) if profile else unknown,
            **{name: of_run.get(name, unknown) for name in _MEDIANS},
            "plain_ns": plain,
            "tracker_ns": whole(taken) if len(taken) == length else unknown,
            "predicted_ns": predicted.get("duration_ns", unknown),
            "predicted_stall_ns": predicted.get("stall_ns", unknown),
            "live_bytes": whole(live, profile is not None),
            "managed_bytes": whole(managed, profile is not None),
        }
    )


def _touched(profile: Profile) -> Any:
    out = np.zeros(profile.n_layers, np.int64)
    np.add.at(out, profile.accesses["layer"], profile.accesses["touched_bytes"])
    return whole(out)


def _medians(run: Run | None, length: int) -> dict[str, Any]:
    """Column -> its median per layer over the steps that ran as planned; empty without such a step."""
    if run is None:
        return {}
    found = {name: median_by_layer(run, run.layers[name], length) for name in ("duration_ns", *_MEDIANS)}
    return {name: whole(*medians) for name, medians in found.items() if medians[1].any()}


def _html(report: Document[Facts]) -> str:
    if report.facts.run is None or not report.facts.layers:
        return ""
    kind = report.facts.headline["kind"] or "profiled"
    word = "simulated" if kind == "declared" else kind
    return layer_charts.times(report.tables["layers"], Columns(report.facts.layers), word)


LAYER_TIMES = Section[Facts]("Predicted and executed, by layer", "layers", _layers, html=_html)
