"""From figures to a Machine, what may be asked for, and the calibration that is kept."""

from __future__ import annotations

import json
import os
import resource
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.calibrate import (
    Calibration,
    Figure,
    MoveFigures,
    MovingFigures,
    NodeFigures,
    machine_of,
    plan_measurements,
)
from sentinel.calibrate.machines import is_full_duplex, loaded_latency_a
from sentinel.calibrate.results import best, figure_of
from sentinel.cli import main
from sentinel.core.errors import CapabilityError, UsageError
from sentinel.files import load_machine, save
from sentinel.planner import plan
from sentinel.system import calibration, limits, processor
from sentinel.system.nodes import Node
from sentinel.system.topology import Topology
from tests.builders import act, make_profile

MIB, GIB, GB = 1 << 20, 1 << 30, 10**9


def _flat(value: float) -> Figure:
    return Figure(value, value, value, 3)


def _node(number: int, rate: float, latency_ns: float, loaded_ns: float | None = None) -> NodeFigures:
    rates = {1: _flat(rate / 2), 4: _flat(rate)}
    halves = {threads: _flat(figure.median / 2) for threads, figure in rates.items()}
    loaded = None if loaded_ns is None else _flat(loaded_ns)
    return NodeFigures(number, rates, halves, rates, _flat(latency_ns), loaded, 3 if loaded else 0, huge=True)


def _moves(other: int, down: float, up: float) -> tuple[MoveFigures, ...]:
    """Four movers get twice as much, huge pages ten times: neither is how a plan is carried out."""
    return tuple(
        MoveFigures(source, target, page_bytes, {1: _flat(rate * factor), 4: _flat(2 * rate * factor)})
        for page_bytes, factor in ((4096, 1), (2 * MIB, 10))
        for source, target, rate in ((0, other, down), (other, 0, up))
    )


def _found(**changed: object) -> Calibration:
    made = Calibration(
        nodes=(_node(0, 20 * GB, 90.0), _node(1, 6 * GB, 210.0)),
        moves=_moves(1, 2 * GB, 1.5 * GB),
        both_ways={(0, 1): _flat(1.9 * GB), (1, 0): _flat(1.4 * GB)},
        cpus=(0, 1, 2, 3),
        nbytes=256 * MIB,
        rounds=3,
        processor="A Processor",
        virtual=False,
        emulated=False,
        began="2026-11-20T10:00:00+00:00",
        notes=(),
    )
    return replace(made, **changed)


def _host(**changed: object) -> Topology:
    nodes = (Node(0, (0, 1, 2, 3), 8 * GIB, 4 * GIB, {0: 10, 1: 20}), Node(1, (), 16 * GIB, 9 * GIB, {0: 20, 1: 10}))
    return replace(Topology(nodes, 0, (1,), "no_cpus", (0,)), **changed)


def test_a_figure_is_the_median_and_says_how_far_rounds_lay_apart() -> None:
    figure = figure_of([5.0, 1.0, 3.0])
    assert (figure.median, figure.lowest, figure.highest, figure.rounds) == (3.0, 1.0, 5.0, 3)
    assert figure.spread == pytest.approx(4 / 3)
    assert best({1: _flat(3.0), 2: _flat(7.0), 4: _flat(5.0)}).median == 7.0


def test_a_machine_has_the_best_bandwidths_and_the_links_of_a_plans_mover() -> None:
    machine = machine_of(_found(), _host())
    fast, slow = machine.tiers
    assert (fast.name, fast.kind, fast.node, slow.name, slow.kind, slow.node) == ("fast", "node", 0, "node1", "node", 1)
    assert (fast.read_bytes_per_s, fast.write_bytes_per_s, fast.latency_ns) == (20 * GB, 10 * GB, 90.0)
    assert (slow.read_bytes_per_s, slow.write_bytes_per_s, slow.latency_ns) == (6 * GB, 3 * GB, 210.0)
    assert (fast.capacity_bytes, slow.capacity_bytes) == (4 * GIB, 9 * GIB)
    assert machine.link(0, 1).bandwidth_bytes_per_s == 2 * GB
    assert machine.link(1, 0).bandwidth_bytes_per_s == 1.5 * GB
    assert all(part.measured for part in (*machine.tiers, *machine.links))
    assert "2026-11-20" in slow.source
    assert "A Processor" in slow.source
    assert machine.decided_by == "measurement"


