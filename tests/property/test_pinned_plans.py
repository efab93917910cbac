"""Whatever is pinned, every plan keeps the laws, the pins and the bound of plans that keep them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from sentinel.core.errors import Infeasible, UsageError
from sentinel.core.laws import check
from sentinel.core.pins import FAST, SLOW, Pins
from sentinel.planner import bound, footprint_bytes, plan
from sentinel.simulator import simulate
from tests.builders import machines, profiles, ranged_profiles

pytestmark = pytest.mark.slow

POLICIES = ("sentinel", "sentinel-2021", "best-static", "interleave", "lru")
few = settings(max_examples=30, deadline=None)
patterns = st.lists(st.sampled_from([f"p{i}" for i in range(10)]), max_size=4, unique=True)


@few
@given(
    profile=st.one_of(profiles(), ranged_profiles()),
    machine=machines(),
    fast=patterns,
    slow=patterns,
    smallest=st.sampled_from([0, 4096]),
)
def test_a_plan_keeps_laws_pins_and_bound(profile, machine, fast, slow, smallest):
    pins = Pins(tuple(set(fast) - set(slow)), tuple(slow), smallest)
    homes = pins.homes(profile)
    room = -(-profile.tensors["nbytes"][homes == FAST] // 4096).sum() * 4096
    least = None
    for policy in POLICIES:
        note(policy)
        try:
            made = plan(profile, machine, policy, pins=pins)
        except UsageError:
            assert room > machine.fast.capacity_bytes
            continue
        except Infeasible:
            continue
        check(made, profile, machine)
        assert made.footprint_bytes == footprint_bytes(profile)
        assert made.fast_peak_bytes <= machine.fast.capacity_bytes
        assert made.predicted_step_ns == simulate(made, profile, machine).step_ns
        for home in (FAST, SLOW):
            for tensor in np.flatnonzero(homes == home).tolist():
                mine = [i for i, block in enumerate(made.blocks) if tensor in block.tensors]
                assert np.unique(made.placement[mine]).tolist() == [int(home == SLOW)]
        least = least or bound(profile, machine, pins=pins)
        assert made.predicted_step_ns >= least.step_ns - profile.n_layers
