"""Each page tracker by itself: it works here or says what to do; and what the doctor says of all of them."""

from __future__ import annotations

import pytest

from sentinel.cli.doctor_watchers import Watchers
from sentinel.core.errors import CapabilityError
from sentinel.profiler.pages.trackers import TRACKERS, make
from sentinel.profiler.selftest import SelfTest

pytestmark = pytest.mark.needs("native")


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_works_here_or_says_what_to_do(name: str) -> None:
    tracker = make(name)
    assert tracker.name == name
    for _ in range(2):  # a trial leaves nothing behind
        try:
            tracker.try_here()
        except CapabilityError as error:
            assert error.remedy


def test_the_doctor_says_of_each_tracker_what_it_sees_or_what_to_do() -> None:
    works = SelfTest("perf", True, "saw 5 of 5 pages", sees=("touches",), blind_to=("devices",))
    refused = SelfTest("ebpf", False, "not permitted", "run as root")
    found = Watchers((refused, works), "perf", ("ebpf: not permitted",), SelfTest("migrations", False, "why", "remedy"))
    told = found.lines()
    assert told[1:3] == ["no   ebpf: not permitted", "       remedy  run as root"]
    assert "yes  perf (auto takes it): saw 5 of 5 pages" in told
    assert "       not seen devices" in told
    assert found.as_json()["auto"] == {"tracker": "perf", "not_taken": ["ebpf: not permitted"]}
    assert found.as_json()["witness"]["available"] is False
