"""A tracker that the kernel allows here works: tests that need it must not skip because it broke.

What the kernel allows is asked of the kernel alone, not of the tracker.
"""

from __future__ import annotations

import pytest

from sentinel.profiler.pages import TRACKERS, obstacle
from sentinel.system.capabilities import probe_all

NEEDS = {
    "ebpf": ("eBPF", "perf_event_open", "pagemap", "memfd"),
    "perf": ("perf_event_open", "pagemap", "memfd"),
    "pagemap": ("pagemap", "memfd"),
    "uffd": ("userfaultfd", "pagemap", "memfd"),
}


def test_each_tracker_has_its_needs_named() -> None:
    assert set(NEEDS) == set(TRACKERS)
    assert {need for needs in NEEDS.values() for need in needs} <= {found.name for found in probe_all()}


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_that_the_kernel_allows_works(name: str) -> None:
    allowed = {found.name: found for found in probe_all()}
    for need in NEEDS[name]:
        if not allowed[need].available:
            pytest.skip(f"the kernel does not allow {need}: {allowed[need].why}")
    refused = obstacle(name)
    assert refused is None, f"tracker {name} is broken, or its needs are not all named here: {refused}"
