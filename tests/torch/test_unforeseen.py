"""Training on a file beside accesses that no operator announces: what they read, and that it is there the next time."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel  # noqa: E402
from sentinel.core.units import PAGE_BYTES  # noqa: E402
from sentinel.runtime import RUNTIME  # noqa: E402
from sentinel.session.passive import PassiveSession  # noqa: E402
from sentinel.tiers.ahead import ahead_counters  # noqa: E402
from sentinel.tiers.file_tier import FramedTensors  # noqa: E402
from tests.processes import LONGEST_S  # noqa: E402

pytestmark = pytest.mark.needs("torch", "compiler", "native")
FILE_BYTES = 256 << 20


def begin(folder: Path, fast: str) -> FramedTensors:
    sentinel.start_profile(fast=fast, slow=f"file:{folder}={FILE_BYTES >> 20}MiB")
    session = RUNTIME.sink
    assert isinstance(session, PassiveSession)
    assert session._framed is not None
    return session._framed


def training(layers: int, between: Callable[[], object] = lambda: None) -> Callable[[], None]:
    """One step of it; `between` forward and backward."""
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, bias=False) for _ in range(layers)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs = torch.ones(4, 1024)

    def step() -> None:
        loss = model(inputs).square().mean()
        between()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def cached_pages(folder: Path) -> int:
    """Of the session's file, in the page cache, by the kernel's word."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            if os.readlink(link).startswith(f"{folder}/"):
                found.append(link)
    with found[0].open("rb") as file:
        assert os.fstat(file.fileno()).st_size == FILE_BYTES
        shown = mmap.mmap(file.fileno(), FILE_BYTES, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    there = (ctypes.c_uint8 * (FILE_BYTES // PAGE_BYTES))()
    address = ctypes.c_char.from_buffer(shown)
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    result = mincore(ctypes.addressof(address), FILE_BYTES, there)
    del address
    shown.close()
    assert result == 0, os.strerror(ctypes.get_errno())
    return sum(page & 1 for page in there)


def test_after_a_step_no_page_of_the_file_is_in_the_page_cache(scratch: Path) -> None:
    framed = begin(scratch, "32MiB")
    if not framed.facts.direct:
        pytest.skip("needs a file system with direct transfers")
    other = torch.ones(1 << 20)
    step = training(8)  # 96 MiB
    for _ in range(5):
        step()
        assert cached_pages(scratch) == 0
    told = framed.counters()
    assert told.too_large == 0
    assert told.frames.read_bytes > 4 * (64 << 20)
    assert ahead_counters().unforeseen == 0
    assert float(other.numpy()[::1024].sum()) == 1 << 10  # page by page: it is away
    assert cached_pages(scratch) > 256
    for _ in range(5):  # on a busy host a page may still be on its way from the disk as a step ends
        step()
        if cached_pages(scratch) == 0:
            break
    assert cached_pages(scratch) == 0


def test_what_numpy_reads_in_each_step_is_read_ahead(scratch: Path) -> None:
    """After the first time; whatever else a busy disk comes too late for is found again."""
    begin(scratch, "64MiB")
    other = torch.arange(1 << 19, dtype=torch.float32)  # 2 MiB, that no operator uses
    seen: list[Any] = []
    reads = False

    def read() -> None:
        if reads:
            seen.append(other.numpy().copy())

    step = training(12, read)  # 144 MiB
    for _ in range(3):
        step()
    assert ahead_counters().recorded == 1
    assert ahead_counters().unforeseen == 0
    reads = True
    deadline = time.monotonic() + LONGEST_S
    while True:
        before = ahead_counters()
        step()
        step()
        now = ahead_counters()
        if before.expected > 0 and now.expected > 0 and now.unforeseen == before.unforeseen:
            break
        assert time.monotonic() < deadline, (before, now)
    assert now.unforeseen > 0
    assert now.hit_bytes > before.hit_bytes
    assert all((found == range(1 << 19)).all() for found in seen[-2:])
    assert float(seen[0].sum()) == float(seen[-1].sum())