def test_several_nodes_are_tiers_nearest_first() -> None:
    far = Node(2, (), GIB, GIB, {0: 17, 1: 20, 2: 10})
    host = _host(nodes=(*_host().nodes, far))
    nodes = (_node(0, 20 * GB, 90.0), _node(1, 6 * GB, 310.0), _node(2, 6 * GB, 210.0))
    both = {pair: _flat(GB) for pair in ((0, 1), (1, 0), (0, 2), (2, 0))}
    found = _found(nodes=nodes, moves=(*_moves(1, GB, GB), *_moves(2, 3 * GB, 4 * GB)), both_ways=both)
    machine = machine_of(found, host)
    assert [tier.node for tier in machine.tiers] == [0, 2, 1]
    assert machine.link(1, 0).bandwidth_bytes_per_s == 4 * GB
    assert machine.link(0, 2).bandwidth_bytes_per_s == GB


def test_a_link_is_no_faster_than_the_nodes_were_read_and_written() -> None:
    machine = machine_of(_found(moves=_moves(1, 5 * GB, 7 * GB)), _host())
    assert (machine.link(0, 1).bandwidth_bytes_per_s, machine.link(1, 0).bandwidth_bytes_per_s) == (3 * GB, 6 * GB)


def _moving(node: int | None, to_fast: bool, lost: float) -> MovingFigures:
    return MovingFigures(node, to_fast, _flat(3 * GB), _flat(lost), _flat(1000 * lost))


def test_links_of_nodes_take_from_compute_what_was_measured_of_their_own_node_and_direction() -> None:
    free = machine_of(_found(), _host())
    assert not any(link.takes_from_compute for link in free.links)
    moving = (_moving(1, True, 100.04), _moving(1, False, 200), _moving(None, True, 7), _moving(2, False, 8))
    machine = machine_of(_found(moving=moving), _host())
    told = {x.target: (x.lost_ns_per_kib, x.lost_ns_per_move) for x in machine.links}
    assert told == {0: (100.0, 100_040.0), 1: (200.0, 200_000.0)}
    assert [x.bandwidth_bytes_per_s for x in machine.links] == [x.bandwidth_bytes_per_s for x in free.links]


def test_copies_price_emulated_links_and_are_their_rate_where_the_host_is_slower_but_not_links_on_paper() -> None:
    moving = (_moving(None, True, 100), _moving(None, False, 200))
    alone = _found(nodes=_found().nodes[:1], moves=(), both_ways={}, moving=moving)
    machine = machine_of(alone, _host(), "emulated:cxl-asic-x8")
    assert [(x.lost_ns_per_kib, x.measured) for x in machine.links] == [(100.0, True), (200.0, True)]
    assert [x.bandwidth_bytes_per_s for x in machine.links] == [3 * GB, 3 * GB]
    slower = machine_of(alone, _host(), "emulated:cxl-worst")
    assert slower.link(0, 1).bandwidth_bytes_per_s == int(2.4 * GB)
    assert [x.measured for x in slower.links] == [True, False]  # as declared, which is less than copies reached
    assert all(x.lost_measured for x in slower.links)
    on_paper = machine_of(alone, _host(), "cxl-asic-x8")
    assert not any(x.takes_from_compute or x.measured for x in on_paper.links)


def test_the_firmware_orders_before_what_was_measured() -> None:
    nodes = tuple(replace(node, read_latency_ns=ns) for node, ns in zip(_host().nodes, (90, 250), strict=True))
    assert machine_of(_found(), _host(nodes=nodes)).decided_by == "hmat"


def test_an_emulated_machine_orders_nothing_and_says_so_in_the_file(tmp_path: Path) -> None:
    machine = machine_of(_found(emulated=True), _host())
    assert machine.decided_by == "no_cpus"
    save(machine, tmp_path / "machine.json")
    assert load_machine(tmp_path / "machine.json") == machine
    for tier in machine.tiers:
        assert tier.source.startswith("emulated machine: these are not memory's speeds")


def test_one_node_and_a_declared_tier_make_a_machine() -> None:
    alone = _found(nodes=_found().nodes[:1], moves=(), both_ways={})
    with pytest.raises(UsageError, match="only one node was measured; name a declared tier with --slow"):
        machine_of(alone, _host())
    for word, kind in (("emulated:cxl-asic-x8", "emulated"), ("cxl-asic-x8", "described")):
        machine = machine_of(alone, _host(), word)
        fast, slow = machine.tiers
        assert (fast.measured, slow.measured, slow.kind) == (True, False, kind)
        assert slow.source.startswith("declared")
        assert not any(link.measured for link in machine.links)
    with pytest.raises(UsageError, match="names no slow tier"):
        machine_of(alone, _host(), "emulated:nothing")


