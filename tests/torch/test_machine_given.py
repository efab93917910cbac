"""The machine that a session plans for: where bytes go, what that costs, and who said so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from sentinel.core.errors import FormatError, UsageError
from sentinel.core.machine import Link, Machine, TierSpec
from sentinel.files import save
from sentinel.session import asked_machine
from sentinel.session.asked_machine import available_bytes, machine_of, notes_on
from sentinel.session.request import Request
from sentinel.system.nodes import Node
from sentinel.system.topology import Topology
from sentinel.tiers import choice

GIB, GB = 1 << 30, 10**9
ONE = Topology((Node(0, (0, 1), 8 * GIB, 4 * GIB, {0: 10}),), 0, (), "only_node", (0,))
TWO = Topology(
    (
        Node(0, (0, 1), 8 * GIB, 4 * GIB, {0: 10, 1: 20, 2: 17}),
        Node(1, (), 9 * GIB, 5 * GIB, {0: 20, 1: 10, 2: 20}),
        Node(2, (), 7 * GIB, 3 * GIB, {0: 17, 1: 20, 2: 10}),
    ),
    0,
    (2, 1),
    "no_cpus",
    (0,),
)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> list[Topology]:
    """What machine_of sees; replace its only item."""
    held = [TWO]
    for module in (asked_machine, choice):
        monkeypatch.setattr(module, "topology", lambda: held[0])
    monkeypatch.setattr(choice, "kept", lambda nodes, fast: None)
    return held


def _tier(name: str, node: int, rate: int) -> TierSpec:
    told = {"node": node, "measured": True, "source": "measured yesterday"}
    return TierSpec(name, "node", 123, 1e11 / rate, rate, rate + 10 * GB, **told)


def _calibrated(*nodes: int) -> Machine:
    """A calibrated machine whose link up from node n has n GB/s, down n+10."""
    tiers = (_tier("fast", 0, 50 * GB), *(_tier(f"node{n}", n, n * GB) for n in nodes))
    links = [
        Link(source, target, rate * GB, measured=True)
        for index, n in enumerate(nodes, start=1)
        for source, target, rate in ((index, 0, n), (0, index, n + 10))
    ]
    return Machine("calibrated", tiers, tuple(links), full_duplex=False, decided_by="measurement")


def test_a_calibrated_file_says_which_node_is_slow_and_what_it_costs(host: list[Topology], tmp_path: Path) -> None:
    save(_calibrated(1), tmp_path / "machine.json")
    machine = machine_of(Request(machine=tmp_path / "machine.json"))
    fast, slow = machine.tiers
    assert (fast.node, slow.node, slow.kind) == (0, 1, "node")  # though node 2 is nearer
    assert (slow.read_bytes_per_s, slow.measured, slow.capacity_bytes) == (GB, True, 5 * GIB)
    assert fast.capacity_bytes == 8 * GIB
    assert machine.link(1, 0).bandwidth_bytes_per_s == GB
    assert (machine.decided_by, machine.full_duplex) == ("user", False)


def test_a_file_whose_names_drive_the_terminal_is_refused(host: list[Topology], tmp_path: Path) -> None:
    """As by `sentinel run --machine`, before the script runs."""
    path = tmp_path / "machine.json"
    save(_calibrated(1), path)
    lines = [line for line in path.read_text().splitlines() if '"checksum"' not in line]
    path.write_text("\n".join(lines))
    Request(machine=path).check()
    path.write_text("\n".join(lines).replace('"calibrated"', '"a\\u001b[2J"'))
    with pytest.raises(
        FormatError, match=r"name 'a\\x1b\[2J' has characters that are not printable; write it without them"
    ):
        Request(machine=path).check()


def test_slower_tiers_are_of_one_kind(host: list[Topology]) -> None:
    emulated = machine_of(Request(slow="emulated:cxl-asic-x8=6MiB+cxl-worst"))
    tiers = (*emulated.tiers[:2], replace(emulated.tiers[2], kind="node", node=1))
    with pytest.raises(
        UsageError, match="has slower tiers on nodes and emulated ones; give one with tiers of one kind"
    ):
        machine_of(Request(machine=replace(emulated, tiers=tiers)))


def test_a_job_may_have_what_the_fast_node_has_free(host: list[Topology]) -> None:
    for asked in (Request(), Request(machine=_calibrated(1)), Request(slow="emulated:cxl-asic-x8")):
        assert available_bytes(asked, machine_of(asked)) == 4 * GIB


def test_on_paper_a_job_may_have_what_the_given_machine_has(host: list[Topology]) -> None:
    host[0] = ONE
    for given in (_calibrated(1), replace(_calibrated(1), tiers=(_tier("fast", 0, 50 * GB), _described()))):
        asked = Request(machine=given)
        assert available_bytes(asked, machine_of(asked)) == given.fast.capacity_bytes == 123


def _described() -> TierSpec:
    return replace(_tier("cxl", 1, GB), kind="described", node=None)


def test_of_a_machine_with_more_nodes_the_one_asked_for_is_taken(host: list[Topology]) -> None:
    machine = machine_of(Request(slow="numa:2", machine=_calibrated(1, 2)))
    assert [tier.node for tier in machine.tiers] == [0, 2]
    assert machine.link(0, 1).bandwidth_bytes_per_s == 12 * GB
    assert machine.link(1, 0).bandwidth_bytes_per_s == 2 * GB


def test_figures_seen_from_another_node_are_refused(host: list[Topology]) -> None:
    host[0] = replace(TWO, fast=1, slower=(0, 2))
    with pytest.raises(UsageError, match=r"calibrated from node 0, this process runs on node 1; .*--cpus node:0"):
        machine_of(Request(slow="numa:2", machine=_calibrated(2)))
    with pytest.raises(UsageError, match="is the node that this process runs on"):
        machine_of(Request(machine=_calibrated(1)))


def test_nodes_of_another_host_are_planned_for_on_paper_only(host: list[Topology]) -> None:
    host[0] = ONE
    machine = machine_of(Request(machine=_calibrated(1)))
    assert [(tier.kind, tier.node) for tier in machine.tiers] == [("described", None)] * 2
    assert machine.tiers[1].read_bytes_per_s == GB


def test_an_emulated_tier_is_emulated_if_the_machine_says_so(host: list[Topology]) -> None:
    given = _calibrated(1)
    slow = replace(given.tiers[1], kind="emulated", node=None, name="cxl", measured=False)
    for host[0] in (ONE, TWO):
        machine = machine_of(Request(machine=replace(given, tiers=(given.tiers[0], slow))))
        assert (machine.fast.kind, machine.fast.node, machine.fast.capacity_bytes) == ("node", 0, 8 * GIB)
        assert machine.tiers[1] == slow
        assert machine.link(1, 0).bandwidth_bytes_per_s == GB


def test_a_report_says_who_decided_and_where_speeds_are_from(host: list[Topology]) -> None:
    (said,) = notes_on(machine_of(Request()), TWO)
    assert said.startswith("Node 2 is the slow tier because it has no CPUs (decided by no_cpus)")
    assert "declared" in said
    assert "`sentinel calibrate` measures them" in said
    (said,) = notes_on(machine_of(Request(machine=_calibrated(1))), TWO)
    assert said == "Node 1 is the slow tier because you named it (decided by user). Its speeds: measured yesterday."
    spanning, _ = notes_on(machine_of(Request()), replace(TWO, spans=(0, 1)))
    assert "`sentinel run --cpus node:0` binds it there" in spanning
    assert notes_on(machine_of(Request(slow="emulated:cxl-asic-x8")), TWO) == []
