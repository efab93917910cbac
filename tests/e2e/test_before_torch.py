"""`sentinel run` imports neither torch nor NumPy before the script does: what the script sets for them holds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.cli import before_torch
from sentinel.core.errors import UsageError
from tests.processes import LONGEST_S

pytestmark = pytest.mark.needs("torch", "compiler")

ROOT = Path(__file__).parents[2]
EMULATED = ("--fast", "20%", "--slow", "emulated:cxl-asic-x8")
TRAINING = """
import torch
torch.manual_seed(1)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)])
optimizer = torch.optim.Adam(model.parameters())
for _ in range(8):
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained", model[0].weight.sum().item())
"""


def fresh(folder: Path, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A script in a process that no test has imported anything in, without words about threads; its report is kept."""
    (folder / "script.py").write_text(text)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "MKL_"))}
    run = ("-m", "sentinel", "run", *words) if words else ()
    return subprocess.run(
        [sys.executable, *run, "script.py"],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )


def test_what_is_checked_apart_is_not_imported_here(capfd: pytest.CaptureFixture[str]) -> None:
    def wrong() -> None:
        import this  # noqa: F401

        raise UsageError("words", "others")

    assert before_torch.refused_apart(wrong, debug=False) == 2
    assert "sentinel: words; others\n" in capfd.readouterr().err
    assert "this" not in sys.modules
    assert before_torch.refused_apart(lambda: None, debug=False) == 0


def test_what_a_script_sets_before_it_imports_torch_holds(tmp_path: Path) -> None:
    settings = (
        "import os, sys\nprint('torch' in sys.modules, 'numpy' in sys.modules)\nos.environ['OMP_NUM_THREADS'] = '1'\n"
    )
    text = f"{settings}{TRAINING}print(torch.get_num_threads())\n"
    stock = fresh(tmp_path, text)
    assert stock.stdout.startswith("False False\n")
    assert stock.stdout.endswith("\n1\n")
    for words in (("--report", "r.json"), ("--report", "r.json", *EMULATED)):
        done = fresh(tmp_path, text, *words)
        assert done.stdout == stock.stdout, done.stderr
        assert "is profiled" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("--slow", "nowhere"), 2, "slow='nowhere' names no slow tier"),
        (("--report", "r.doc"), 2, "a report cannot be written as 'r.doc'"),
        (("--machine", "none.json"), 1, "none.json"),
    ],
)
def test_what_is_wrong_with_the_words_is_told_before_the_script(
    tmp_path: Path, words: tuple[str, ...], code: int, why: str
) -> None:
    done = fresh(tmp_path, f"print('begun')\n{TRAINING}", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert why in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_holds_tensors_of_a_script_that_imports_torch_late(tmp_path: Path) -> None:
    text = f"def train():\n    {TRAINING.strip().replace(chr(10), chr(10) + '    ')}\ntrain()\n"
    stock = fresh(tmp_path, text)
    done = fresh(tmp_path, text, "--report", "r.json", "--fast", "16MiB", "--slow", f"file:{tmp_path}")
    assert (done.returncode, done.stdout) == (0, stock.stdout), done.stderr
    assert "executed under a budget without a plan" in done.stderr


def test_a_script_without_torch_runs_and_says_so(tmp_path: Path) -> None:
    done = fresh(tmp_path, "print('hello')\n", "--report", "r.json")
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert "trained no step under Sentinel: it did not import torch" in done.stderr
    assert not (tmp_path / "r.json").exists()


def test_a_sigterm_before_torch_ends_the_script(tmp_path: Path) -> None:
    done = fresh(
        tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nprint('on')\n", "--report", "r.json"
    )
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "")
    assert "ended by SIGTERM before a step was profiled" in done.stderr


def test_modules_of_the_scripts_that_have_names_of_pythons_own_are_its_own(tmp_path: Path) -> None:
    """Sentinel imports both as it begins: the script the one before, the other one after torch."""
    for name in ("statistics", "html"):
        (tmp_path / f"{name}.py").write_text("OURS = 3\n")
    (tmp_path / "script.py").write_text(
        f"import statistics\n{TRAINING}import html\nprint(statistics.OURS + html.OURS)\n"
    )
    console = "import sys; from sentinel.cli import main; sys.exit(main(sys.argv[1:]))"
    away = tmp_path / "elsewhere"
    away.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", console, "run", *EMULATED, "--report", "r.json", "../script.py"],
        cwd=away,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )
    assert done.stdout.endswith("\n6\n"), done.stderr
    assert "is applied" in done.stderr