def test_directions_that_slow_each_other_down_share_a_link() -> None:
    assert is_full_duplex(_found(), 1)
    shared = _found(both_ways={(0, 1): _flat(0.9 * GB), (1, 0): _flat(0.8 * GB)})
    assert not is_full_duplex(shared, 1)
    assert not machine_of(shared, _host()).full_duplex


def test_the_model_of_loaded_latency_gives_back_what_was_measured() -> None:
    assert loaded_latency_a(_node(0, 20 * GB, 90.0)) == 0.0
    node = replace(_node(0, 20 * GB, 90.0, loaded_ns=150.0), readers=1)  # one reader gets half of the bandwidth
    use = 0.5
    assert 90.0 * (1 + loaded_latency_a(node) * use / (1 - use)) == pytest.approx(150.0, abs=0.1)  # `a` has four digits
    assert loaded_latency_a(_node(0, 20 * GB, 90.0, loaded_ns=80.0)) == 0.0  # noise
    loaded = (_node(0, 20 * GB, 90.0, loaded_ns=150.0), _node(1, 6 * GB, 210.0, loaded_ns=400.0))
    fast, slow = machine_of(_found(nodes=loaded), _host()).tiers
    assert (fast.loaded_latency_a, slow.loaded_latency_a) == (0.0, loaded_latency_a(loaded[1]))
    assert slow.loaded_latency_a > 0


# ---- what may be asked for ----------------------------------------------------------------------------------


@pytest.fixture
def all_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(processor, "is_emulated", lambda: False)
    monkeypatch.setattr(limits, "room_bytes", lambda: None)
    monkeypatch.setattr(processor, "last_cache_bytes", lambda: 32 * MIB)


@pytest.mark.usefixtures("all_cpus")
def test_an_order_covers_all_nodes_and_numbers_of_threads() -> None:
    made = plan_measurements(_host())
    assert (made.fast, made.others, made.cpus, made.threads) == (0, (1,), (0, 1, 2, 3), (1, 2, 4))
    assert (made.nbytes, made.on_nodes) == (256 * MIB, True)
    assert plan_measurements(_host(), quick=True).threads == (1, 4)
    assert plan_measurements(_host(), quick=True).rounds < made.rounds
    assert plan_measurements(_host(), threads=[2, 0]).threads == (2, 4)
    assert plan_measurements(_host(), nodes=[0]).others == ()
    assert plan_measurements(_host(), nodes=[1]).others == (1,)


@pytest.mark.usefixtures("all_cpus")
def test_memory_outgrows_the_cache_and_fits_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "last_cache_bytes", lambda: 300 * MIB)
    assert plan_measurements(_host()).nbytes == 1200 * MIB
    nodes = (replace(_host().nodes[0], free_bytes=500 * MIB), _host().nodes[1])
    assert plan_measurements(_host(nodes=nodes)).nbytes == 234 * MIB


@pytest.mark.usefixtures("all_cpus")
def test_what_has_no_room_is_refused_before_anything_is_touched() -> None:
    nodes = (_host().nodes[0], replace(_host().nodes[1], free_bytes=100 * MIB))
    with pytest.raises(CapabilityError, match=r"node 1 has 100.00 MiB free.*give --size 34.00MiB or less"):
        plan_measurements(_host(nodes=nodes), nbytes=GIB)
    assert plan_measurements(_host(nodes=nodes), nbytes=34 * MIB).nbytes == 34 * MIB
    with pytest.raises(UsageError, match="too little to measure"):
        plan_measurements(_host(), nbytes=MIB)


@pytest.mark.usefixtures("all_cpus")
def test_a_containers_limit_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "room_bytes", lambda: 300 * MIB)
    assert plan_measurements(_host()).nbytes == 134 * MIB
    with pytest.raises(CapabilityError, match=r"memory cgroup has 300.00 MiB free.*--size 134.00MiB or less"):
        plan_measurements(_host(), nbytes=256 * MIB)


