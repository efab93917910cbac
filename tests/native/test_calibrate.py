"""Measuring for real, little and short: what is counted, and that nothing stays. No speed is judged."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import time
from pathlib import Path

import pytest

from sentinel.calibrate import as_copied_here, calibrate, machine_of, moving, plan_measurements, regions
from sentinel.calibrate.moving import moving_figures
from sentinel.calibrate.native_measure import Chase, latency_ns, parts_of, stream_rate
from sentinel.calibrate.regions import Region
from sentinel.core.errors import CapabilityError, NativeError
from sentinel.core.units import HUGE_PAGE_BYTES
from sentinel.system.topology import topology
from sentinel.tiers import PRESETS, machine_for
from tests.processes import threads, until

pytestmark = pytest.mark.needs("native")

MIB = 1 << 20
ROUND_NS = 2_000_000


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[mmap.mmap]:
    """All memory that is mapped meanwhile."""
    maps: list[mmap.mmap] = []

    class Noted(mmap.mmap):
        def __init__(self, *words: object, **more: object) -> None:
            maps.append(self)

    monkeypatch.setattr(regions.mmap, "mmap", Noted)
    return maps


def _all_given_back(maps: list[mmap.mmap]) -> bool:
    return len(maps) > 0 and all(each.closed for each in maps)


def test_a_region_is_touched_aligned_and_given_back(made: list[mmap.mmap]) -> None:
    with Region(8 * MIB, None, huge=False) as region:
        assert region.address % HUGE_PAGE_BYTES == 0
        assert ctypes.string_at(region.address + 8 * MIB - 3, 3) == b"\x5a\x5a\x5a"
        assert region.huge_bytes() == 0
        assert not _all_given_back(made)
    assert _all_given_back(made)


def test_huge_pages_are_counted_where_they_are_allowed() -> None:
    enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not enabled.exists() or "[never]" in enabled.read_text():
        pytest.skip("needs transparent huge pages: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
    with Region(8 * MIB, None, huge=True) as region:
        assert region.huge_bytes() in range(0, 8 * MIB + 1, HUGE_PAGE_BYTES)


def test_a_node_that_is_not_there_takes_nothing(made: list[mmap.mmap]) -> None:
    with pytest.raises(CapabilityError, match=r"putting 8\.00 MiB on node 1000"):
        Region(8 * MIB, 1000, huge=False)
    assert _all_given_back(made)


def test_parts_are_whole_pages_and_cover_the_region() -> None:
    with Region(22 * MIB, None, huge=False) as region:
        parts = parts_of(region, 3, HUGE_PAGE_BYTES, 1)
        assert [part.nbytes for part in parts] == [6 * MIB, 8 * MIB, 8 * MIB]
        assert parts[0].address == region.address
        for one, other in itertools.pairwise(parts):
            assert one.address + one.nbytes == other.address


def test_streams_and_chases_take_time_on_their_cpu() -> None:
    cpu = min(os.sched_getaffinity(0))
    with Region(4 * MIB, None, huge=False) as region:
        for kind in ("read", "write", "mixed"):
            pace = stream_rate(region, kind, [cpu], ROUND_NS)
            assert pace.figure > 0, kind
            assert 0 < pace.busy <= 1.2, kind
        chase = Chase(region)
        one, other = latency_ns(chase, cpu, ROUND_NS), chase.at
        assert one.figure > 0
        latency_ns(chase, cpu, ROUND_NS)
        assert chase.at != other  # it went on
        assert region.address <= chase.at < region.address + region.nbytes


def test_a_cpu_that_is_not_there_is_an_error_and_no_hang() -> None:
    with Region(4 * MIB, None, huge=False) as region, pytest.raises(NativeError, match="CPUs 0, 100000"):
        stream_rate(region, "read", [0, 100_000], ROUND_NS)


def test_this_host_is_calibrated_part_by_part(made: list[mmap.mmap]) -> None:
    host = topology()
    asked = plan_measurements(host, nodes=[], threads=[1], nbytes=8 * MIB, quick=True)
    told: list[tuple[int, int, str]] = []
    found = calibrate(asked, lambda part, parts, what: told.append((part, parts, what)))
    assert _all_given_back(made)
    assert [part for part, _, _ in told] == list(range(1, told[0][1] + 1))
    assert [node.node for node in found.nodes] == [host.fast]
    machine = machine_of(found, host, "cxl-asic-x8")
    assert machine.fast.measured
    assert machine.tiers[1].read_bytes_per_s == PRESETS["cxl-asic-x8"].read_bytes_per_s


def test_bytes_and_moves_beside_compute_are_counted_and_all_is_given_back(
    made: list[mmap.mmap], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that takes no time loses what all else takes: the price of a byte is the time of the move itself, or more,
    where this thread or the mover had to wait."""
    monkeypatch.setattr(moving, "_took_ns", lambda *_: 0)
    before, began = threads(), time.monotonic_ns()
    with Region(8 * MIB, None, huge=False) as region:
        up, down = moving_figures(region, 2, lambda: None)
    took = time.monotonic_ns() - began
    assert _all_given_back(made)
    until(lambda: threads() <= before)
    assert (up.to_fast, down.to_fast, up.node, down.node) == (True, False, None, None)
    for each in (up, down):
        assert (each.rate.rounds, each.rate.median > 0) == (2, True)
        assert each.lost_ns_per_kib.median * each.rate.median / 1024e9 > 0.999
        assert each.lost_ns_per_kib.median < took / (8 * MIB / 1024)
        assert each.lost_ns_per_move.median >= 0
    assert up.lost_ns_per_move == down.lost_ns_per_move


def test_the_machine_of_the_blind_validation_has_the_prices_of_this_host() -> None:
    asked = machine_for("emulated:cxl-asic-x8")
    machine = as_copied_here(asked, nbytes=8 * MIB, rounds=1)
    for link, was in zip(machine.links, asked.links, strict=True):
        assert link.lost_measured
        assert link.bandwidth_bytes_per_s <= was.bandwidth_bytes_per_s
    assert machine.tiers == asked.tiers


def test_an_interrupted_calibration_leaves_nothing(made: list[mmap.mmap]) -> None:
    asked = plan_measurements(topology(), nodes=[], threads=[1], nbytes=8 * MIB, quick=True)

    def interrupt(part: int, parts: int, what: str) -> None:
        if part == parts:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate(asked, interrupt)
    assert _all_given_back(made)
