"""The doctor's selftests: a tracker that works is told to, one that does not see what was touched is not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sentinel.cli import main
from sentinel.core.errors import CapabilityError, NativeError
from sentinel.core.units import PAGE_BYTES
from sentinel.profiler import selftest
from sentinel.profiler.pages import TRACKERS, ArmedTracker, PageSamples, make, obstacle
from sentinel.profiler.selftest import SelfTest, automatic, check_trackers
from tests.page_rows import runs_of_pages

pytestmark = pytest.mark.needs("compiler")


class Tampering:
    """The tracker `name`, whose samples are changed before they are handed over."""

    def __init__(self, name: str, change: Any) -> None:
        self._inner, self._change = make(name), change
        self.name = name
        self.start, self.mark = self._inner.start, self._inner.mark

    def stop(self) -> PageSamples:
        samples = self._inner.stop()
        return PageSamples(runs_of_pages(self._change(samples.pages)), samples.quality, samples.tracker_ns)


@pytest.fixture(scope="module")
def working() -> str:
    name = next((name for name in TRACKERS if obstacle(name) is None), None)
    if name is None:
        pytest.skip("needs a page tracker: none is allowed here")
    return name


def test_trials_agree_with_what_trackers_say_of_themselves() -> None:
    selftests = {found.tracker: found for found in check_trackers()}
    assert list(selftests) == [*TRACKERS, "ops"]
    for name in TRACKERS:
        assert selftests[name].available == (obstacle(name) is None), name
    for found in selftests.values():
        assert found.why
        assert found.sees if found.available else found.remedy


def test_a_tracker_that_misses_or_invents_a_page_is_no_tracker(monkeypatch: pytest.MonkeyPatch, working: str) -> None:
    def doubled(rows: Any) -> Any:
        more = rows.copy()
        more["page"][0] += 1  # beside one that was touched
        return more

    monkeypatch.setattr(selftest, "make", lambda name: Tampering(name, lambda rows: rows))
    assert selftest._checked(working).available
    for change in (lambda rows: rows[1:], doubled):
        monkeypatch.setattr(selftest, "make", lambda name, change=change: Tampering(name, change))
        found = selftest._checked(working)
        assert not found.available
        assert "were touched" in found.why
        assert "report this" in found.remedy


def test_whatever_goes_wrong_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (CapabilityError("a", "b", "c"), NativeError("bpf", 1), OSError(13, "Permission denied")):

        def fail(name: str, error: Exception = error) -> ArmedTracker:
            raise error

        monkeypatch.setattr(selftest, "make", fail)
        found = selftest._checked("perf")
        assert not found.available
        assert found.why
        assert found.remedy


def _selftests(*working: str) -> list[SelfTest]:
    return [SelfTest(name, name in working, "refused" if name not in working else "ok") for name in (*TRACKERS, "ops")]


@pytest.mark.parametrize(
    ("working", "taken"),
    [
        ((*TRACKERS, "ops"), "ebpf"),
        (("uffd", "perf", "pagemap", "ops"), "perf"),
        (("uffd", "pagemap", "ops"), "pagemap"),
        (("uffd", "ops"), "ops"),
        (("ops",), "ops"),
        ((), None),
    ],
)
def test_auto_takes_the_most_exact_and_says_why_not_the_others(working: tuple[str, ...], taken: str | None) -> None:
    found, reasons = automatic(_selftests(*working))
    assert found == taken
    assert [reason.split(":")[0] for reason in reasons] == [name for name in (*TRACKERS, "ops") if name != taken]
    for reason in reasons:
        assert ("refused" in reason) == (reason.split(":")[0] not in working)


def test_doctor_tells_each_tracker_and_the_witness(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert code == (1 if told["missing"] else 0)
    assert [found["tracker"] for found in told["trackers"]] == [*TRACKERS, "ops"]
    names = {found["tracker"] for found in told["trackers"] if found["available"]}
    assert told["auto"]["tracker"] == next((n for n in ("ebpf", "perf", "pagemap", "ops") if n in names), None)
    assert len(told["auto"]["not_taken"]) == len(TRACKERS)
    assert told["witness"]["available"] or told["witness"]["remedy"]
    main(["doctor"])
    table = capsys.readouterr().out
    assert f"{told['auto']['tracker']} (auto takes it)" in table
    assert "witness of migrations" in table


def test_without_any_tracker_doctor_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(name: str) -> SelfTest:
        return SelfTest(name, False, "Operation not permitted", "ask for it")

    monkeypatch.setattr(selftest, "_checked", refused)
    assert main(["doctor", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["auto"]["tracker"] is None
    assert "tracker ops" in told["missing"]
    assert main(["doctor"]) == 1
    assert "no training step can be profiled here" in capsys.readouterr().out


def test_a_coarse_tracker_is_told_to_be_one(working: str) -> None:
    owned = selftest.native_touch.map_range(selftest.PAGES * PAGE_BYTES)
    tracker = make(working)
    tracker.start([owned])
    tracker.mark(0)
    selftest._touch(owned)
    tracker.mark(-1)
    samples = tracker.stop()
    selftest.native_touch.unmap_range(owned)
    coarse = replace(samples.quality, granularity_bytes=16 * PAGE_BYTES, sees=("touches",))
    found = selftest._judged(working, PageSamples(samples.runs, coarse), owned.start // PAGE_BYTES)
    assert found.available
    assert "64 KiB at a time" in found.why
