"""Where userfaultfd is refused no thread can be held back while memory changes its backing.

Then nothing is watched while another Python thread can reach managed tensors, and that is said; where none can,
the GIL keeps them from writing meanwhile.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from sentinel.profiler.pages import obstacle
from sentinel.system.kernel import _NUMBERS

pytestmark = [
    pytest.mark.needs("torch", "compiler"),
    pytest.mark.skipif(platform.machine() not in _NUMBERS, reason="needs x86-64 or aarch64: system calls by number"),
]

_PROGRAM = Path(__file__).with_name("without_userfaultfd.py")
_WATCHING = ("ebpf", "perf", "pagemap")


@functools.cache
def told(how: str, rights: str, *trackers: str) -> dict[str, Any]:
    """What the program was told of each tracker."""
    done = subprocess.run(
        [sys.executable, str(_PROGRAM), how, rights, *trackers],
        env={**os.environ, "PYTHONPATH": str(_PROGRAM.parents[2]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    assert not answer["guarded"]
    assert all(name.endswith(".step") for name in answer["stays"]), "all but the optimizer's counters is managed"
    return answer


@functools.cache
def allowed() -> tuple[str, ...]:
    """The trackers that work here, and need no userfaultfd for what they watch."""
    return tuple(name for name in _WATCHING if obstacle(name) is None)


@pytest.fixture(params=_WATCHING)
def tracker(request: pytest.FixtureRequest) -> str:
    refused = obstacle(request.param)
    if refused is not None:
        pytest.skip(f"needs tracker {request.param}: {refused}")
    return str(request.param)


@pytest.mark.slow
def test_a_tracker_asked_for_by_name_is_refused_in_words_and_nothing_has_changed(tracker: str) -> None:
    answer = told("holds", "rights", "auto", *allowed())
    seen = answer["seen"][tracker]
    refused = seen["refused"]
    assert refused["what"] == "replacing the memory of tensors that other threads may write to"
    assert refused["why"] == "feeder would have to be held back, and userfaultfd is refused here"
    assert "vm.unprivileged_userfaultfd=1" in refused["remedy"]
    assert "--tracker ops" in refused["remedy"]
    nothing = {"active": False, "memfd mapped": False, "descriptors": [], "mode": 0, "operators recorded": False}
    assert refused["before"] == refused["after"] == nothing
    assert refused["same parameters"]
    assert seen["pages lost"] == 0
    assert seen["written"] > 0
    assert answer["identical"]


def test_auto_makes_do_with_operators_and_says_why() -> None:
    answer = told("holds", "rights", "auto", *allowed())
    rounds = answer["seen"]["auto"]["rounds"]
    assert [each["tracker"] for each in rounds] == ["ops"] * 2
    text = " ".join(rounds[0]["text"].split())
    for name in allowed():
        assert f"Tracker not taken: {name}: replacing the memory of tensors that other threads may write" in text
    assert text.count("feeder would have to be held back") == len(allowed())
    assert answer["seen"]["auto"]["pages lost"] == 0
    assert answer["identical"]


def test_once_that_thread_has_ended_it_watches(tracker: str) -> None:
    assert told("holds", "rights", "auto", *allowed())["seen"][tracker]["after"] == tracker


@pytest.mark.slow
def test_a_thread_that_can_reach_no_tensor_does_not_keep_from_watching_and_loses_nothing(tracker: str) -> None:
    """It writes by an address that nobody can see in it, and keeps the GIL as it does."""
    answer = told("address", "rights", *allowed())
    seen = answer["seen"][tracker]
    assert not seen["refused"]
    assert [each["tracker"] for each in seen["rounds"]] == [tracker] * 2
    assert seen["pages lost"] == 0
    assert seen["written"] > 0
    assert answer["identical"]


@pytest.mark.slow
@pytest.mark.needs("root")
def test_a_plain_user_is_refused_alike() -> None:
    answer = told("holds", "user", "auto", "pagemap")
    assert answer["seen"]["pagemap"]["refused"]["why"].startswith("feeder would have to be held back")
    assert [each["tracker"] for each in answer["seen"]["auto"]["rounds"]] == ["ops"] * 2
    assert answer["seen"]["pagemap"]["after"] == "pagemap"
    assert answer["identical"]
