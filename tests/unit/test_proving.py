"""The parts of `sentinel prove` that train nothing: its order, its folder, its processes, what it puts back."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.cli import main, prove
from sentinel.cli.prove import asked_for, execute
from sentinel.core.errors import UsageError
from sentinel.proving import host_facts, left_as_it_was, orders
from sentinel.proving.cell_process import CellFailed, CellProcesses
from sentinel.proving.cells import CONTROL, KERNEL, OURS, Cell, cells_in_order, policies, steps_of
from sentinel.proving.proof import Asked, Proof, ahead_s
from sentinel.proving.proof_folder import ProofFolder
from sentinel.proving.workloads import Workload, examples, small_workloads
from sentinel.system.nodes import Node
from sentinel.system.topology import Topology
from tests.processes import LONGEST_S, started, until

TWO = (Workload("a", "a.py", 0.1), Workload("b", "b.py", 10.0))
SETTINGS = {"slow": "emulated:cxl-asic-x8", "quick": True}


def test_the_most_telling_cells_come_first() -> None:
    cells = cells_in_order(TWO, quick=False, planned=True, nodes=True, file=True)
    names = [cell.name for cell in cells]
    assert names[:6] == [f"{w}.{kind}" for w in "ab" for kind in ("stock.stock", "policy.all-fast", "policy.sentinel")]
    assert names[6:8] == ["a.kernel.kernel", "b.kernel.kernel"]
    assert names[8] == "a.policy.best-static"
    assert len(set(names)) == len(names)
    assert {cell.placement for cell in cells if cell.kind == "policy"} == set(policies(False))
    assert "autotm" not in policies(False)


def test_later_rounds_run_all_of_a_workload_in_a_row_beside_its_control() -> None:
    cells = cells_in_order(TWO, quick=False, planned=True, nodes=True, file=True)
    later = [cell for cell in cells if cell.round == 2]
    assert cells[-2 * len(later) : -len(later)] == later
    a_workload = ["stock", *policies(False)]
    assert [cell.placement for cell in later] == [*a_workload, *a_workload]
    assert a_workload[1] == CONTROL
    assert later[0].name == "a.stock.stock.2"
    assert {cell.round for cell in cells_in_order(TWO, quick=True, planned=True, nodes=False, file=False)} == {1}


def test_only_what_can_be_executed_here_is_a_cell() -> None:
    kinds = {cell.kind for cell in cells_in_order(TWO, quick=True, planned=True, nodes=False, file=False)}
    assert kinds == {"stock", "policy"}
    kinds = {cell.kind for cell in cells_in_order(TWO, quick=True, planned=False, nodes=False, file=True)}
    assert kinds == {"stock", "file"}


def test_what_a_cell_takes_follows_the_step_that_was_seen() -> None:
    (cell, *_) = cells_in_order(TWO[:1], quick=False, planned=True, nodes=False, file=False)
    assert cell.expected_s(False, 0, step_s=2.0) - cell.expected_s(False, 0, step_s=1.0) == steps_of(False).steps
    compared = cells_in_order(TWO[:1], quick=False, planned=True, nodes=True, file=False)[3]
    assert compared.expected_s(False, 256 << 30) > compared.expected_s(False, 0) + 300  # ballast fills the node
    assert cell.expected_s(False, 256 << 30) == cell.expected_s(False, 0)


def test_the_small_workloads_are_in_the_package_and_the_examples_in_a_checkout(tmp_path: Path) -> None:
    assert all(Path(workload.script).is_file() for workload in small_workloads())
    with pytest.raises(UsageError, match=r"make venv.*pip install -e '\.\[torch,examples\]'"):
        examples(tmp_path)


@pytest.mark.needs("transformers")
def test_the_six_examples_are_found() -> None:
    assert [workload.name[:2] for workload in examples()] == ["01", "02", "03", "04", "05", "06"]


def test_a_folder_is_begun_once_and_gone_on_with_as_it_was_begun(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no proof to go on with"):
        ProofFolder.resume(tmp_path, SETTINGS)
    with ProofFolder.begin(tmp_path, SETTINGS) as folder:
        folder.save("cells/a", {"steps_ns": [1]})
        with pytest.raises(UsageError, match="another `sentinel prove`"):
            ProofFolder.resume(tmp_path, SETTINGS)
    with pytest.raises(UsageError, match="--resume"):
        ProofFolder.begin(tmp_path, SETTINGS)
    with pytest.raises(UsageError, match="quick=True"):
        ProofFolder.resume(tmp_path, {**SETTINGS, "quick": False})
    with ProofFolder.resume(tmp_path, SETTINGS) as folder:
        assert folder.load("cells/a") == {"steps_ns": [1]}
        assert folder.load("cells/b") is None


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """Files as the kernel has them."""
    for name, value in {
        "proc/sys/kernel/numa_balancing": "1\n",
        "sys/kernel/mm/numa/demotion_enabled": "false\n",
        "sys/kernel/mm/mempolicy/weighted_interleave/node0": "1\n",
        "sys/fs/cgroup/cgroup.subtree_control": "cpu io\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(value)
    return tmp_path


def test_settings_are_put_back_and_said(kernel: Path) -> None:
    before = left_as_it_was.settings_now(kernel)
    assert left_as_it_was.put_back(before, kernel) == []
    (kernel / "proc/sys/kernel/numa_balancing").write_text("2\n")
    (kernel / "sys/fs/cgroup/cgroup.subtree_control").write_text("cpu io memory\n")
    (kernel / "sys/fs/cgroup/sentinel-compare-123").mkdir()
    said = left_as_it_was.put_back(before, kernel)
    assert (kernel / "proc/sys/kernel/numa_balancing").read_text() == "1"
    assert (kernel / "sys/fs/cgroup/cgroup.subtree_control").read_text() == "-memory"  # as the kernel is asked
    assert not (kernel / "sys/fs/cgroup/sentinel-compare-123").exists()
    assert [sentence.split()[0] for sentence in said] == [
        "/proc/sys/kernel/numa_balancing",
        "/sys/fs/cgroup/cgroup.subtree_control",
    ]


def test_weights_that_the_kernel_finds_itself_are_its_own_again(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = kernel / "sys/kernel/mm/mempolicy/weighted_interleave/node0"
    automatic = weight.with_name("auto")
    automatic.write_text("true\n")
    before = left_as_it_was.settings_now(kernel)
    plain = Path.write_text

    def as_the_kernel(path: Path, text: str) -> int:
        if path == weight:
            plain(automatic, "false\n")
        return plain(path, text)

    monkeypatch.setattr(Path, "write_text", as_the_kernel)
    plain(weight, "7\n")  # and the kernel has turned it on again meanwhile
    said = left_as_it_was.put_back(before, kernel)
    assert (weight.read_text(), automatic.read_text()) == ("1", "true")
    assert [sentence.split()[0].rpartition("/")[2] for sentence in said] == ["node0", "auto"]


def test_settings_are_left_alone_where_the_kernel_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What somebody else changes meanwhile is not ours to put back."""

    def touched(*_: object) -> None:
        raise AssertionError("settings of the kernel were read or written")

    monkeypatch.setattr("sentinel.proving.proof.settings_now", touched)
    monkeypatch.setattr("sentinel.proving.proof.put_back", touched)
    with ProofFolder.begin(tmp_path, SETTINGS) as folder:
        for known in ("host", "doctor"):
            folder.save(known, {})
        Proof(Asked((), None, None, quick=True), folder, 60.0, lambda _: None).run()
        assert folder.load("before") is None


