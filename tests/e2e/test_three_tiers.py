"""The command line on a machine of three tiers: planned, simulated, compared and reported, from files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sentinel import files
from sentinel.cli import main
from sentinel.core.laws import check
from tests.builders import MIB
from tests.three_tiers import three_tiers
from tests.unit.test_planner import network


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, str]:
    """A profile with a footprint of 134 MiB, and a machine with 24 MiB in the fast and 40 in the middle tier."""
    files.save(network(), tmp_path / "p.safetensors")
    files.save(three_tiers(24 * MIB, 40 * MIB), tmp_path / "machine.json")
    return {name: str(tmp_path / name) for name in ("p.safetensors", "machine.json", "plan.json", "run", "report.html")}


def test_a_machine_of_three_tiers_goes_through_files_as_it_is(paths: dict[str, str]) -> None:
    assert files.load_machine(paths["machine.json"]) == three_tiers(24 * MIB, 40 * MIB)


@pytest.mark.slow
def test_the_whole_chain_shows_every_tier(paths: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    profile, machine = paths["p.safetensors"], ["--machine", paths["machine.json"]]
    assert main(["plan", profile, *machine, "-o", paths["plan.json"]]) == 0
    plan = files.load_plan(paths["plan.json"])
    check(plan, files.load_profile(profile), files.load_machine(paths["machine.json"]))
    held = plan.held_bytes.max(axis=1)
    assert (held > [16 * MIB, 32 * MIB, 16 * MIB]).all()
    assert held[1] <= 40 * MIB
    capsys.readouterr()
    assert main(["simulate", profile, paths["plan.json"], *machine, "-o", paths["run"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_ns"] == plan.predicted_step_ns
    run = files.load_run(paths["run"])
    assert run.tier_names == ("fast", "middle", "slow")
    assert set(zip(run.migrations["source"].tolist(), run.migrations["target"].tolist(), strict=True)) <= {
        *((0, 1), (1, 0), (0, 2), (2, 0))
    }
    nouns = ["--profile", profile, "--plan", paths["plan.json"], "--run", paths["run"], *machine]
    assert main(["report", *nouns]) == 0
    text = capsys.readouterr().out
    for tier in ("fast tier, planned", "middle tier, planned", "slow tier, planned"):
        assert tier in text
    assert main(["report", *nouns, "-o", paths["report.html"]]) == 0
    assert "middle" in Path(paths["report.html"]).read_text()


@pytest.mark.slow
@pytest.mark.long  # policies on three tiers keep the laws in tests/property/test_tiers.py
def test_policies_are_compared_on_it(paths: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    policies = "sentinel,sentinel-2021,next-use,static,interleave"
    machine = ["--machine", paths["machine.json"], "--fast", "20%", "--policies", policies]
    assert main(["compare", paths["p.safetensors"], *machine, "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    times = {cell["policy"]: cell["step_ns"] for cell in cells}
    assert set(times) == set(policies.split(","))
    assert times["sentinel"] == min(times.values())
    assert all(cell["bound_step_ns"] <= cell["step_ns"] for cell in cells)
    assert len({cell["bound_step_ns"] for cell in cells}) == 1
    assert main(["compare", paths["p.safetensors"], *machine]) == 0
    assert "~ the bound may be loose: what a middle tier holds" in capsys.readouterr().out
