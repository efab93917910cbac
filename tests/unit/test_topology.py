"""Topology and the machine that a word stands for, on recorded sysfs trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.cli import doctor
from sentinel.core.errors import CapabilityError, UsageError
from sentinel.core.machine import Link, Machine, TierSpec
from sentinel.core.units import format_bytes
from sentinel.system.topology import Topology, reordered, topology, untold_bytes
from sentinel.tiers import PRESETS, choice, machine_for
from sentinel.tiers.presets import MOVER_BYTES_PER_S

GIB = 1 << 30


class Tree:
    """A file system with a /sys of known nodes."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> Tree:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return self

    def node(self, number: int, cpus: str, distance: str, gib: int = 4, free_gib: int = 1) -> Tree:
        base = f"sys/devices/system/node/node{number}"
        lines = [f"Node {number} MemTotal: {gib << 20} kB", f"Node {number} MemFree: {free_gib << 20} kB"]
        self.write(f"{base}/meminfo", "\n".join(lines) + "\n")
        return self.write(f"{base}/cpulist", f"{cpus}\n").write(f"{base}/distance", f"{distance}\n")

    def hmat(self, number: int, latency_ns: int, bandwidth_mib_per_s: int) -> Tree:
        for way in ("read", "write"):
            base = f"sys/devices/system/node/node{number}/access0/initiators"
            self.write(f"{base}/{way}_latency", f"{latency_ns}\n")
            self.write(f"{base}/{way}_bandwidth", f"{bandwidth_mib_per_s}\n")
        return self

    def online(self, nodes: str) -> Tree:
        return self.write("sys/devices/system/node/online", f"{nodes}\n")

    def memory_tier(self, rank: int, nodes: str) -> Tree:
        return self.write(f"sys/devices/virtual/memory_tiering/memory_tier{rank}/nodelist", f"{nodes}\n")

    def read(self, cpus: tuple[int, ...] = (0,)) -> Topology:
        return topology(self.root, cpus)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_host_that_tells_nothing_has_no_nodes_and_no_error(tree: Tree) -> None:
    assert tree.read() == Topology()
    tree.online("garbage").write("sys/devices/system/node/nodeX/meminfo", "\0\xff")
    assert tree.read().nodes == ()


def test_one_node_has_nothing_slower(tree: Tree) -> None:
    host = tree.online("0").node(0, "0-1", "10", gib=24, free_gib=22).memory_tier(4, "0").read()
    (node,) = host.nodes
    assert (node.cpus, node.total_bytes, node.free_bytes) == ((0, 1), 24 * GIB, 22 * GIB)
    assert (node.distances, node.memory_tier, node.read_latency_ns) == ({0: 10}, 4, None)
    assert (host.fast, host.slower, host.decided_by) == (0, (), "only_node")


def test_the_only_node_has_what_the_host_has_where_it_tells_of_less(tree: Tree) -> None:
    """As in virtual machines whose kernel gives a node its memory as it is needed."""
    tree.write("proc/meminfo", f"MemTotal: {126 << 20} kB\nMemFree: {9 << 20} kB\nMemAvailable: {125 << 20} kB\n")
    (node,) = tree.online("0").node(0, "0-15", "10", gib=4, free_gib=3).read().nodes
    assert (node.total_bytes, node.free_bytes) == (126 * GIB, 125 * GIB)
    (node,) = tree.node(0, "0-15", "10", gib=128, free_gib=3).read().nodes
    assert (node.total_bytes, node.free_bytes) == (128 * GIB, 3 * GIB)
    host = tree.online("0-1").node(0, "0-15", "10 20", free_gib=3).node(1, "", "20 10", free_gib=2).read()
    assert [(node.total_bytes, node.free_bytes) for node in host.nodes] == [(4 * GIB, 3 * GIB), (4 * GIB, 2 * GIB)]


