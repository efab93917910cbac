"""What a stranger does first: unmodified scripts under `sentinel run`, and runs that end in every way but well."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from sentinel import files
from tests.capabilities import PROBES
from tests.processes import LONGEST_S, started, until, without_progress

pytestmark = [pytest.mark.needs("torch", "compiler"), pytest.mark.slow]

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "programs" / "newcomer"
NEEDS = {
    "cnn": (),
    "trainer": ("transformers", "accelerate"),
    "accelerated": ("accelerate",),
    "lightning_module": ("pytorch-lightning",),
    "compiled": (),
    "mixed_precision": (),
    "resumed": (),
    "gpt2": ("transformers",),
}
"""Script -> libraries that it imports."""
EMULATED = ("--fast", "20%", "--slow", "emulated:cxl-asic-x8")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def python(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """In a fresh process; what it prints on stdout and stderr apart."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False)


def missing(name: str) -> list[str]:
    return [f"{library}: {remedy}" for library in NEEDS[name] if (remedy := PROBES[library]())]


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each script prints without Sentinel, all in one process: it imports torch once."""
    text = "import runpy, sys\nfor path in sys.argv[1:]: print('==', path); runpy.run_path(path, None, '__main__')"
    paths = [str(SCRIPTS / f"{name}.py") for name in NEEDS if not missing(name)]
    done = python("-c", text, *paths, cwd=tmp_path_factory.mktemp("stock"))
    assert done.returncode == 0, done.stderr
    parts = re.split(r"^== (.*)\n", done.stdout, flags=re.M)[1:]
    return {Path(path).stem: printed for path, printed in zip(parts[::2], parts[1::2], strict=True)}


@pytest.mark.parametrize("name", NEEDS)
def test_a_script_of_a_stranger_trains_as_ever_and_is_reported(
    name: str, stock: dict[str, str], tmp_path: Path
) -> None:
    """Losses, validations and parameters are printed to the last bit; stdout has not a word of ours."""
    if lacking := missing(name):
        pytest.skip(f"needs {', '.join(lacking)}")
    done = python("-m", "sentinel", "run", *EMULATED, SCRIPTS / f"{name}.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == stock[name]
    lines = without_progress(done.stderr)
    said = [line.removeprefix("sentinel: ") for line in lines if line.startswith("sentinel: ")]
    for begins in ("the step after ", "planned: ", "applied from now", "memory  ", "speed   ", "once    ", "report  "):
        assert any(line.startswith(begins) for line in said), f"{begins}\n{done.stderr}"
    assert len(said) <= 16
    assert said[-1] == "report  sentinel-report.html"
    page = (tmp_path / "sentinel-report.html").read_text()
    assert "mulated" in page


def test_without_slower_memory_the_terminal_says_so(stock: dict[str, str], tmp_path: Path) -> None:
    done = python("-m", "sentinel", "run", "--fast", "20%", SCRIPTS / "mixed_precision.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, stock["mixed_precision"])
    assert "sentinel: applied from" in done.stderr or "sentinel: nothing is applied: this host has no" in done.stderr
    assert (tmp_path / "sentinel-report.html").exists()


def test_two_processes_write_a_report_each(tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", "--standalone")
    script = SCRIPTS / "data_parallel.py"
    plain = python(*torchrun, script, cwd=tmp_path)
    words = ("--no-python", sys.executable, "-m", "sentinel", "run", *EMULATED, "--report", "r.json", script)
    done = python(*torchrun, *words, cwd=tmp_path)
    assert (plain.returncode, done.returncode) == (0, 0), done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(plain.stdout.splitlines())
    assert len(done.stdout.splitlines()) == 2
    for rank in (0, 1):
        assert json.loads((tmp_path / f"r.rank{rank}.json").read_text())["headline"]["kind"] == "emulated"
    assert {path.name for path in tmp_path.iterdir()} == {"r.rank0.json", "r.rank1.json", "r.json"}
    assert json.loads((tmp_path / "r.json").read_text())["headline"]["ranks_ended"] == 2
    within = tmp_path / "within.py"
    within.write_text(WITHIN)
    placed = python(*torchrun, within, script, cwd=tmp_path)
    assert placed.returncode == 0, placed.stderr
    assert sorted(placed.stdout.splitlines()) == sorted(plain.stdout.splitlines())
    for rank in (0, 1):
        assert json.loads((tmp_path / f"with.rank{rank}.json").read_text())["headline"]["kind"] == "emulated"


WITHIN = """
import runpy, sys
import sentinel
with sentinel.placing(fast="20%", slow="emulated:cxl-asic-x8", report="with.json"):
    runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_a_launcher_is_refused_before_it_starts_anything(tmp_path: Path) -> None:
    done = python("-m", "sentinel", "run", "-m", "torch.distributed.run", "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "torchrun --nproc-per-node N --no-python sentinel run" in done.stderr


def test_quiet_says_nothing(tmp_path: Path) -> None:
    done = python("-m", "sentinel", "run", "--quiet", *EMULATED, SCRIPTS / "mixed_precision.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "sentinel-report.html").exists()


def test_a_dry_run_prints_the_curve_and_stops(stock: dict[str, str], tmp_path: Path) -> None:
    words = ("--dry-run", *EMULATED, "--save-profile", "p.safetensors", SCRIPTS / "gpt2.py")
    done = python("-m", "sentinel", "run", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert 3 <= len(printed) < 8
    assert stock["gpt2"].startswith(done.stdout)
    assert "How much fast memory?" in done.stderr
    assert "You are here: 20%" in done.stderr
    assert "applied from" not in done.stderr
    assert files.load_profile(tmp_path / "p.safetensors").n_layers > 4


def test_so_many_steps_are_trained_and_no_more(stock: dict[str, str], tmp_path: Path) -> None:
    done = python("-m", "sentinel", "run", "--steps", "6", *EMULATED, SCRIPTS / "gpt2.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == stock["gpt2"].splitlines()[:5]  # the sixth had not printed its loss yet
    assert "How much fast memory?" in done.stderr


ENDLESS = """
import itertools, os, sys
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in itertools.count():
    print("step", step, file=sys.stderr, flush=True) if step < 2000 else None  # more would fill the pipe
    model(torch.ones(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 20 and "exit" in sys.argv:
        os._exit(9)
"""
KEPT = ("--save-profile", "p.safetensors", "--save-plan", "plan.json", "--report", "r.json")


def endless(folder: Path, *arguments: str) -> Sequence[str]:
    """The command of a training that ends by itself never, or with os._exit."""
    (folder / "train.py").write_text(ENDLESS)
    return [sys.executable, "-m", "sentinel", "run", *EMULATED, *KEPT, str(folder / "train.py"), *arguments]


def await_file(path: Path, running: subprocess.Popen[str]) -> None:
    until(lambda: path.exists() or running.poll() is not None, 0.05)
    assert path.exists(), running.communicate(timeout=600)


def await_steps(path: Path, running: subprocess.Popen[str]) -> None:
    """Until a report tells of steps with the plan: the first one may have been written before them."""
    until(lambda: json.loads(path.read_text())["headline"]["steps"] or running.poll() is not None, 0.05)


def require_whole(folder: Path) -> None:
    """What is on disk can be used, and nothing half written lies beside it. Five seconds after the plan there is a
    report, too."""
    assert files.load_plan(folder / "plan.json").origin["profile"] == files.digest(
        files.load_profile(folder / "p.safetensors")
    )
    report = (folder / "r.json").exists()
    if report:
        headline = json.loads((folder / "r.json").read_text())["headline"]
        assert headline["kind"] == "emulated"
    names = {path.name for path in folder.iterdir()}
    assert names == {"train.py", "p.safetensors", "plan.json", *(("r.json",) if report else ())}


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_that_ends_the_process_leaves_what_was_known(tmp_path: Path, by: signal.Signals) -> None:
    """SIGTERM writes the report, and ends the process as it would have; before SIGKILL it was written by itself."""
    options = {"cwd": tmp_path, "env": ENVIRONMENT, "stderr": subprocess.PIPE, "text": True}
    with started(endless(tmp_path), **options) as running:
        await_file(tmp_path / ("plan.json" if by == signal.SIGTERM else "r.json"), running)
        if by == signal.SIGKILL:
            await_steps(tmp_path / "r.json", running)
        else:
            lines = iter(running.stderr or ())
            assert any(line.startswith("sentinel: applied from") for line in lines)
            for _ in range(5):  # steps with the plan; one would do
                assert any(line.startswith("step ") for line in lines)
        running.send_signal(by)
        _, said = running.communicate(timeout=LONGEST_S)
    assert running.returncode == -by, said
    assert "Traceback" not in said
    require_whole(tmp_path)
    assert json.loads((tmp_path / "r.json").read_text())["headline"]["steps"] > 0


def test_an_exit_that_skips_all_cleaning_up_leaves_profile_and_plan(tmp_path: Path) -> None:
    done = subprocess.run(endless(tmp_path, "exit"), cwd=tmp_path, env=ENVIRONMENT, check=False, timeout=600)
    assert done.returncode == 9
    require_whole(tmp_path)


def test_a_saved_plan_that_does_not_fit_keeps_its_budget(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ENDLESS.replace("itertools.count()", "range(12)").replace("(8, 64)", "(int(sys.argv[1]), 64)"))
    first = python("-m", "sentinel", "run", *EMULATED, "--save-plan", "plan.json", script, "512", cwd=tmp_path)
    words = (*EMULATED[2:], "--plan", "plan.json", "--report", "r.json", script, "2048")
    second = python("-m", "sentinel", "run", *words, cwd=tmp_path)
    assert (first.returncode, second.returncode) == (0, 0), second.stderr
    budget = files.load_plan(tmp_path / "plan.json").capacity_bytes[0]
    headline = json.loads((tmp_path / "r.json").read_text())["headline"]
    assert headline["fast_capacity_bytes"] == budget
    assert headline["peak_bytes"] > 8 * budget
    assert "saved plan does not match this step" in second.stderr
