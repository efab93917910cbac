"""While nothing watches, chunks of 2 MiB that one tensor of the exclusive arena fills may be huge pages; no others."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel  # noqa: E402
from sentinel.calibrate.regions import Region  # noqa: E402
from sentinel.core.units import PAGE_BYTES, page_ceil  # noqa: E402
from sentinel.profiler.pages import obstacle  # noqa: E402
from sentinel.system import native  # noqa: E402

MIB = 1 << 20
HUGE = 2 * MIB
HUGE_PAGES, RESIDENT, HOLES = "AnonHugePages:", "Rss:", "free bytes between what is held"
_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")

pytestmark = [
    pytest.mark.needs("torch", "compiler", "huge pages"),
    pytest.mark.skipif(
        not _ENABLED.exists() or "[never]" in _ENABLED.read_text(),
        reason="needs transparent huge pages: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    ),
]


def _mapped(key: str, start: int, stop: int) -> dict[int, int]:
    """Bytes that smaps tells under `key` for each mapping in [start, stop) with any, by its address."""
    found: dict[int, int] = {}
    begin = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first and not first.endswith(":"):
            begin = int(first.split("-")[0], 16)
        elif first == key and start <= begin < stop and int(rest[0]):
            found[begin] = int(rest[0]) << 10
    return found


def _whole_chunks(tensors: list[Any]) -> int:
    spans = [(t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for t in tensors]
    return sum(max(0, (at + page_ceil(n)) // HUGE - -(-at // HUGE)) for at, n in spans) * HUGE


def _range() -> native.Range:
    """All of it 0 where there is no arena yet."""
    found = native.Range()
    native.library().sn_exclusive_range(ctypes.byref(found))
    return found


def _arena() -> tuple[int, int]:
    found = _range()
    return found.base, found.base + found.reserved_bytes


def _held(key: str) -> int:
    """Bytes of the arena that smaps tells under `key`."""
    return sum(_mapped(key, *_arena()).values())


def _none_to_be_had() -> bool:
    """Whether the host has no huge page to give now: others may have its memory, or have left it in pieces."""
    with Region(2 * HUGE, None, huge=True) as region:
        return region.huge_bytes() == 0


@pytest.fixture
def left() -> dict[str, int]:
    """What earlier tests of this process have left in the arena."""
    gc.collect()
    return {HOLES: _range().free_bytes} | {key: _held(key) for key in (HUGE_PAGES, RESIDENT)}


@pytest.mark.parametrize("tracker", ["pagemap", "ops"])
def test_large_tensors_have_huge_pages_but_while_they_are_watched(tracker: str, left: dict[str, int]) -> None:
    refused = None if tracker == "ops" else obstacle(tracker)
    if refused is not None:
        pytest.skip(f"needs tracker {tracker}: {refused}")
    model = torch.nn.Sequential(torch.nn.Linear(2100, 2000), torch.nn.Linear(2000, 3000))
    tensors = list(model.parameters())
    before = [tensor.detach().clone() for tensor in tensors]
    sentinel.start_profile(model, slow="emulated:cxl-asic-x8", tracker=tracker)
    start, stop = _arena()
    try:
        large = [tensor for tensor in tensors if tensor.numel() * 4 >= HUGE]
        assert len(large) == 2
        assert all(tensor.data_ptr() % HUGE == 0 for tensor in large)
        most = _whole_chunks(tensors)
        assert most >= 28 * MIB
        if tracker != "ops":
            assert sum(float(tensor.detach().sum()) for tensor in large) != 0  # touched, so mapped
            assert not _mapped("AnonHugePages:", start, stop)
            assert not _mapped("ShmemPmdMapped:", start, stop)
    finally:
        sentinel.stop()
    held = _held(HUGE_PAGES) - left[HUGE_PAGES]
    assert held <= most  # as many as the host had
    assert held > 0 or _none_to_be_had()
    most = sum(page_ceil(tensor.numel() * 4) for tensor in tensors) + PAGE_BYTES
    assert _held(RESIDENT) - left[RESIDENT] <= most + left[HOLES]  # a watch may fill holes that earlier tests left
    assert all(torch.equal(tensor, old) for tensor, old in zip(tensors, before, strict=True))


def test_tensors_that_fill_no_huge_page_have_none(left: dict[str, int]) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(500, 1000) for _ in range(12)))
    sentinel.start_profile(model, slow="emulated:cxl-asic-x8", tracker="ops")
    sentinel.stop()
    assert _held(RESIDENT) - left[RESIDENT] >= 20 * MIB
    assert _held(HUGE_PAGES) <= left[HUGE_PAGES]


def test_what_follows_a_tensor_with_huge_pages_has_small_ones(left: dict[str, int]) -> None:
    model = torch.nn.Linear(2048, 4096)
    sentinel.start_profile(model, slow="emulated:cxl-asic-x8", tracker="ops")
    sentinel.stop()
    assert _held(HUGE_PAGES) > left[HUGE_PAGES] or _none_to_be_had()
    model.weight = None
    assert _held(HUGE_PAGES) <= left[HUGE_PAGES]
    small = torch.nn.Sequential(*(torch.nn.Linear(500, 1000) for _ in range(12)))
    sentinel.start_profile(small, slow="emulated:cxl-asic-x8", tracker="ops")
    sentinel.stop()
    assert _held(HUGE_PAGES) <= left[HUGE_PAGES]


def test_a_chunk_whose_pages_were_not_touched_alike_has_small_ones(left: dict[str, int]) -> None:
    refused = obstacle("pagemap")
    if refused is not None:
        pytest.skip(f"needs tracker pagemap: {refused}")
    table = torch.nn.Embedding(16384, 256)  # a row is a quarter of a page
    table.weight.requires_grad_(False)
    sentinel.start_profile(table, slow="emulated:cxl-asic-x8", tracker="pagemap")
    try:
        sentinel.add_layer("before")
        table(torch.arange(5 * MIB // 1024))  # of 16 MiB the first 5
        sentinel.add_layer("lookup")
        sentinel.end_profile()
        at = table.weight.data_ptr()
        assert at % HUGE == 0
        cut = at + 2 * HUGE
        assert _mapped("Rss:", cut, cut + HUGE)  # a mapping of its own, small pages
        held = _held(HUGE_PAGES) - left[HUGE_PAGES]
        assert held <= 16 * MIB - HUGE
        assert held > 0 or _none_to_be_had()
        assert not _mapped("AnonHugePages:", cut, cut + HUGE)
    finally:
        sentinel.stop()