def test_doctor_says_where_several_nodes_tell_of_less_than_the_host_has(tree: Tree) -> None:
    tree.online("0-1").node(0, "0-15", "10 20").node(1, "", "20 10")
    for gib, said in ((126, True), (9, True), (8, False), (4, False)):
        tree.write("proc/meminfo", f"MemTotal: {gib << 20} kB\n")
        host = tree.read()
        untold = doctor.untold_memory(host, untold_bytes(host, tree.root))
        assert bool(untold) == said, gib
        if said:
            assert f"the nodes tell of 8.00 GiB, and the host has {gib}.00 GiB" in untold
    host = tree.online("0").read()  # which has all that the host has
    assert untold_bytes(host, tree.root) == 0


def test_free_memory_includes_what_the_kernel_gives_up(tree: Tree) -> None:
    base = "sys/devices/system/node/node0"
    rows = {"MemTotal": 1000, "MemFree": 100, "FilePages": 300, "Shmem": 50, "Dirty": 30, "SReclaimable": 7}
    tree.online("0").node(0, "0", "10")
    tree.write(f"{base}/meminfo", "".join(f"Node 0 {name}: {kib} kB\n" for name, kib in rows.items()))
    assert tree.read().nodes[0].free_bytes == (100 + 300 - 50 - 30 + 7) * 1024


def test_two_sockets_are_told_apart_by_distance_from_where_the_process_runs(tree: Tree) -> None:
    tree.online("0-1").node(0, "0-7", "10 21").node(1, "8-15", "21 10").memory_tier(4, "0-1")
    assert (tree.read((0, 1)).fast, tree.read((0, 1)).slower) == (0, (1,))
    there = tree.read((8, 9, 10, 0))
    assert (there.fast, there.slower, there.decided_by) == (1, (0,), "distance")


def test_cxl_memory_is_a_node_without_cpus(tree: Tree) -> None:
    tree.online("0-1").node(0, "0-7", "10 10").node(1, "", "10 10")
    host = tree.read()
    assert (host.fast, host.slower, host.decided_by) == (0, (1,), "no_cpus")
    assert host.node(1) is not None
    assert host.node(7) is None


def test_firmware_is_trusted_before_the_kernels_tiers_and_these_before_distance(tree: Tree) -> None:
    tree.online("0-2").node(0, "0-7", "10 20 30").node(1, "", "20 10 30").node(2, "", "30 30 10")
    assert tree.read().slower == (1, 2)  # none has CPUs: the nearer one first
    assert tree.read().decided_by == "no_cpus"
    tree.memory_tier(4, "0").memory_tier(30, "1").memory_tier(22, "2")
    assert (tree.read().slower, tree.read().decided_by) == ((2, 1), "memory_tiering")
    tree.hmat(0, 90, 200_000).hmat(1, 250, 30_000).hmat(2, 400, 10_000)
    host = tree.read()
    assert (host.slower, host.decided_by) == ((1, 2), "hmat")
    assert host.nodes[1].read_bytes_per_s == 30_000 << 20


def test_one_tier_for_all_nodes_says_nothing(tree: Tree) -> None:
    # seen on Linux 6.1 and on CXL hosts: memory_tiering knows no difference
    tree.online("0-1").node(0, "0-7", "10 20").node(1, "", "20 10").memory_tier(4, "0-1")
    assert (tree.read().slower, tree.read().decided_by) == ((1,), "no_cpus")


def test_several_sockets_with_cxl_behind_one(tree: Tree) -> None:
    tree.online("0-2").node(0, "0-7", "10 21 14").node(1, "8-15", "21 10 24").node(2, "", "14 24 10")
    tree.hmat(0, 90, 200_000).hmat(1, 90, 200_000).hmat(2, 250, 20_000)
    host = tree.read((0, 1))
    assert (host.fast, host.slower, host.decided_by) == (0, (1, 2), "hmat")


def test_a_node_without_memory_is_no_tier(tree: Tree) -> None:
    tree.online("0-1").node(0, "", "10 20").node(1, "0-7", "20 10", gib=0, free_gib=0)
    assert (tree.read().fast, tree.read().slower) == (0, ())