@pytest.mark.usefixtures("all_cpus")
def test_without_nodes_what_the_kernel_can_give_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not what is free at the moment, which on a busy host is little: the rest is page cache."""
    monkeypatch.setattr(limits, "available_bytes", lambda: 100 * MIB)
    alone = Topology()
    assert plan_measurements(alone, nbytes=34 * MIB).nbytes == 34 * MIB
    with pytest.raises(CapabilityError, match=r"node 0 has 100.00 MiB free.*give --size 34.00MiB or less"):
        plan_measurements(alone, nbytes=36 * MIB)


def test_the_tightest_cgroup_around_this_process_counts(tmp_path: Path) -> None:
    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    assert limits.room_bytes(tmp_path) is None
    write("proc/self/cgroup", "3:cpuset:/x\n2:memory:/job\n0::/outer/inner\n")
    write("sys/fs/cgroup/outer/inner/memory.max", "max\n")
    write("sys/fs/cgroup/outer/inner/memory.current", "77\n")
    assert limits.room_bytes(tmp_path) is None
    write("sys/fs/cgroup/outer/memory.max", "1000\n")
    write("sys/fs/cgroup/outer/memory.current", "900\n")
    write("sys/fs/cgroup/outer/memory.stat", "anon 5\ninactive_file 30\n")
    assert limits.room_bytes(tmp_path) == 130
    write("sys/fs/cgroup/outer/inner/memory.high", "max\n")
    assert limits.room_bytes(tmp_path) == 130
    write("sys/fs/cgroup/outer/inner/memory.high", "177\n")
    assert limits.room_bytes(tmp_path) == 100
    write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1000\n")
    write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "950\n")
    write("sys/fs/cgroup/memory/memory.limit_in_bytes", f"{2**63 - 4096}\n")
    assert limits.room_bytes(tmp_path) == 50


def test_what_limits_on_private_memory_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ulimit -d`, and a kernel that promises no more memory than there is."""
    limit = [resource.RLIM_INFINITY]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit[0], limit[0]))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text("Name:\tx\nVmData:\t    1024 kB\n")
    (tmp_path / "proc/meminfo").write_text("CommitLimit:   3000 kB\nCommitted_AS:   1000 kB\n")
    assert limits.private_memory_left(tmp_path) is None
    limit[0] = 5 * MIB
    assert limits.private_memory_left(tmp_path) == 4 * MIB
    limit[0] = MIB // 2
    assert limits.private_memory_left(tmp_path) == 0
    limit[0] = resource.RLIM_INFINITY
    (tmp_path / "proc/sys/vm").mkdir(parents=True)
    (tmp_path / "proc/sys/vm/overcommit_memory").write_text("2\n")
    assert limits.private_memory_left(tmp_path) == 2000 * 1024
    limit[0] = 2 * MIB
    assert limits.private_memory_left(tmp_path) == MIB


@pytest.mark.usefixtures("all_cpus")
def test_nodes_and_threads_that_are_not_there_are_named() -> None:
    with pytest.raises(UsageError, match=r"no node 7 with memory \(with memory: 0, 1\)"):
        plan_measurements(_host(), nodes=[0, 7])
    with pytest.raises(UsageError, match="may use 4 CPUs of the fast node; give numbers from 1 to 4"):
        plan_measurements(_host(), threads=[1, 5])
    with pytest.raises(CapabilityError, match="cpuset allows no memory there"):
        plan_measurements(_host(forbidden=(1,)), nodes=[1])
    assert plan_measurements(_host(forbidden=(1,))).others == ()


