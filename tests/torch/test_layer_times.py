"""A running session takes its layer times from applied steps, twice, and predicts its plan's step with them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel  # noqa: E402
from sentinel.core.run import Run  # noqa: E402
from sentinel.session import current, planning  # noqa: E402
from sentinel.session.applying_plans import REFINE_STEPS  # noqa: E402
from sentinel.session.shapes import RETIME_STEPS  # noqa: E402
from sentinel.simulator import simulate  # noqa: E402
from tests.torch.bit_identity_cases import job  # noqa: E402

pytestmark = pytest.mark.needs("torch", "compiler")


def test_layer_times_are_taken_twice_and_the_plan_is_made_anew_once(monkeypatch: pytest.MonkeyPatch) -> None:
    work = job()
    looks: list[tuple[str, int]] = []
    for name in ("retimed", "refined"):
        take = getattr(planning.Planning, name)

        def looking(self, flow, executed: Run, name: str = name, take=take):
            looks.append((name, len(executed.steps)))
            return take(self, flow, executed)

        monkeypatch.setattr(planning.Planning, name, looking)
    monkeypatch.setattr(planning, "REFINE_GAIN", 0.0)  # the plan stays: its run has all steps
    found = []
    with sentinel.annotate(work.models, work.optimizers):
        for i in range(RETIME_STEPS + 6):
            if i == 0:
                sentinel.start_profile(fast="20%", slow="emulated:cxl-asic-x8", tracker="ops")
            work.step(i)
            if i == 0:
                sentinel.end_profile()
            session = current()
            assert session is not None
            if session.plan is not None:
                found.append(session.flow)
    sentinel.stop()
    once, twice = ("refined", REFINE_STEPS), ("retimed", RETIME_STEPS)
    assert looks == [once, ("retimed", REFINE_STEPS), twice]
    times = [tuple(flow.profile.layer_ns.tolist()) for flow in found if flow.profile is not None]
    assert len(set(times)) >= 3  # recorded, refined, retimed
    last = found[-1]
    assert last.plan is not None
    assert last.profile is not None
    assert last.machine is not None
    assert last.simulated is not None
    assert last.profile.step_ns_plain == sum(times[-1])
    assert last.simulated.step_ns == simulate(last.plan, last.profile, last.machine, steps=2).step_ns
