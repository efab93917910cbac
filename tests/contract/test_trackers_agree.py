"""The page readers share one engine: on one workload they agree to the page, and with their twin."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sentinel.core.errors import CapabilityError, UsageError
from sentinel.core.units import PAGE_BYTES
from sentinel.profiler.pages import (
    TRACKERS,
    AddressRange,
    choose,
    make,
    native_touch,
    obstacle,
    trackers,
)
from tests.contract.page_workload import Memory, layers
from tests.contract.replay_tracker import ReplayTracker
from tests.processes import mapped_for_tensors, threads, until

PAGES = 211
_ALLOWED = [name for name in TRACKERS if obstacle(name) is None]

# a step: layers of (page, write, way); ways: user code, system call, thread
_TOUCH = st.tuples(st.integers(0, PAGES - 1), st.booleans(), st.integers(0, 2))
_STEP = st.lists(st.lists(_TOUCH, max_size=12), min_size=1, max_size=7)


@pytest.fixture(scope="module")
def owned() -> Iterator[AddressRange]:
    taken = native_touch.map_range(PAGES * PAGE_BYTES)
    yield taken
    native_touch.unmap_range(taken)


def _play(memory: Memory, touches: list[tuple[int, bool, int]]) -> None:
    for page, write, way in touches:
        if way == 1:
            memory.by_system_call(page, write)
        elif way == 2:
            memory.by_threads([(page, write)])
        else:
            memory.touch(page, write)


@pytest.mark.skipif(not _ALLOWED, reason="needs a page tracker: none is allowed here")
@settings(
    max_examples=23, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(_STEP)
def test_readers_agree_to_the_page(owned: AddressRange, step: list[list[tuple[int, bool, int]]]) -> None:
    results = {}
    for name in (*_ALLOWED, "replay"):
        memory = Memory(owned, ReplayTracker() if name == "replay" else make(name))
        results[name] = layers(memory, len(step), lambda layer, m=memory: _play(m, step[layer]))  # type: ignore[misc]
    expected = results["replay"].pages
    for name, samples in results.items():
        if "accesses by system calls" in samples.quality.blind_to or samples.quality.granularity_bytes != PAGE_BYTES:
            continue
        assert samples.quality.lost == 0
        assert samples.pages[["layer", "page"]].tolist() == expected[["layer", "page"]].tolist(), name
        if "writes" in samples.quality.sees:
            assert samples.pages.tolist() == expected.tolist(), name


@pytest.mark.parametrize("name", _ALLOWED)
def test_memory_of_others_is_refused_unharmed(name: str, owned: AddressRange) -> None:
    foreign = mmap.mmap(-1, 3 * PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    foreign[:] = b"\x03" * len(foreign)
    address = ctypes.addressof(ctypes.c_char.from_buffer(foreign))
    tracker = make(name)
    with pytest.raises(UsageError, match="not memory of the profiling arena"):
        tracker.start([owned, AddressRange(address, address + len(foreign))])
    assert foreign[:] == b"\x03" * len(foreign)
    samples = layers(Memory(owned, tracker), 1, lambda layer: None)  # the failed start left nothing behind
    assert len(samples.pages) == 0


@pytest.mark.parametrize("name", _ALLOWED)
def test_nothing_stays_open(name: str, owned: AddressRange) -> None:
    def opened() -> set[str]:
        return {f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}" for fd in os.listdir("/proc/self/fd") if _is_open(fd)}

    gc.collect()  # what earlier tests left open in cycles is not closed meanwhile
    before, running = opened(), threads()
    layers(Memory(owned, make(name)), 2, lambda layer: None)
    assert opened() == before
    until(lambda: threads() <= running)
    assert mapped_for_tensors() == []


def _is_open(descriptor: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{descriptor}")


def test_auto_takes_the_most_exact_and_says_why_not_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker, reasons = choose("auto")
    refused = [name for name in trackers.AUTO if name not in _ALLOWED]
    assert (tracker.name if tracker else None) == next((name for name in trackers.AUTO if name in _ALLOWED), None)
    before = trackers.AUTO[: trackers.AUTO.index(tracker.name)] if tracker else trackers.AUTO
    assert [reason.split(":")[0] for reason in reasons] == [name for name in refused if name in before]
    no_right = CapabilityError("counting page faults", "Operation not permitted", "run as root")
    monkeypatch.setattr(trackers, "obstacle", lambda name: no_right if name == "ebpf" else None)
    tracker, reasons = choose("auto")
    assert tracker is not None
    assert tracker.name == "perf"
    assert reasons == [f"ebpf: {no_right}"]
    with pytest.raises(CapabilityError, match="not permitted"):
        choose("ebpf")
    monkeypatch.setattr(trackers, "obstacle", lambda name: no_right)
    assert choose("auto") == (None, [f"{name}: {no_right}" for name in trackers.AUTO])
    with pytest.raises(UsageError, match="not a page tracker"):
        choose("magic")