def test_a_comparison_that_was_cut_short_is_run_whole_again(tmp_path: Path) -> None:
    """Room and bits of each placement are held against ours and all-fast of the same comparison."""
    with ProofFolder.begin(tmp_path, SETTINGS) as folder:
        for name in (OURS, CONTROL):
            folder.save(f"cells/a.kernel.{name}", {"row": {"name": name}})
        proof = Proof(Asked(TWO[:1], "numa:1", None, quick=True), folder, 60.0, lambda _: None)
        _, order = proof._order(Cell(TWO[0], "kernel", "kernel"), {})
    assert order.names == (OURS, CONTROL, *KERNEL)


def test_what_cannot_be_put_back_is_said(kernel: Path) -> None:
    before = {"proc/sys/kernel/gone/numa_balancing": "1"}
    (said,) = left_as_it_was.put_back(before, kernel)
    assert "could not be written" in said


def test_only_settings_that_a_comparison_changes_are_put_back(kernel: Path) -> None:
    """The folder of a proof may be of anybody, and whoever resumes it may be root."""
    other = kernel / "proc/sys/kernel/core_pattern"
    other.write_text("core")
    named = ("proc/sys/kernel/core_pattern", "proc/sys/../../proc/sys/kernel/core_pattern", str(other))
    said = left_as_it_was.put_back(dict.fromkeys(named, "|/tmp/x"), kernel)
    assert other.read_text() == "core"
    assert len(said) == 3
    assert all("no setting that a comparison changes" in sentence for sentence in said)
    known = dict.fromkeys(left_as_it_was.settings_now(kernel), None)
    assert all("could not be written" in said for said in left_as_it_was.put_back(known, kernel))


def test_a_process_answers_fails_or_refuses_in_words(tmp_path: Path) -> None:
    processes = CellProcesses([])
    log = tmp_path / "log"
    told = processes.run("tests.prove_calls:answer", "this", log, 60)
    assert told["order"] == "this"
    assert "asked for this" in log.read_text()
    with pytest.raises(CellFailed, match="ValueError: the dog ate it") as failed:
        processes.run("tests.prove_calls:fail", None, log, 60)
    assert not failed.value.refused
    with pytest.raises(CellFailed, match="fast memory") as failed:
        processes.run("tests.prove_calls:refuse", None, log, 60)
    assert failed.value.refused
    with pytest.raises(CellFailed, match="signal 6"):
        processes.run("tests.prove_calls:vanish", None, log, 60)