def test_a_package_of_the_scripts_has_its_name_too(tmp_path: Path) -> None:
    (tmp_path / "statistics").mkdir()
    (tmp_path / "statistics" / "__init__.py").write_text("OURS = 3\n")
    done = fresh(tmp_path, f"import statistics\n{TRAINING}print(statistics.OURS)\n", "--report", "r.json", *EMULATED)
    assert done.stdout.endswith("\n3\n"), done.stderr
    assert "is applied" in done.stderr


def test_words_are_of_the_folder_in_which_they_were_said(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "scratch").mkdir()
    words = ("--report", "r.json", "--fast", "16MiB", "--slow", "file:scratch")
    done = fresh(tmp_path, f"import os\nos.chdir('elsewhere')\n{TRAINING}", *words)
    assert done.returncode == 0, done.stderr
    assert f"what exceeds it is in file:{tmp_path / 'scratch'}" in done.stderr


def test_what_only_beginning_finds_out_ends_a_script_that_guards_its_import(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    guarded = "import os\nos.rmdir('scratch')\ntry:\n    import torch\nexcept Exception:\n    print('without')\n"
    words = ("--report", "r.json", "--fast", "16MiB", "--slow", "file:scratch")
    done = fresh(tmp_path, guarded + TRAINING, *words)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "scratch is not a directory; name one that exists" in done.stderr
    assert "Traceback" not in done.stderr


def test_other_threads_import_as_ever_while_sentinel_begins(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"own{number}.py").write_text("")
    text = (
        "import importlib, threading, time\ndone = threading.Event()\n"
        "def imports():\n    for number in range(40):\n        importlib.import_module(f'own{number}')\n"
        "        time.sleep(0.02)\n        if done.is_set() and number > 20: pass\n"
        "thread = threading.Thread(target=imports)\nthread.start()\nimport torch\ndone.set()\nthread.join()\n"
    )
    done = fresh(tmp_path, f"{text}{TRAINING}", "--report", "r.json")
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr


def test_the_scripts_exit_functions_come_before_the_end_of_the_session(tmp_path: Path) -> None:
    text = "import atexit\natexit.register(lambda: print(sentinel.active()))\nimport sentinel\n"
    done = fresh(tmp_path, text + TRAINING, "--fast", "16MiB", "--slow", f"file:{tmp_path}", "--report", "r.json")
    assert done.stdout.endswith("\nTrue\n"), done.stderr


def test_where_what_checks_is_killed_the_script_runs(capfd: pytest.CaptureFixture[str]) -> None:
    assert before_torch.refused_apart(lambda: os.kill(os.getpid(), signal.SIGKILL), debug=False) == 0
    assert "the process that checked it ended by signal 9" in capfd.readouterr().err


def test_a_forked_child_that_imports_torch_is_not_watched(tmp_path: Path) -> None:
    trains = TRAINING.strip().replace("\n", "\n    ")
    text = f"import os\nif not (child := os.fork()):\n    {trains}\n    raise SystemExit(0)\n"
    text += "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    done = fresh(tmp_path, text, "--report", "r.json")
    assert done.stdout.endswith("\n0\n"), done.stderr
    assert "is profiled" not in done.stderr


@pytest.mark.parametrize("stderr", ["/dev/full", "closed"])
def test_where_stderr_takes_nothing_the_output_of_the_script_stays(tmp_path: Path, stderr: str) -> None:
    text = "import sys\nprint('hello')\nsys.exit('bye')\n"
    (tmp_path / "script.py").write_text(text)
    away = "2>&-" if stderr == "closed" else f"2>{stderr}"
    told = []
    for run in ("", "-m sentinel run --report r.json"):
        command = f"exec {sys.executable} {run} script.py {away}"
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )
        told.append((done.returncode, done.stdout))
    assert told[0] == told[1]
    assert told[0][1] == "hello\n"
