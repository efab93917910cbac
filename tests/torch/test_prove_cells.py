"""What the processes of a proof do: trained by one clock, bits as stock, predicted before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sentinel.core.errors import UsageError  # noqa: E402
from sentinel.executed.trained_bits import digest_of_losses, digest_of_trained  # noqa: E402
from sentinel.files import load_machine, load_plan  # noqa: E402
from sentinel.proving import kernel_cell, small_convolution, small_perceptron, small_training  # noqa: E402
from sentinel.proving.cell_process import CellFailed, CellProcesses  # noqa: E402
from sentinel.proving.orders import CalibrationOrder, KernelOrder, TrainingOrder, WatchOrder  # noqa: E402
from sentinel.proving.trained_cell import StepClock, trained  # noqa: E402
from sentinel.proving.watched_step import calibrated, watched  # noqa: E402
from sentinel.reports.placement_comparison import Row  # noqa: E402
from tests.processes import LONGEST_S  # noqa: E402

SLOW = "emulated:cxl-asic-x8"
STEPS, JUDGED = 10, 3
SMALL = {"perceptron": small_perceptron, "convolution": small_convolution}
EACH = ["perceptron", pytest.param("convolution", marks=pytest.mark.long)]


def name_of(call: Any) -> str:
    return f"{call.__module__}:{call.__name__}"


def order(script: str, said: dict[str, Any] | None) -> TrainingOrder:
    words = ("--steps", str(STEPS), *(("--stock",) if said is None else ()))
    return TrainingOrder(script, words, STEPS, JUDGED, said)


@pytest.fixture(scope="module")
def processes() -> CellProcesses:
    return CellProcesses(["torch", "sentinel.proving.watched_step"])


@pytest.mark.needs("torch", "native", "compiler")
@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
def test_what_is_predicted_can_be_applied_and_trains_the_same_bits(
    name: str, tmp_path: Path, processes: CellProcesses
) -> None:
    script, log = str(SMALL[name].__file__), tmp_path / "log"
    watch = WatchOrder(
        order(script, {"slow": SLOW, "fast": "20%"}), name, str(tmp_path), "20%", ("all-fast", "sentinel", "all-slow")
    )
    told = processes.run(name_of(watched), watch, log, LONGEST_S)
    of = told["of"]
    assert of["all-fast"]["ratio"] == 1
    assert of["all-slow"]["ratio"] > of["sentinel"]["ratio"] >= 1
    assert of["sentinel"]["budget_bytes"] < 0.25 * told["footprint_bytes"]
    stock = processes.run(name_of(trained), order(script, None), log, LONGEST_S)
    assert len(stock["steps_ns"]) == JUDGED
    assert stock["n_losses"] == STEPS
    for policy in of:
        path = tmp_path / f"{name}.{policy}.json"
        assert load_plan(path).policy == policy
        said = {"slow": SLOW, "plan": str(path), "fast": of[policy]["budget_bytes"]}
        ours = processes.run(name_of(trained), order(script, said), log, LONGEST_S)
        assert ours["as_planned"], ours["notes"]
        assert ours["done"] == "emulated"
        assert ours["policy"] == policy
        assert {part: ours[part] for part in ("losses", "n_losses", "parameters")} == {
            part: stock[part] for part in ("losses", "n_losses", "parameters")
        }


@pytest.mark.needs("torch", "native", "compiler")
@pytest.mark.slow
def test_with_a_file_it_trains_the_same_bits(tmp_path: Path, processes: CellProcesses) -> None:
    script, log = str(small_perceptron.__file__), tmp_path / "log"
    said: dict[str, Any] = {"slow": f"file:{tmp_path}=1GiB", "fast": 16 << 20}
    words = ("--steps", str(STEPS), "--stock")
    filed = processes.run(name_of(trained), TrainingOrder(script, words, STEPS, JUDGED, said), log, LONGEST_S)
    stock = processes.run(name_of(trained), order(script, None), log, LONGEST_S)
    assert all(filed[part] == stock[part] for part in ("losses", "n_losses", "parameters"))


@pytest.mark.needs("native")
@pytest.mark.slow
def test_a_calibration_is_a_file_and_is_not_kept(tmp_path: Path, processes: CellProcesses) -> None:
    path = tmp_path / "machine.json"
    processes.run(name_of(calibrated), CalibrationOrder(SLOW, str(path), quick=True), tmp_path / "log", LONGEST_S)
    machine = load_machine(path)
    assert machine.fast.measured
    assert machine.tiers[1].kind == "emulated"


@pytest.mark.needs("torch")
def test_without_two_nodes_the_kernel_is_not_compared(tmp_path: Path, processes: CellProcesses) -> None:
    call = KernelOrder(order(str(small_perceptron.__file__), {"slow": SLOW}), "a", str(tmp_path), ("all-slow",), 2)
    with pytest.raises(CellFailed, match="not a NUMA node"):
        processes.run(name_of(kernel_cell.compared), call, tmp_path / "log", LONGEST_S)


@pytest.mark.needs("torch")
def test_rows_of_a_comparison_that_was_cut_short_go_with_the_first_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(*_: object) -> Iterator[tuple[Row, tuple[int, int]]]:
        assert left() == ["all-fast", "all-slow", "sentinel"]  # nothing is lost before there is something else
        for name in ("sentinel", "all-fast"):
            yield Row(name, "how"), (1, 2)

    def left() -> list[str]:
        return sorted(path.name.split(".")[2] for path in tmp_path.glob("a.kernel.*.json"))

    for name in ("sentinel", "all-fast", "all-slow"):
        (tmp_path / f"a.kernel.{name}.json").write_text("{}")
    monkeypatch.setattr(kernel_cell, "machine_for", lambda _: None)
    monkeypatch.setattr(kernel_cell, "compared_job", lambda *_: None)
    monkeypatch.setattr(kernel_cell.comparing, "rows", rows)
    names = ("sentinel", "all-fast", "all-slow")
    call = KernelOrder(order(str(small_perceptron.__file__), {"slow": SLOW}), "a", str(tmp_path), names, 2)
    assert kernel_cell.compared(call) == {"placements": 2}
    assert left() == ["all-fast", "sentinel"]


@pytest.mark.needs("torch")
def test_the_clock_tells_steps_of_several_optimizers() -> None:
    clock = StepClock(2)
    models = [torch.nn.Linear(2, 2) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for _ in range(4):
        for model, optimizer in zip(models, optimizers, strict=True):
            model(torch.ones(2)).sum().backward()
            optimizer.step()
    assert len(clock.steps_ns(4)) == 3
    with pytest.raises(UsageError, match="8 steps of optimizers in 3 steps"):
        clock.steps_ns(3)
    clock.end()
    assert clock.models() == models
    assert clock.optimizers == optimizers


@pytest.mark.needs("torch")
def test_small_scripts_train_on_the_same_numbers_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    born, trained_to = [], []

    def made() -> small_training.Job:
        model = torch.nn.Linear(3, 2)
        born.append(model.weight.detach().clone())
        trained_to.append(model.weight)
        return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1])

    monkeypatch.setattr("sys.argv", ["small.py", "--steps", "3", "--stock"])
    for _ in range(2):
        small_training.main(made, None)
    assert torch.equal(born[0], born[1])
    assert torch.equal(trained_to[0], trained_to[1])
    assert not torch.equal(born[0], trained_to[0])


@pytest.mark.needs("torch")
def test_digests_tell_a_bit(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 3)
    before = digest_of_trained([model], [])
    assert digest_of_trained([model], []) == before
    with torch.no_grad():
        model.bias[0] = torch.nextafter(model.bias[0], torch.tensor(9.0))
    assert digest_of_trained([model], []) != before
    assert digest_of_losses([b"a", b"b"]) != digest_of_losses([b"b", b"a"])
