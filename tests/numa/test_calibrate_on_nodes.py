"""Calibration of a host with several nodes: run on one, or in tools/numa_vm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sentinel.calibrate import moving
from sentinel.calibrate.moving import MOVES, lost_to_moves
from sentinel.calibrate.regions import Region
from sentinel.cli import main
from sentinel.files import load_machine
from sentinel.system import calibration, numa, processor
from sentinel.system.topology import topology
from sentinel.tiers import machine_for

pytestmark = [pytest.mark.needs("two nodes"), pytest.mark.needs("native")]


def _calibrate(*words: str) -> int:
    return main(["calibrate", "--quick", "--size", "4MiB", "--threads", "1", *words])


def test_a_calibration_gives_a_machine_of_this_hosts_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibration, "cache_folder", lambda: tmp_path)
    assert _calibrate("--json") == 0
    said = capsys.readouterr()
    told, host = json.loads(said.out), topology()
    machine = told["machine"]
    assert [tier["node"] for tier in machine["tiers"]] == [host.fast, *host.slower]
    assert all(part["measured"] for part in (*machine["tiers"], *machine["links"]))
    assert machine["decided_by"] in ("hmat", "measurement") or told["conditions"]["emulated"]
    pairs = {(move["source"], move["target"], move["page_bytes"]) for move in told["moves"]}
    for slow in host.slower:
        assert {(host.fast, slow, 4096), (slow, host.fast, 4096)} <= pairs
    for move in told["moves"]:
        assert all(0 < rate["lowest"] <= rate["highest"] for rate in move["rates"].values())
    if processor.is_emulated():
        assert told["conditions"]["emulated"] is True
        assert "not kept for plans" in said.err
        assert not any(tier.measured for tier in machine_for("auto").tiers)
    assert any(tmp_path.glob("*")) is not processor.is_emulated()


def test_auto_takes_the_slower_node_and_says_who_decided() -> None:
    host, machine = topology(), machine_for("auto")
    assert machine.tiers[1].node == host.slower[0]
    assert machine.decided_by == host.decided_by
    if all(node.read_latency_ns for node in host.nodes) and not host.nodes[1].cpus:
        assert machine.decided_by == "hmat"


def test_what_is_kept_is_what_plans_for_nodes_calculate_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibration, "cache_folder", lambda: tmp_path)
    if processor.is_emulated():  # to import torch takes a minute of a processor there
        monkeypatch.setattr(moving, "_torch_work", moving._numpy_work)
    monkeypatch.setattr(processor, "is_emulated", lambda: False)  # else its figures are not kept
    before = machine_for("auto")
    assert not any(tier.measured for tier in before.tiers)
    assert _calibrate("--json") == 0
    told = json.loads(capsys.readouterr().out)
    machine, (kept,) = machine_for("auto"), list(tmp_path.glob("machine-*.json"))
    assert all(part.measured for part in (*machine.tiers, *machine.links))
    assert [tier.node for tier in machine.tiers] == [tier.node for tier in load_machine(kept).tiers][:2]
    slow = machine.tiers[1].node
    up = [move for move in told["moves"] if (move["source"], move["page_bytes"]) == (slow, 4096)]
    link = machine.link(1, 0)
    assert link.bandwidth_bytes_per_s == min(round(up[0]["rates"]["1"]["median"]), machine.most_bytes_per_s(link))


def test_the_price_of_a_migration_is_that_of_one_that_moves_pages_between_the_nodes() -> None:
    host = topology()
    with Region(1 << 20, host.fast, huge=False) as region:
        before = _moved_pages()
        prices = lost_to_moves(region, 1, lambda: None, host.fast, host.slower[0])
        assert _moved_pages() - before >= 2 * 5 * 2 * MOVES  # of two rounds of five steps: each page there and back
        assert (numa.residency(region.address, region.nbytes) == host.fast).all()
    assert len(prices) == 1
    assert prices[0] >= 0


def _moved_pages() -> int:
    """What the kernel has counted."""
    (line,) = [x for x in Path("/proc/vmstat").read_text().splitlines() if x.startswith("pgmigrate_success ")]
    return int(line.split()[1])
