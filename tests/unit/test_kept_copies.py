"""What was measured of copies within this host's memory: kept, found again, and counted on every emulated tier."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.calibrate import Calibration, Figure, MovingFigures, NodeFigures, copies_of, machine_of
from sentinel.cli import calibrate, doctor
from sentinel.core.machine import Machine
from sentinel.system import calibration
from sentinel.system.nodes import Node
from sentinel.system.topology import Topology
from sentinel.tiers import choice, machine_for

GB, GIB = 10**9, 1 << 30
HOST = Topology((Node(0, (0, 1), 8 * GIB, 4 * GIB, {0: 10}),), 0, (), "only_node", (0,))


def _flat(value: float) -> Figure:
    return Figure(value, value, value, 3)


def _moving(node: int | None, to_fast: bool, lost: float) -> MovingFigures:
    return MovingFigures(node, to_fast, _flat(3 * GB), _flat(lost), _flat(1000 * lost))


def _found(*moving: MovingFigures, emulated: bool = False) -> Calibration:
    rates = {2: _flat(20 * GB)}
    node = NodeFigures(0, rates, {2: _flat(10 * GB)}, rates, _flat(90.0), None, 0, huge=True)
    began = "2026-11-20T10:00:00+00:00"
    return Calibration((node,), (), {}, (0, 1), GIB, 3, "A Processor", False, emulated, began, (), moving)


COPIES = (_moving(None, True, 100.0), _moving(None, False, 200.0))


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Topology:
    """A host with one node, and a cache with nothing in it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(choice, "topology", lambda: HOST)
    return HOST


def _kept() -> Machine:
    copies = copies_of(_found(*COPIES), HOST)
    assert copies is not None
    calibration.keep_copies(copies, HOST.nodes)
    return copies


def _prices(machine: Machine) -> set[tuple[int, int, float, float]]:
    return {(link.source, link.target, link.lost_ns_per_kib, link.lost_ns_per_move) for link in machine.links}


def test_copies_are_a_machine_with_their_rate_and_prices() -> None:
    copies = copies_of(_found(_moving(1, True, 7.0), *COPIES), HOST)
    assert copies is not None
    assert _prices(copies) == {(1, 0, 100.0, 100_000.0), (0, 1, 200.0, 200_000.0)}
    assert {(link.bandwidth_bytes_per_s, link.measured) for link in copies.links} == {(3 * GB, True)}
    assert copies_of(_found(_moving(1, True, 7.0), _moving(1, False, 8.0)), HOST) is None


def test_copies_out_of_caches_make_no_link_that_is_faster_than_memory() -> None:
    cached = (replace(COPIES[0], rate=_flat(50 * GB)), COPIES[1])
    copies = copies_of(_found(*cached), HOST)
    assert copies is not None
    fast = copies.fast
    most = min(fast.read_bytes_per_s, fast.write_bytes_per_s)
    assert 3 * GB < most < 50 * GB
    assert copies.link(1, 0).bandwidth_bytes_per_s == most


@pytest.mark.usefixtures("host")
def test_every_emulated_tier_takes_from_compute_what_copies_take_and_is_no_faster() -> None:
    before = machine_for("emulated:cxl-asic-x8")
    assert not any(link.takes_from_compute for link in before.links)
    _kept()
    machine = machine_for("emulated:cxl-asic-x8")
    assert _prices(machine) == {(1, 0, 100.0, 100_000.0), (0, 1, 200.0, 200_000.0)}
    assert {(link.bandwidth_bytes_per_s, link.measured) for link in machine.links} == {(3 * GB, True)}
    assert [link.latency_ns for link in machine.links] == [link.latency_ns for link in before.links]
    assert (machine.tiers, machine.name) == (before.tiers, "emulated:cxl-asic-x8")  # still declared, and so labelled
    slower = machine_for("emulated:cxl-worst")
    assert slower.link(0, 1).bandwidth_bytes_per_s == int(2.4 * GB)
    assert [x.measured for x in slower.links] == [True, False]  # as declared, which is less than copies reached
    assert all(x.lost_measured for x in slower.links)
    three = machine_for("emulated:cxl-asic-x8=1GiB+cxl-worst")
    assert _prices(three) == {(t, 0, 100.0, 100_000.0) for t in (1, 2)} | {(0, t, 200.0, 200_000.0) for t in (1, 2)}
    assert not any(link.takes_from_compute for link in machine_for("cxl-asic-x8").links)  # on paper nothing is copied


@pytest.mark.usefixtures("host")
def test_copies_are_those_of_a_process_with_as_many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    copies = _kept()
    assert calibration.kept_copies(HOST.nodes, 0) == copies
    assert calibration.kept(HOST.nodes, 0) is None  # no nodes were measured
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {1})
    assert calibration.kept_copies(HOST.nodes, 0) is None
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {2, 3})
    calibration.kept_copies_path(HOST.nodes, 0).write_text("{")
    with pytest.warns(RuntimeWarning, match="calibration is not used.*run `sentinel calibrate` again"):
        assert not any(link.takes_from_compute for link in machine_for("emulated:cxl-asic-x8").links)


def test_the_verb_keeps_copies_where_the_slow_tier_is_declared(host: Topology) -> None:
    no_file = argparse.Namespace(output=None)
    for slow in ("emulated:cxl-worst", "cxl-asic-x8"):
        found = _found(*COPIES)
        told = calibrate._kept(found, machine_of(found, host, slow), host, no_file)
        path = calibration.kept_copies_path(host.nodes, 0)
        assert told.startswith(f"kept in {path}: plans for emulated tiers count what copies take here")
        assert calibration.kept_copies(host.nodes, 0) == copies_of(found, host)
        path.unlink()
    software = _found(*COPIES, emulated=True)
    told = calibrate._kept(software, machine_of(software, host, "cxl-asic-x8"), host, no_file)
    assert told.startswith("not kept for plans")
    assert calibration.kept_copies(host.nodes, 0) is None


def test_doctor_says_what_moves_of_emulated_tiers_take_and_who_measured_it() -> None:
    assert "as if they took nothing" in doctor.emulated_moves(None)
    copies = copies_of(_found(*COPIES), HOST)
    told = doctor.emulated_moves(copies)
    assert "from emulated to fast 102.40 µs a MiB and 100.00 µs a migration (measured)" in told
    assert "measured 2026-11-20T10:00:00+00:00 by sentinel calibrate on A Processor" in told


def test_a_cache_that_may_not_be_entered_has_no_calibration(host: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of another user, whose home a process without rights was started from."""
    _kept()

    def refused(_path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", refused)
    assert calibration.kept_copies(host.nodes, host.fast) is None
    assert calibration.kept(host.nodes, host.fast) is None
