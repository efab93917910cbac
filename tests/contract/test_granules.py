"""Large tensors in granules of a huge page: told whole, reads and writes still apart, and told so."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterator

import pytest

from sentinel.core.errors import UsageError
from sentinel.core.units import PAGE_BYTES
from sentinel.profiler.pages import TRACKERS, AddressRange, choose, make, native_touch, obstacle
from tests.contract.page_workload import Memory, layers, seen

GRANULE = 512  # pages
PAGES = 5 * GRANULE

# page, write, layers: prime numbers; two of them in one granule, one read before it is written
TOUCHES = ((3, True, 13), (500, False, 11), (513, False, 7), (2 * GRANULE, False, 5), (2 * GRANULE + 9, True, 3))


@pytest.fixture(params=[name for name in TRACKERS if name != "uffd"])
def name(request: pytest.FixtureRequest) -> str:
    refused = obstacle(f"{request.param}:2MiB")
    if refused is not None:
        pytest.skip(f"needs tracker {request.param}: {refused}")
    return str(request.param)


@pytest.fixture
def large() -> Iterator[AddressRange]:
    taken = native_touch.map_range(PAGES * PAGE_BYTES)
    ctypes.memset(taken.start, 1, taken.nbytes)
    yield taken
    native_touch.unmap_range(taken)


def _body(memory: Memory, layer: int) -> None:
    for page, write, count in TOUCHES:
        if layer < count:
            memory.touch(page, write)


def _in_granules(write: bool | None) -> Counter[int]:
    """Layers by page, as the touches' granules have them."""
    found: Counter[int] = Counter()
    for granule in range(PAGES // GRANULE):
        counts = [n for page, kind, n in TOUCHES if page // GRANULE == granule and write in (None, kind)]
        if counts:
            found.update(dict.fromkeys(range(granule * GRANULE, (granule + 1) * GRANULE), max(counts)))
    return found


def test_a_granule_is_told_whole(name: str, large: AddressRange) -> None:
    memory = Memory(large, make(f"{name}:2MiB"))
    samples = layers(memory, 17, lambda layer: _body(memory, layer))
    found = seen(samples, large)
    assert found.touched == _in_granules(None)
    if "writes" in samples.quality.sees and name == "ebpf":
        assert found.written == _in_granules(True)
        # page 500 is read after the granule of page 3 was written: it no longer shows until that ends
        reads = {page: n for page, n in _in_granules(False).items() if page >= GRANULE}
        assert {page: n for page, n in found.read.items() if page >= GRANULE} == reads
    assert any("at least 8.00 MiB are watched in granules of 2.00 MiB" in note for note in samples.quality.notes)
    assert samples.quality.large_granularity_bytes == GRANULE * PAGE_BYTES
    assert ctypes.string_at(large.start + 7 * PAGE_BYTES, 1) == b"\x01"


def test_nothing_touched_no_granule_told(name: str, large: AddressRange) -> None:
    assert len(layers(Memory(large, make(f"{name}:2MiB")), 5, lambda layer: None).pages) == 0


def test_small_memory_is_watched_page_by_page(name: str) -> None:
    small = native_touch.map_range(3 * GRANULE * PAGE_BYTES)
    try:
        memory = Memory(small, make(f"{name}:2MiB"))
        samples = layers(memory, 7, lambda layer: memory.touch(5, layer < 3))
        assert seen(samples, small).touched == {5: 7}
    finally:
        native_touch.unmap_range(small)


def test_the_next_watch_is_by_pages_again(name: str, large: AddressRange) -> None:
    for spec, count in ((f"{name}:2MiB", GRANULE), (name, 1), (f"{name}:4KiB", 1)):
        memory = Memory(large, make(spec))
        assert len(layers(memory, 1, lambda layer, m=memory: m.touch(3, True)).pages) == count  # type: ignore[misc]


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("ebpf:64KiB", "'64KiB' is not a granule; use ebpf:4KiB or ebpf:2MiB"),
        ("ebpf:", "'' is not a granule"),
        ("perf:large", "'large' is not a granule"),
        ("uffd:2MiB", "one page a fault"),
        ("magic:2MiB", "'magic' is not a page tracker"),
        ("auto:3", "'3' is not a granule; use auto:4KiB"),
    ],
)
def test_other_words_are_refused(spec: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        choose(spec)