@pytest.fixture
def host(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """machine_for sees the tree."""
    monkeypatch.setattr(choice, "topology", tree.read)
    return tree.online("0").node(0, "0-1", "10", gib=16, free_gib=9)


def test_auto_without_a_second_node_describes_and_applies_nothing(host: Tree) -> None:
    machine = machine_for("auto")
    assert [tier.kind for tier in machine.tiers] == ["node", "described"]
    assert machine.tiers[1].name == "cxl-asic-x8"
    assert machine.decided_by == "declared"
    assert machine.fast.capacity_bytes == 16 * GIB  # what there is, free or not
    assert not any(tier.measured for tier in machine.tiers)


def test_auto_with_a_slower_node_takes_it_and_says_who_decided(host: Tree) -> None:
    host.online("0-1").node(0, "0-1", "10 20", gib=16).node(1, "", "20 10", gib=64, free_gib=60)
    machine = machine_for("auto")
    assert (machine.tiers[1].kind, machine.tiers[1].node, machine.fast.node) == ("node", 1, 0)
    assert machine.tiers[1].capacity_bytes == 60 * GIB
    assert (machine.fast.capacity_bytes, machine.decided_by) == (16 * GIB, "no_cpus")
    assert "numa-remote-clx" in machine.tiers[1].source


def test_firmware_numbers_come_with_their_source(host: Tree) -> None:
    host.online("0-1").node(0, "0-1", "10 20").node(1, "", "20 10").hmat(0, 90, 200_000).hmat(1, 250, 30_000)
    machine = machine_for("numa:1")
    assert (machine.fast.latency_ns, machine.tiers[1].latency_ns) == (90, 250)
    assert machine.tiers[1].source == "declared (HMAT of node 1)"
    assert {link.bandwidth_bytes_per_s for link in machine.links} == {MOVER_BYTES_PER_S}  # firmware tells of no mover
    assert machine.decided_by == "user"


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_emulated_and_described(host: Tree, name: str) -> None:
    emulated, described = machine_for(f"emulated:{name}"), machine_for(name)
    slow = emulated.tiers[1]
    assert (slow.kind, described.tiers[1].kind) == ("emulated", "described")
    assert slow.source.startswith(f"declared ({name}): ")
    assert slow.write_bytes_per_s <= slow.read_bytes_per_s
    assert emulated.links == described.links
    mover = MOVER_BYTES_PER_S if slow.addressable else slow.read_bytes_per_s
    assert emulated.link(1, 0).bandwidth_bytes_per_s == min(mover, slow.read_bytes_per_s)
    assert emulated.link(0, 1).bandwidth_bytes_per_s == min(mover, slow.write_bytes_per_s)


def test_links_that_nobody_measured_carry_what_one_mover_does_in_pages(host: Tree) -> None:
    """A device is read in whole regions: its links are as fast as it is."""
    host.online("0-1").node(0, "0-1", "10 20").node(1, "", "20 10")
    for word in ("cxl-asic-x8", "cxl-worst", "numa:1", "emulated:cxl-asic-x8", "emulated:cxl-worst"):
        assert {link.bandwidth_bytes_per_s for link in machine_for(word).links} == {MOVER_BYTES_PER_S}
    for word in ("cxl-asic-x8=1GiB+nvme-gen4", "emulated:cxl-asic-x8=1GiB+nvme-gen4"):
        three = machine_for(word)
        assert [three.link(*pair).bandwidth_bytes_per_s for pair in ((1, 0), (2, 0), (0, 2))] == [2e9, 7e9, 5e9]


def test_doctor_says_at_what_rate_moves_are_planned_if_nobody_measured_them(host: Tree) -> None:
    host.online("0-1").node(0, "0-1", "10 20").node(1, "", "20 10")
    (line,) = doctor.speeds(host.read(), None)
    most = {link.bandwidth_bytes_per_s / 1e9 for link in machine_for("auto").links}
    assert most == {2.0}
    assert "planned at 2 GB/s at most" in line


def test_a_derived_write_bandwidth_says_so() -> None:
    assert PRESETS["cxl-worst"].write_bytes_per_s == 2_400_000_000
    assert "taken as half of read" in PRESETS["cxl-worst"].source
    assert PRESETS["cxl-asic-x8"].write_bytes_per_s == 13_600_000_000
    assert "half of the 1:1 mix of 27.2 GB/s" in PRESETS["cxl-asic-x8"].source
    assert "half" not in PRESETS["optane-6dimm"].source


@pytest.mark.parametrize(
    "word", ["", "numa:", "numa:x", "numa:²", f"numa:{'9' * 5000}", "emulated:", "emulated:nothing", "cxl", "file:"]
)
def test_a_word_that_means_nothing_lists_those_that_do(host: Tree, word: str) -> None:
    with pytest.raises(UsageError, match=r"names no slow tier; use .*numa:N.*cxl-asic-x8.*nvme-gen4"):
        machine_for(word)


def test_several_presets_make_a_machine_of_so_many_tiers(host: Tree) -> None:
    three = machine_for("emulated:cxl-asic-x8=4GiB+cxl-worst")
    assert [tier.name for tier in three.tiers] == ["fast", "cxl-asic-x8", "cxl-worst"]
    assert [tier.kind for tier in three.tiers[1:]] == ["emulated", "emulated"]
    assert [tier.capacity_bytes for tier in three.tiers[:2]] == [16 * GIB, 4 << 30]
    assert three.link(2, 0).latency_ns == three.tiers[2].latency_ns
    alone = machine_for("cxl-worst=2GiB")
    assert (alone.tiers[1].kind, alone.tiers[1].capacity_bytes) == ("described", 2 << 30)


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("cxl-asic-x8+cxl-worst", r"cxl-asic-x8 may hold everything, so cxl-worst would hold nothing; say how much"),
        ("emulated:cxl-worst=1GiB+cxl-asic-x8", "names a tier after a slower one; put the one of the lowest latency"),
        ("cxl-worst=1GiB+cxl-worst", "names a tier twice"),
        ("emulated:cxl-asic-x8=much+cxl-worst", "'much' is not an amount of memory"),
        ("numa:1+cxl-worst", "names no slow tier"),
        ("emulated:cxl-worst+", "names no slow tier"),
    ],
)
def test_tiers_that_would_not_be_used_are_refused(host: Tree, word: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        machine_for(word)


def test_the_node_it_runs_on_is_not_slower(host: Tree) -> None:
    with pytest.raises(UsageError, match="is the node that this process runs on"):
        machine_for("numa:0")


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("numa:1", r"no node 1 with memory \(nodes with memory: 0\)"),
        ("file:/tmp/x", "nothing is planned for a file yet"),
    ],
)
def test_what_this_host_cannot_do_is_said_with_a_remedy(host: Tree, word: str, why: str) -> None:
    with pytest.raises(CapabilityError, match=why) as raised:
        machine_for(word)
    assert "emulated:" in raised.value.remedy


