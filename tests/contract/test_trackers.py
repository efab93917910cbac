"""What every page tracker keeps: one suite, one fixture a tracker."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
from collections.abc import Iterator

import numpy as np
import pytest

from sentinel.core.errors import UsageError
from sentinel.core.page_runs import pages_of_runs
from sentinel.core.trace import PAGE_RUN_DTYPE
from sentinel.core.units import PAGE_BYTES
from sentinel.profiler.pages import (
    TRACKERS,
    AddressRange,
    PageTracker,
    make,
    native_touch,
    obstacle,
)
from tests.contract.page_workload import Memory, layers, seen
from tests.contract.replay_tracker import ReplayTracker

PAGES = 1009


@pytest.fixture
def owned() -> Iterator[AddressRange]:
    taken = native_touch.map_range(PAGES * PAGE_BYTES)
    yield taken
    native_touch.unmap_range(taken)  # fails if a test left it backed


@pytest.fixture(params=[*TRACKERS, "replay"])
def tracker(request: pytest.FixtureRequest) -> PageTracker:
    if request.param == "replay":
        return ReplayTracker()
    return _allowed(request.param)


@pytest.fixture
def memory(tracker: PageTracker, owned: AddressRange) -> Memory:
    return Memory(owned, tracker)


@pytest.fixture(params=[*TRACKERS])
def watched(request: pytest.FixtureRequest, owned: AddressRange) -> Memory:
    """Of the trackers that watch memory; the replaying one is told."""
    return Memory(owned, _allowed(request.param))


def _allowed(name: str) -> PageTracker:
    refused = obstacle(name)
    if refused is not None:
        pytest.skip(f"needs tracker {name}: {refused}")
    return make(name)


def test_nothing_touched_nothing_reported(memory: Memory) -> None:
    for page in range(PAGES):
        memory.touch(page, True)
    samples = layers(memory, 7, lambda layer: None)
    assert samples.runs.dtype == PAGE_RUN_DTYPE
    assert len(samples.pages) == 0
    assert samples.quality.lost == samples.quality.late == 0


def test_counts_the_layers_in_which_a_page_was_touched(memory: Memory) -> None:
    def body(layer: int) -> None:
        if layer < 23:
            memory.touch(0, True)
            memory.touch(3, False)
            memory.touch(4, False)
            memory.touch(4, True)
        if layer >= 29 - 5:
            memory.touch(PAGES - 1, False)

    samples = layers(memory, 29, body)
    found = seen(samples, memory.owned)
    assert found.touched == {0: 23, 3: 23, 4: 23, PAGES - 1: 5}
    if "writes" in samples.quality.sees:
        assert found.written == {0: 23, 4: 23}
        assert found.read == {3: 23, 4: 23, PAGES - 1: 5}
    else:  # no zero in the place of what can't be known
        assert (samples.pages["reads"] == -1).all()
        assert (samples.pages["writes"] == -1).all()


def test_touches_go_to_their_layer(memory: Memory) -> None:
    samples = layers(memory, 11, lambda layer: memory.touch(layer * 13, layer % 2 == 0))
    rows = samples.pages
    assert rows["layer"].tolist() == list(range(11))
    assert (rows["page"] - memory.owned.start // PAGE_BYTES).tolist() == [layer * 13 for layer in range(11)]


def test_system_calls_touch_too(memory: Memory) -> None:
    def body(layer: int) -> None:
        if layer < 13:
            memory.by_system_call(500, write=True)
        if layer < 7:
            memory.by_system_call(501, write=False)

    samples = layers(memory, 17, body)
    if "accesses by system calls" in samples.quality.blind_to:
        assert not len(samples.pages)
        return
    found = seen(samples, memory.owned)
    assert found.touched == {500: 13, 501: 7}
    if "writes" in samples.quality.sees:
        assert found.written == {500: 13}
        assert found.read == {501: 7}


def test_threads_born_in_the_layer_are_seen(memory: Memory) -> None:
    touches = [(page, page % 2 == 0) for page in (2, 3, 5, 7, 11)]
    samples = layers(memory, 5, lambda layer: memory.by_threads(touches))
    found = seen(samples, memory.owned)
    assert found.touched == {page: 5 for page, _ in touches}
    if "writes" in samples.quality.sees:
        assert found.written == {2: 5}


def test_a_layer_marked_twice_counts_a_page_once(memory: Memory) -> None:
    memory.tracker.start([memory.owned])
    memory.tracker.mark(0)
    memory.touch(2, False)
    memory.tracker.mark(1)
    memory.touch(3, False)
    memory.tracker.mark(0)
    memory.touch(2, True)
    rows = memory.tracker.stop().pages
    first = memory.owned.start // PAGE_BYTES
    assert [(row["layer"], row["page"] - first) for row in rows] == [(0, 2), (1, 3)]
    assert rows["writes"][0] in (1, -1)


def test_the_last_stretch_of_a_ring_is_its_first_layer(memory: Memory) -> None:
    def body(layer: int) -> None:
        memory.touch(5, layer == 3)
        if layer in (0, 3):
            memory.touch(7 + layer, False)

    record = pytest.importorskip("sentinel.profiler.record")
    rows = pages_of_runs(record._on_ring(layers(memory, 4, body).runs, 3))
    first = memory.owned.start // PAGE_BYTES
    told = [(row["layer"], row["page"] - first) for row in rows]
    assert told == [(0, 5), (0, 7), (0, 10), (1, 5), (2, 5)]
    assert rows["writes"][0] in (1, -1)


def test_what_belongs_to_no_layer_is_not_reported(memory: Memory) -> None:
    memory.tracker.start([memory.owned])
    memory.touch(1, True)
    memory.tracker.mark(0)
    memory.touch(2, True)
    memory.tracker.mark(-1)
    memory.touch(3, True)
    memory.tracker.mark(1)
    memory.touch(4, True)
    found = seen(memory.tracker.stop(), memory.owned)
    assert found.touched == {2: 1, 4: 1}


def test_every_page_of_every_layer(memory: Memory) -> None:
    def body(layer: int) -> None:
        for page in range(PAGES):
            memory.touch(page, page % 2 == layer % 2)

    samples = layers(memory, 3, body)
    assert len(samples.pages) == 3 * PAGES
    assert (np.diff(samples.pages["page"][:PAGES]) == 1).all()


def test_bytes_are_those_the_program_wrote(watched: Memory) -> None:
    whole = (ctypes.c_ubyte * watched.owned.nbytes).from_address(watched.owned.start)
    alias = np.frombuffer(whole, np.uint8)
    expected = np.arange(watched.owned.nbytes, dtype=np.uint32).astype(np.uint8)
    alias[:] = expected
    watched.tracker.start([watched.owned])
    for layer in range(5):
        watched.tracker.mark(layer)
        expected[layer::4099] = layer
        alias[layer::4099] = layer
        assert (alias == expected).all()
    watched.tracker.stop()
    assert (alias == expected).all()


def _child(address: int, nbytes: int, told: int) -> None:
    """Exits 0 if memory is as it was at the fork, whatever the parent wrote since, and may be written."""
    os.read(told, 1)
    intact = ctypes.string_at(address, nbytes) == bytes([7]) * nbytes
    ctypes.memset(address, 9, nbytes)
    os._exit(0 if intact and ctypes.string_at(address, 1) == b"\x09" else 1)


def test_a_forked_child_has_a_copy_of_its_own(watched: Memory) -> None:
    owned = watched.owned
    ctypes.memset(owned.start, 7, owned.nbytes)
    told, tell = os.pipe()
    watched.tracker.start([owned])
    watched.tracker.mark(0)
    # daemon: one that was never told to look must not keep the tests from ending
    child = multiprocessing.get_context("fork").Process(
        target=_child, args=(owned.start, owned.nbytes, told), daemon=True
    )
    child.start()
    ctypes.memset(owned.start + PAGE_BYTES, 8, PAGE_BYTES)
    os.write(tell, b"x")
    child.join(timeout=600)
    watched.tracker.mark(-1)
    assert child.exitcode == 0
    assert ctypes.string_at(owned.start, 1) == b"\x07"
    found = seen(watched.tracker.stop(), owned)
    assert watched.tracker.cut_short  # the fork took the memory back, which ended the watch
    assert not found.touched  # nor were the child's touches taken for ours
    os.close(told)
    os.close(tell)


def test_calls_out_of_order_say_so(memory: Memory) -> None:
    with pytest.raises(UsageError, match="without a start"):
        memory.tracker.stop()
    with pytest.raises(UsageError, match="ranges to watch"):
        memory.tracker.start([])
    memory.tracker.start([memory.owned])
    with pytest.raises(UsageError, match="started twice"):
        memory.tracker.start([memory.owned])
    memory.tracker.stop()


def test_it_can_watch_again(memory: Memory) -> None:
    for page in (2, 3):
        samples = layers(memory, 2, lambda layer, page=page: memory.touch(page, True))  # type: ignore[misc]
        assert seen(samples, memory.owned).touched == {page: 2}


def test_quality_names_unit_and_cost(memory: Memory) -> None:
    samples = layers(memory, 3, lambda layer: memory.touch(1, True))
    quality = samples.quality
    assert quality.tracker == memory.tracker.name
    assert quality.counts == "touched layers"
    assert quality.granularity_bytes % PAGE_BYTES == 0
    if not isinstance(memory.tracker, ReplayTracker):
        assert quality.overhead_ns > 0
        assert quality.overhead_ns == sum(samples.tracker_ns.values())
        assert set(samples.tracker_ns) == {0, 1, 2}


def test_what_the_library_and_the_reader_lost_is_in_the_quality(
    watched: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost here in fact, as the control says; so both are made to say that something was."""
    assert layers(watched, 3, lambda layer: watched.touch(0, True)).quality.lost == 0
    told = native_touch.touch_state
    reader = watched.tracker._reader  # type: ignore[attr-defined]
    close = reader.close

    def state_of_a_loser() -> native_touch.TouchState:
        state = told()
        state.lost, state.late = 31, 7
        return state

    def closed_by_a_loser() -> int:
        return int(close()) + 100

    monkeypatch.setattr(native_touch, "touch_state", state_of_a_loser)
    monkeypatch.setattr(reader, "close", closed_by_a_loser)
    quality = layers(watched, 3, lambda layer: watched.touch(0, True)).quality
    assert (quality.lost, quality.late) == (131, 7)
