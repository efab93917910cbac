"""The doctor's trials: a tracker that works is told to, one that does not see what was touched is not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sentinel.cli import main
from sentinel.core.errors import CapabilityError, NativeError
from sentinel.core.page_runs import runs_of_pages
from sentinel.core.units import PAGE_BYTES
from sentinel.profiler import trial
from sentinel.profiler.pages import TRACKERS, ArmedTracker, PageSamples, make, obstacle
from sentinel.profiler.trial import Trial, automatic, try_trackers

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
    trials = {found.tracker: found for found in try_trackers()}
    assert list(trials) == [*TRACKERS, "ops"]
    for name in TRACKERS:
        assert trials[name].available == (obstacle(name) is None), name
    for found in trials.values():
        assert found.why
        assert found.sees if found.available else found.remedy


def test_a_tracker_that_misses_or_invents_a_page_is_no_tracker(monkeypatch: pytest.MonkeyPatch, working: str) -> None:
    def doubled(rows: Any) -> Any:
        more = rows.copy()
        more["page"][0] += 1  # beside one that was touched
        return more

    monkeypatch.setattr(trial, "make", lambda name: Tampering(name, lambda rows: rows))
    assert trial._tried(working).available
    for change in (lambda rows: rows[1:], doubled):
        monkeypatch.setattr(trial, "make", lambda name, change=change: Tampering(name, change))
        found = trial._tried(working)
        assert not found.available
        assert "were touched" in found.why
        assert "report this" in found.remedy


def test_whatever_goes_wrong_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (CapabilityError("a", "b", "c"), NativeError("bpf", 1), OSError(13, "Permission denied")):

        def fail(name: str, error: Exception = error) -> ArmedTracker:
            raise error

        monkeypatch.setattr(trial, "make", fail)
        found = trial._tried("perf")
        assert not found.available
        assert found.why
        assert found.remedy


def _trials(*working: str) -> list[Trial]:
    return [Trial(name, name in working, "refused" if name not in working else "ok") for name in (*TRACKERS, "ops")]


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
    found, reasons = automatic(_trials(*working))
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
    def refused(name: str) -> Trial:
        return Trial(name, False, "Operation not permitted", "ask for it")

    monkeypatch.setattr(trial, "_tried", refused)
    assert main(["doctor", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["auto"]["tracker"] is None
    assert "tracker ops" in told["missing"]
    assert main(["doctor"]) == 1
    assert "no training step can be watched here" in capsys.readouterr().out


def test_a_coarse_tracker_is_told_to_be_one(working: str) -> None:
    owned = trial.binding.map_range(trial.PAGES * PAGE_BYTES)
    tracker = make(working)
    tracker.start([owned])
    tracker.mark(0)
    trial._touch(owned)
    tracker.mark(-1)
    samples = tracker.stop()
    trial.binding.unmap_range(owned)
    coarse = replace(samples.quality, granularity_bytes=16 * PAGE_BYTES, sees=("touches",))
    found = trial._judged(working, PageSamples(samples.runs, coarse), owned.start // PAGE_BYTES)
    assert found.available
    assert "64 KiB at a time" in found.why