def test_this_host_has_a_fast_node_with_memory() -> None:
    here = topology()
    fast = here.node(here.fast)
    assert fast is not None, "no /sys/devices/system/node"
    assert 0 < fast.free_bytes <= fast.total_bytes, format_bytes(fast.free_bytes)


def test_a_process_on_several_nodes_is_noticed(tree: Tree) -> None:
    tree.online("0-1").node(0, "0-7", "10 21").node(1, "8-15", "21 10")
    assert tree.read((0, 1)).spans == (0,)
    host = tree.read((0, 8, 9))
    assert (host.spans, host.fast) == ((0, 1), 1)


def test_cpus_without_memory_of_their_own_have_the_nearest_as_fast(tree: Tree) -> None:
    tree.online("0-2").node(0, "0-7", "10 20 30").node(1, "", "20 10 15").node(2, "8-15", "30 15 10", gib=0, free_gib=0)
    assert tree.read((0,)).fast == 0
    host = tree.read((8, 9))
    assert (host.fast, host.slower, host.spans) == (1, (0,), (2,))


def test_a_node_that_the_cpuset_forbids_is_no_tier(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.online("0-2").node(0, "0-7", "10 20 30").node(1, "", "20 10 30").node(2, "", "30 30 10")
    tree.write("proc/self/status", "Name:\tx\nMems_allowed_list:\t0,2\n")
    host = tree.read()
    assert (host.fast, host.slower, host.forbidden) == (0, (2,), (1,))
    monkeypatch.setattr(choice, "topology", tree.read)
    with pytest.raises(CapabilityError, match="cpuset allows no memory on node 1"):
        machine_for("numa:1")


def test_firmware_is_trusted_before_a_measurement_and_that_before_the_kernels_tiers(tree: Tree) -> None:
    tree.online("0-2").node(0, "0-7", "10 20 30").node(1, "", "20 10 30").node(2, "", "30 30 10")
    tree.memory_tier(4, "0").memory_tier(30, "1").memory_tier(22, "2")

    def measured(found: dict[int, float]) -> Topology:
        return reordered(tree.read((0,)), found)

    assert (measured({}).slower, measured({}).decided_by) == ((2, 1), "memory_tiering")
    found = {0: 90.0, 1: 140.0, 2: 300.0}
    assert (measured(found).slower, measured(found).decided_by) == ((1, 2), "measurement")
    assert measured({0: 90.0, 1: 140.0}).decided_by == "memory_tiering"  # it does not know them all
    noise = {0: 90.0, 1: 98.0, 2: 300.0}  # node 1 is as fast as node 0, but farther
    assert (measured(noise).slower, measured(noise).decided_by) == ((1, 2), "measurement")
    assert measured({0: 90.0, 1: 98.0, 2: 89.0}).decided_by == "memory_tiering"  # all within noise
    tree.hmat(0, 90, 200_000).hmat(1, 400, 10_000).hmat(2, 250, 30_000)
    assert (measured(found).slower, measured(found).decided_by) == ((2, 1), "hmat")


def test_firmware_speaks_of_the_nearest_cpus_so_another_socket_is_not_faster(tree: Tree) -> None:
    tree.online("0-1").node(0, "0-7", "10 21").node(1, "8-15", "21 10").hmat(0, 95, 200_000).hmat(1, 90, 200_000)
    assert (tree.read((0,)).slower, tree.read((0,)).decided_by) == ((1,), "distance")


def _calibrated(number: int, up: int, down: int) -> Machine:
    def tier(name: str, latency_ns: float, rate: int, node: int) -> TierSpec:
        return TierSpec(name, "node", 0, latency_ns, 2 * rate, rate, node=node, measured=True, source="measured")

    links = (Link(1, 0, up, measured=True), Link(0, 1, down, measured=True))
    tiers = (tier("fast", 91.0, 10**10, 0), tier(f"node{number}", 207.0, 3 * 10**9, number))
    return Machine("calibrated", tiers, links, full_duplex=False, decided_by="measurement")


def test_a_node_has_the_speeds_and_links_of_the_calibration_that_is_kept(
    host: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.online("0-1").node(0, "0-1", "10 20").node(1, "", "20 10", free_gib=3)
    monkeypatch.setattr(choice, "kept", lambda nodes, fast: _calibrated(1, 3 * 10**9, 2 * 10**9) if fast == 0 else None)
    machine = machine_for("numa:1")
    assert [tier.latency_ns for tier in machine.tiers] == [91.0, 207.0]
    assert all(tier.measured for tier in machine.tiers)
    assert machine.tiers[1].capacity_bytes == 3 * GIB  # of now, not of then
    assert [machine.link(*pair).bandwidth_bytes_per_s for pair in ((1, 0), (0, 1))] == [3 * 10**9, 2 * 10**9]
    assert (machine.full_duplex, machine.decided_by) == (False, "user")
    assert machine_for("auto").decided_by == "no_cpus"  # the tree knows of no measurement
    assert not machine_for("emulated:cxl-asic-x8").fast.measured  # described tiers are described in pairs


def test_a_calibration_of_other_nodes_is_not_used(host: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    host.online("0-1").node(0, "0-1", "10 20").node(1, "", "20 10")
    monkeypatch.setattr(choice, "kept", lambda nodes, fast: _calibrated(2, 1, 1))
    assert not any(tier.measured for tier in machine_for("numa:1").tiers)
