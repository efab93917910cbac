"""Whatever is profiled and planned, a report's sums equal those of a slow oracle."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings

from sentinel import planner
from sentinel.core.errors import Infeasible
from sentinel.core.machine import Machine
from sentinel.core.profile import Profile
from sentinel.reports import build_report
from sentinel.reports.forms import as_json
from sentinel.simulator import simulate
from tests.builders import machines, profiles

QUICK = settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("policy", ["sentinel", "first-touch"])
@QUICK
@given(profile=profiles(), machine=machines())
def test_a_simulated_plan_reconciles_and_adds_up(policy: str, profile: Profile, machine: Machine) -> None:
    try:
        plan = planner.plan(profile, machine, policy)
    except Infeasible:
        return
    run = simulate(plan, profile, machine, steps=2)
    report = build_report(profile=profile, plan=plan, machine=machine, simulated=run)
    frames, headline = report.frames(), report.headline
    for layer in range(profile.n_layers):
        alive = sum(
            int(row["nbytes"])
            for row in profile.tensors
            if row["start"] <= layer < row["stop"] or layer + profile.n_layers < row["stop"]
        )
        rows = frames["footprint"]
        assert int(rows[rows["layer"] == layer]["nbytes"].sum()) == alive
        assert int(frames["layers"]["live_bytes"][layer]) == alive
    assert int(frames["migrations"]["moved_bytes"].sum()) == int(run.migrations["moved_bytes"].sum())
    assert headline["fast_mean_bytes"] <= headline["fast_peak_bytes"] <= headline["fast_capacity_bytes"]
    served = headline["fast_served_fraction"]
    assert served is None or 0 <= served <= 1
    assert headline["step_ns_predicted"] == run.step_ns
    json.dumps(as_json(report), allow_nan=False)
    assert report.text()
