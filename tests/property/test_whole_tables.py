"""What the planner finds for all layers and units at once, against loops over them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES
from sentinel.planner.relaxation import INSTANTS, alive_at, instants
from sentinel.planner.rounding import _whole_pages
from sentinel.planner.workload import make_workload
from tests.builders import make_machine, make_profile, param, profiles


def instants_by_layer(profile: Profile) -> list[list[int]]:
    t, n = profile.tensors, profile.n_events
    moving = t[~t["persistent"] & t["managed"]]
    out = []
    for layer in range(profile.n_layers):
        rows = moving[moving["start"] == layer]
        chosen: list[int] = []
        spoken = np.zeros(len(rows), bool)
        for _ in range(INSTANTS):
            scores = {}
            for event in sorted(set(rows["born_event"].tolist())):
                lives = alive_at(np.int64(event), rows["born_event"], rows["died_event"], n)
                if not chosen or (lives & ~spoken).any():
                    everything = alive_at(np.int64(event), moving["born_event"], moving["died_event"], n)
                    scores[event] = int(moving["nbytes"][everything].sum())
            if not scores:
                break
            best = max(scores, key=lambda event: (scores[event], -event))
            chosen.append(best)
            spoken |= alive_at(np.int64(best), rows["born_event"], rows["died_event"], n)
        out.append(chosen + [-1] * (INSTANTS - len(chosen)))
    return out


@settings(max_examples=75, deadline=None)
@given(profiles())
def test_instants_are_those_found_layer_by_layer(profile: Profile) -> None:
    assert instants(profile).tolist() == instants_by_layer(profile)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_shares_are_rounded_unit_by_unit(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=5))
    work = make_workload(
        make_profile([param(f"p{i}", 16 * PAGE_BYTES * n, [i % 3]) for i, n in enumerate(sizes)], 3), make_machine(), 0
    )
    unit = data.draw(st.lists(st.integers(0, len(sizes) - 1), max_size=12))
    share = np.array([data.draw(st.integers(0, 20)) / 61 for _ in unit])
    total, expected = work.units.nbytes // PAGE_BYTES, np.zeros(len(unit), np.int64)
    for u in set(unit):
        rows = [i for i in range(len(unit)) if unit[i] == u and share[i] > 1e-6]
        rows.sort(key=lambda i: -share[i])
        edges = np.minimum(np.rint(np.cumsum(share[rows]) * int(total[u])).astype(np.int64), total[u])
        pages = np.diff(edges, prepend=0)
        for i in range(1, len(rows)):
            if pages[i] < 4 and pages[i] < total[u]:
                pages[0], pages[i] = pages[0] + pages[i], 0
        expected[rows] = pages
    assert _whole_pages(work, np.array(unit, np.int64), share, total).tolist() == expected.tolist()