def test_an_interrupt_while_the_server_imports_is_the_proofs_alone(tmp_path: Path) -> None:
    """A terminal sends it to all of them. The server would print where it was."""
    there = tmp_path / "there"
    (tmp_path / "imported_slowly.py").write_text(
        f"import pathlib, time\npathlib.Path({str(there)!r}).touch()\ntime.sleep(2)\n"
    )
    program = (
        "from pathlib import Path\n"
        "from sentinel.proving.cell_process import CellProcesses\n"
        f"CellProcesses(['imported_slowly']).run('tests.prove_calls:hang', {str(tmp_path / 'setting')!r}, "
        f"Path({str(tmp_path / 'log')!r}), 60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    command = (sys.executable, "-c", program)
    with started(command, env=environment, stderr=subprocess.PIPE, text=True, process_group=0) as proof:
        until(there.exists)
        os.killpg(proof.pid, signal.SIGINT)
        said = proof.communicate(timeout=LONGEST_S)[1]
    assert proof.returncode == -signal.SIGINT
    assert said.count("Traceback") == 1
    assert "imported_slowly.py" not in said


@pytest.mark.slow
def test_a_process_that_hangs_is_ended_and_puts_back_what_it_changed(tmp_path: Path) -> None:
    path, processes = tmp_path / "setting", CellProcesses(["tests.prove_calls"])
    processes.run("tests.prove_calls:answer", None, tmp_path / "log", 60)  # the server is there by then
    with pytest.raises(CellFailed) as failed:
        processes.run("tests.prove_calls:hang", str(path), tmp_path / "log", 5)
    assert failed.value.late
    assert path.read_text() == "put back"


def test_the_host_is_told_by_a_list_of_facts() -> None:
    told = host_facts.host()
    assert {"kernel", "processor", "cpus", "nodes", "packages"} <= told.keys()
    assert set(host_facts.same_host(told)) <= told.keys()


def test_words_are_checked_before_anything_is_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="exists as a description only"):
        asked_for("cxl-asic-x8", tmp_path, quick=True)
    with pytest.raises(UsageError, match="names no slow tier"):
        asked_for("quick", tmp_path, quick=True)
    asked = asked_for("emulated:cxl-asic-x8", tmp_path, quick=True)
    assert (asked.slow, asked.file, asked.on_nodes) == ("emulated:cxl-asic-x8", None, False)
    assert Asked((), "numa:1", None, quick=True).on_nodes
    assert "kernel" not in {cell.kind for cell in Asked(TWO, "numa:1", None, quick=True, kernel=False).cells()}


def test_a_file_on_the_disk_with_most_room_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove, "_require_file", lambda _: None)
    monkeypatch.chdir(tmp_path)
    for slow in ("file:auto", "file:auto=64GiB"):
        assert asked_for(slow, tmp_path, quick=True).file == slow
    assert asked_for("file:here=1GiB", tmp_path, quick=True).file == f"file:{tmp_path}/here=1GiB"


def test_a_dry_run_prints_the_plan_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "proof"
    words = ["prove", "--quick", "--dry-run", "--slow", "emulated:cxl-asic-x8", "--minutes", "2", "-o", str(out)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "small_perceptron" in said
    head, *rows = said.splitlines()
    assert {row.index("best-static") for row in rows if "best-static" in row} == {head.index("placement")}
    assert not out.exists()


@pytest.mark.parametrize("minutes", ["0", "-1", "soon", "nan", "1e9"])
def test_minutes_are_minutes(minutes: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["prove", "--minutes", minutes])
    assert "not a number of minutes" in capsys.readouterr().err


@pytest.mark.needs("torch")
def test_a_folder_that_cannot_be_made_is_named_before_anything_is_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    given = argparse.Namespace(
        output=str(tmp_path / "file"),
        slow="emulated:cxl-asic-x8",
        quick=True,
        no_kernel=False,
        dry_run=False,
        resume=False,
        minutes=1,
    )
    with pytest.raises(UsageError, match="cannot be written"):
        execute(given)


@pytest.mark.parametrize(("cpus", "bound"), [((0, 1), [{0, 1}]), ((0, 1, 2, 3), []), ((8, 9), [])])
def test_all_runs_are_on_the_cpus_of_the_fast_node(
    monkeypatch: pytest.MonkeyPatch, cpus: tuple[int, ...], bound: list[set[int]]
) -> None:
    """Where it has none, or none of these may be used, nothing is bound."""
    found: list[set[int]] = []
    host = Topology((Node(0, cpus, 1 << 30), Node(1, (), 1 << 30)), 0, (1,))
    monkeypatch.setattr("sentinel.system.topology.topology", lambda: host)
    monkeypatch.setattr("sentinel.system.affinity.bind_to", lambda these: found.append(set(these)))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    prove._stay_near_the_fast_node()
    assert found == bound


def test_orders_are_plain_values() -> None:
    order = orders.TrainingOrder("a.py", ("--steps", "3"), 3, 1)
    assert order.said is None
    assert ahead_s(Asked(TWO, None, None, quick=True)) < ahead_s(Asked(TWO, "numa:1", None, quick=True))
    assert OURS in policies(True)
    assert CONTROL not in KERNEL