# ---- the processor, and what is kept ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "vendor", "clocks", "emulated"),
    [
        ("QEMU TCG CPU version 2.5+", "QEMU", "tsc", True),
        ("QEMU Virtual CPU version 2.5+", "QEMU", "tsc hpet", True),
        ("QEMU Virtual CPU version 2.5+", "QEMU", "kvm-clock tsc", False),
        ("AMD EPYC", "QEMU", "hpet", True),
        ("AMD EPYC", "QEMU", "kvm-clock", False),
        ("AMD EPYC", "", "tsc", False),
        ("", "", "", False),
    ],
)
def test_a_processor_of_software_is_told_from_a_virtual_one(
    tmp_path: Path, model: str, vendor: str, clocks: str, emulated: bool
) -> None:
    files = {
        "proc/cpuinfo": f"processor\t: 0\nmodel name\t: {model}\nflags\t\t: fpu hypervisor\n",
        "sys/class/dmi/id/sys_vendor": vendor,
        "sys/devices/system/clocksource/clocksource0/available_clocksource": clocks,
        "sys/devices/system/cpu/cpu0/cache/index0/size": "48K\n",
        "sys/devices/system/cpu/cpu0/cache/index3/size": "36864K\n",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert processor.model(tmp_path) == model
    assert processor.is_emulated(tmp_path) is emulated
    assert processor.is_virtual(tmp_path)
    assert processor.last_cache_bytes(tmp_path) == 36 * MIB
    assert processor.last_cache_bytes(tmp_path / "nowhere") == 0


@pytest.mark.parametrize(("implementer", "emulated"), [("0x00", True), ("0x41", False)])
def test_an_arm_processor_of_software_has_no_maker(tmp_path: Path, implementer: str, emulated: bool) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(f"processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: {implementer}\n")
    (tmp_path / "sys/class/dmi/id").mkdir(parents=True)
    (tmp_path / "sys/class/dmi/id/sys_vendor").write_text("QEMU\n")  # as under KVM
    assert processor.is_emulated(tmp_path) is emulated


def test_what_is_kept_is_found_by_this_host_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    nodes = _host().nodes
    assert calibration.kept(nodes, 0) is None
    machine = machine_of(_found(), _host())
    path = calibration.keep(machine, nodes)
    assert path.parent == tmp_path / "sentinel"
    assert calibration.kept(nodes, 0) == machine
    assert calibration.kept(nodes, 1) is None  # seen from elsewhere
    grown = (nodes[0], replace(nodes[1], total_bytes=32 * GIB))
    assert calibration.kept(grown, 0) is None
    less_free = (nodes[0], replace(nodes[1], free_bytes=1))
    assert calibration.kept(less_free, 0) == machine
    assert calibration.latencies(machine) == {0: 90.0, 1: 210.0}
    path.write_text("{")
    with pytest.warns(RuntimeWarning, match="calibration is not used.*run `sentinel calibrate` again"):
        assert calibration.kept(nodes, 0) is None


def test_one_with_a_link_faster_than_its_memory_is_left_aside_and_never_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As earlier versions kept where noise had it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    nodes = _host().nodes
    path = calibration.keep(machine_of(_found(), _host()), nodes)
    before = json.loads(path.read_text())
    del before["checksum"]
    before["machine"]["links"][0]["bandwidth_bytes_per_s"] = 10**14
    path.write_text(json.dumps(before))
    with pytest.warns(RuntimeWarning, match="carries 100000 GB/s.*run `sentinel calibrate` again"):
        assert calibration.kept(nodes, 0) is None
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert calibration.kept(nodes, 0) is None
    assert "run `sentinel calibrate` again" in capsys.readouterr().err


def test_a_plan_is_made_for_the_migration_that_was_measured() -> None:
    """Activations that wait for their backward pass: all that does not fit is moved where the link keeps up."""
    length = 16
    acts = [act(f"a{i}", 8 * MIB, i, length - i, reads=[length - 1 - i]) for i in range(length // 2)]
    profile = make_profile(acts, length, layer_ns=20_000_000)
    planned = {}
    for rate in (8 * GB, 8 * 10**6):
        both = {pair: _flat(rate) for pair in ((0, 1), (1, 0))}
        machine = machine_of(_found(moves=_moves(1, rate, rate), both_ways=both), _host())
        planned[rate] = plan(profile, machine.with_fast_capacity(24 * MIB), policy="sentinel")
    assert planned[8 * GB].migrated_bytes_per_step >= 2 * 8 * MIB
    carried = 2 * 8 * 10**6 * (planned[8 * 10**6].predicted_step_ns or 0) / 1e9  # both ways, all the step long
    assert planned[8 * 10**6].migrated_bytes_per_step <= carried < 8 * MIB


@pytest.mark.parametrize("folder", ["file", "file/below", "readonly"])
def test_a_cache_that_cannot_be_written_is_told_before_anything_is_measured(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / folder))
    monkeypatch.setattr(processor, "is_emulated", lambda: False)
    if folder == "readonly":  # to whom root is, too
        monkeypatch.setattr(os, "access", lambda *_, **__: False)

    def measured(*_: object, **__: object) -> None:
        raise AssertionError("it measures")

    monkeypatch.setattr("sentinel.calibrate.calibrate", measured)
    assert main(["calibrate", "--size", "8MiB"]) == 1
    told = capsys.readouterr().err
    assert "the calibration cannot be kept" in told
    assert "give -o FILE, or set XDG_CACHE_HOME" in told
    monkeypatch.setattr(processor, "is_emulated", lambda: True)  # nothing is kept then
    with pytest.raises(AssertionError, match="it measures"):
        main(["calibrate", "--size", "8MiB"])
