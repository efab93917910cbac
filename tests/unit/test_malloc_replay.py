"""Addresses that malloc gives: aligned, apart while both live, and given back."""

from __future__ import annotations

import ctypes
import resource
from pathlib import Path

import numpy as np
import pytest

from sentinel.core.errors import CapabilityError
from sentinel.system.malloc_replay import ALIGNMENT, replay


def test_blocks_that_live_together_do_not_overlap_and_those_that_died_make_room() -> None:
    generator = np.random.default_rng(11)
    sizes = generator.choice([4, 64, 384, 1000, 5000, 70_000, 400_000], 331)
    calls: list[tuple[int, int]] = []
    alive: list[int] = []
    for block, nbytes in enumerate(sizes.tolist()):
        calls.append((block, nbytes))
        alive.append(block)
        if len(alive) > 40:
            calls.append((alive.pop(int(generator.integers(len(alive)))), 0))
    found = replay(np.array(calls))
    held: dict[int, tuple[int, int]] = {}
    for (block, nbytes), address in zip(calls, found.tolist(), strict=True):
        if not nbytes:
            assert address == 0
            del held[block]
            continue
        assert address > 0
        assert address % ALIGNMENT == 0
        assert all(address + nbytes <= at or at + n <= address for at, n in held.values())
        held[block] = (address, nbytes)
    assert len(set(found[found > 0].tolist())) < len(sizes)  # what was freed was given again


def test_nothing_is_kept_and_no_page_is_touched() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    nbytes = 31 << 20
    before = resident()
    replay(np.array([(block, nbytes) for block in range(16)]))
    assert resident() - before < nbytes


def test_a_refusal_names_the_remedy_and_leaves_nothing() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (taken + (256 << 20), hard))
    try:
        with pytest.raises(CapabilityError, match="ulimit -v"):
            replay(np.array([(0, 1 << 20), (1, 1 << 40)]))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert ctypes.CDLL(None).malloc_trim(0) in (0, 1)
