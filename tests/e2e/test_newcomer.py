"""What a stranger does first: unmodified scripts under `sentinel run`, and runs that end in every way but well."""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from sentinel import files
from sentinel.core.units import parse_bytes
from tests import warm
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
LONGER = ("trainer", "accelerated")
"""Loops of libraries: Lightning's is trained below, and these, by a callback and by a `with`, in test_callbacks.py."""
EMULATED = ("--fast", "20%", "--slow", "emulated:cxl-asic-x8")
WITHOUT_FLAGS = {"SENTINEL_SLOW": "emulated:cxl-asic-x8", "SENTINEL_REPORT": "r.json"}
"""In the environment, so that the command is `sentinel run --fast 20% x.py` and no more: on a host with one node the
slower tier has to be named somewhere, and figures are read from JSON."""
OURS = {name for name in os.environ if name.startswith("SENTINEL_") and name != "SENTINEL_UNTESTED_TORCH"}
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in OURS}
ENVIRONMENT |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
NEVER = r"(?i)cut short|no optimizer stepped|saved plan|was stopped|error|not be planned|no usual step"
"""What no caveat of a script that trains as usual may say."""
PAGE_BYTES = 4096


def python(*words: str | Path, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own; what it prints on stdout and stderr apart. `more`: variables."""
    return warm.run([sys.executable, *words], cwd=cwd, env={**ENVIRONMENT, **more}, timeout=1500)


def by_the_command_alone(*script: str | Path, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "sentinel", "run", "--fast", "20%", *script, cwd=cwd, **more)


def require_figures(path: Path) -> None:
    """The report's of an emulated run: a fifth of the footprint is the budget, and some of the bytes came from it."""
    report = json.loads(path.read_text())
    headline = report["headline"]
    assert headline["kind"] == "emulated"
    fifth = headline["peak_bytes"] / 5
    assert fifth - PAGE_BYTES < headline["fast_capacity_bytes"] <= fifth, headline
    assert 0 < headline["fast_peak_bytes"] <= headline["fast_capacity_bytes"], headline
    assert 0 < headline["fast_served_fraction"] <= 1, headline
    assert headline["steps"] > 0
    assert headline["step_ns_applied"] > 0
    caveats = report["caveats"]
    assert any(caveat.startswith("Emulated: the plan was executed") for caveat in caveats)
    assert not [caveat for caveat in caveats if re.search(NEVER, caveat) or caveat.startswith("Nothing was applied")]


_SAVED = (
    r"^sentinel: memory  (\S+ \w+) of fast memory instead of (\S+ \w+): \d+% less"
    r"(?:; both include (\S+ \w+) outside of the plan, which no budget covers)?$"
)


def require_figures_of_a_plan(stderr: str, page: str) -> None:
    """Those of a run with nothing set, as the terminal has them, on the page too."""
    memory = re.search(_SAVED, stderr, re.M)
    served = re.search(r"^sentinel: speed   .*?([\d.]+)% of the bytes touched come from fast memory$", stderr, re.M)
    assert memory, stderr
    assert served, stderr
    shown = [amount for amount in memory.groups() if amount]
    outside = parse_bytes(memory[3]) if memory[3] else 0
    fast, whole = (parse_bytes(amount) - outside for amount in shown[:2])
    assert whole / 5 - PAGE_BYTES < 1.01 * fast, memory[0]  # whole pages, and as many digits as are shown
    assert 0.99 * fast <= whole / 5, memory[0]
    assert 0 < float(served[1]) <= 100
    for figure in (*shown[:2], f"{served[1]}%"):
        assert figure in page, figure
    assert not re.search(NEVER, "\n".join(re.findall(r"^sentinel: but     .*$", stderr, re.M)))
    if PROBES["two nodes"]():  # there is one: what a slower one would do was computed
        assert "sentinel: nothing is applied: this host has no slower memory" in stderr
        assert "sentinel: Declared: this host has no slower memory. Times were computed for " in stderr
        assert "Nothing was applied: this host has no slower tier" in page
    else:
        assert "sentinel: the plan is applied from now on" in stderr


def missing(name: str) -> list[str]:
    return [f"{library}: {remedy}" for library in NEEDS[name] if (remedy := PROBES[library]())]


def stock(name: str) -> str:
    """What a script prints without Sentinel."""
    others = [each for each in NEEDS if each not in LONGER and not missing(each)]
    return _stock(*([name] if name in LONGER else others))[name]


@functools.cache
def _stock(*names: str) -> dict[str, str]:
    """Of several in one process: it imports torch once."""
    text = "import runpy, sys\npaths, sys.argv[1:] = sys.argv[1:], []\n"
    text += "for path in paths: print('==', path); runpy.run_path(path, None, '__main__')"
    with tempfile.TemporaryDirectory() as folder:
        done = python("-c", text, *(SCRIPTS / f"{name}.py" for name in names), cwd=Path(folder))
    assert done.returncode == 0, done.stderr
    parts = re.split(r"^== (.*)\n", done.stdout, flags=re.M)[1:]
    return {Path(path).stem: printed for path, printed in zip(parts[::2], parts[1::2], strict=True)}


@pytest.mark.parametrize(
    "name",
    [  # the last two are trained below: with nothing set, and with nothing said
        pytest.param(name, marks=[pytest.mark.long] * (name in (*LONGER, "lightning_module", "mixed_precision")))
        for name in NEEDS
    ],
)
def test_a_script_of_a_stranger_trains_as_ever_and_is_reported(name: str, tmp_path: Path) -> None:
    """Losses, validations and parameters are printed to the last bit; stdout has not a word of ours."""
    if lacking := missing(name):
        pytest.skip(f"needs {', '.join(lacking)}")
    done = by_the_command_alone(SCRIPTS / f"{name}.py", cwd=tmp_path, **WITHOUT_FLAGS)
    assert done.returncode == 0, done.stderr
    assert done.stdout == stock(name)
    lines = without_progress(done.stderr)
    said = [line.removeprefix("sentinel: ") for line in lines if line.startswith("sentinel: ")]
    for begins in (
        "the step after ",
        "planned: ",
        "the plan is applied",
        "memory  ",
        "speed   ",
        "once    ",
        "report  ",
    ):
        assert any(line.startswith(begins) for line in said), f"{begins}\n{done.stderr}"
    assert len(said) <= 16
    assert said[-1] == "report  r.json"
    require_figures(tmp_path / "r.json")


@pytest.mark.parametrize(
    "name",
    ["lightning_module", *(pytest.param(name, marks=pytest.mark.long) for name in ("cnn", "trainer", "resumed"))],
)
def test_with_nothing_set_a_script_trains_as_ever_and_the_plan_is_reported(name: str, tmp_path: Path) -> None:
    """On a host with one node it is simulated; on one with two it is applied."""
    if lacking := missing(name):
        pytest.skip(f"needs {', '.join(lacking)}")
    done = by_the_command_alone(SCRIPTS / f"{name}.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == stock(name)
    assert without_progress(done.stderr)[-1] == "sentinel: report  sentinel-report.html"
    require_figures_of_a_plan(done.stderr, (tmp_path / "sentinel-report.html").read_text())


@pytest.mark.long
def test_caveats_of_lightning_tell_nothing_of_a_profile_that_was_replaced(tmp_path: Path) -> None:
    """Forward runs within the optimizer's step there; whichever step was watched first, what is told is of the last."""
    if lacking := missing("lightning_module"):
        pytest.skip(f"needs {', '.join(lacking)}")
    words = ("--tracker", "ops", "--report", "r.json", SCRIPTS / "lightning_module.py")
    done = python("-m", "sentinel", "run", *EMULATED, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "r.json").read_text())
    assert told["headline"]["kind"] == "emulated"
    assert told["headline"]["steps"] >= 4
    assert not any("optimizer stepped" in said for said in told["caveats"])
    assert "cut short" not in done.stderr, "that another step was profiled is of method"
    assert "no optimizer stepped" not in done.stderr.lower()


@pytest.mark.long  # without an argument each is among the scripts above
@pytest.mark.parametrize(
    ("name", "argument"),
    [("compiled", "inductor"), pytest.param("gpt2", "12", marks=pytest.mark.needs("transformers"))],
)
def test_what_compiles_and_what_is_large_trains_as_ever_too(name: str, argument: str, tmp_path: Path) -> None:
    """torch.compile as it is by default, and the smallest GPT-2 that was published: 124 million parameters."""
    script = (SCRIPTS / f"{name}.py", argument)
    kept = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled")}  # compiled once for both
    plain = python(*script, cwd=tmp_path, **kept)
    done = by_the_command_alone(*script, cwd=tmp_path, **kept, **WITHOUT_FLAGS)
    assert (plain.returncode, done.returncode) == (0, 0), plain.stderr + done.stderr
    assert done.stdout == plain.stdout
    assert len(done.stdout.splitlines()) == 9
    require_figures(tmp_path / "r.json")


TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", "--standalone")
IN_EACH = ("--no-python", sys.executable, "-m", "sentinel", "run", "--fast", "20%", SCRIPTS / "data_parallel.py")


@pytest.fixture(scope="module")
def stock_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A line of each of two ranks without Sentinel."""
    plain = python(*TORCHRUN, SCRIPTS / "data_parallel.py", cwd=tmp_path_factory.mktemp("ranks"))
    assert plain.returncode == 0, plain.stderr
    assert len(plain.stdout.splitlines()) == 2
    return sorted(plain.stdout.splitlines())


@pytest.mark.long  # two processes, and nothing set, each have a shorter test
def test_two_processes_with_nothing_set_write_a_report_each(stock_ranks: list[str], tmp_path: Path) -> None:
    done = python(*TORCHRUN, *IN_EACH, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == stock_ranks
    parts = [f"sentinel-report.rank{rank}.{form}" for rank in (0, 1) for form in ("html", "json")]
    assert {path.name for path in tmp_path.iterdir()} == {"sentinel-report.html", *parts}
    for rank in (0, 1):
        headline = json.loads((tmp_path / f"sentinel-report.rank{rank}.json").read_text())["headline"]
        assert headline["kind"] == ("declared" if PROBES["two nodes"]() else "executed")
        fifth = headline["peak_bytes"] / 5
        assert fifth - PAGE_BYTES < headline["fast_capacity_bytes"] <= fifth, headline
        assert 0 < headline["fast_served_fraction"] <= 1, headline


@pytest.mark.long  # the page on several processes is run in test_ranks.py
def test_two_processes_write_a_report_each(stock_ranks: list[str], tmp_path: Path) -> None:
    script = SCRIPTS / "data_parallel.py"
    done = python(*TORCHRUN, *IN_EACH, cwd=tmp_path, **WITHOUT_FLAGS)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == stock_ranks
    for rank in (0, 1):
        require_figures(tmp_path / f"r.rank{rank}.json")
    assert {path.name for path in tmp_path.iterdir()} == {"r.rank0.json", "r.rank1.json", "r.json"}
    assert json.loads((tmp_path / "r.json").read_text())["headline"]["ranks_ended"] == 2
    within = tmp_path / "within.py"
    within.write_text(WITHIN)
    placed = python(*TORCHRUN, within, script, cwd=tmp_path)
    assert placed.returncode == 0, placed.stderr
    assert sorted(placed.stdout.splitlines()) == stock_ranks
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
    assert done.stdout == stock("mixed_precision")
    assert (tmp_path / "sentinel-report.html").exists()


def test_a_dry_run_prints_the_curve_and_stops(tmp_path: Path) -> None:
    words = ("--dry-run", *EMULATED, "--save-profile", "p.safetensors", SCRIPTS / "resumed.py")
    done = python("-m", "sentinel", "run", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert 3 <= len(printed) < 8
    assert stock("resumed").startswith(done.stdout)
    assert "How much fast memory?" in done.stderr
    assert "You are here: 20%" in done.stderr
    assert "the plan is applied" not in done.stderr
    assert "`sentinel run --dry-run`" not in done.stderr, "that is what runs"
    assert files.load_profile(tmp_path / "p.safetensors").n_layers > 4


def test_so_many_steps_are_trained_and_no_more(tmp_path: Path) -> None:
    done = python("-m", "sentinel", "run", "--steps", "6", *EMULATED, SCRIPTS / "resumed.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == stock("resumed").splitlines()[:5]  # the sixth had not printed its loss yet
    assert "How much fast memory?" in done.stderr
    assert "`sentinel run --dry-run`" not in done.stderr, "the answer is there"


ENDLESS = """
import itertools, os, signal, sys
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
class Ending:  # SIGTERM comes as the report's modules are imported, which is done once, for the first report
    def find_spec(self, name, *_):
        if name == "sentinel.reports.sections.key_figures":
            print("importing", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGTERM)
if "ended" in sys.argv:
    sys.meta_path.insert(0, Ending())
for step in itertools.count():
    print("step", step, file=sys.stderr, flush=True) if step < 2000 else None  # more would fill the pipe
    model(torch.ones(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 20 and "exit" in sys.argv:
        os._exit(9)
"""
MOST_LINES = 1000
"""On stderr, until the plan is applied and five steps are done: some twenty are usual, and the script writes 2000."""
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
            lines = itertools.islice(
                running.stderr or (), MOST_LINES
            )  # else a sentence that changed is awaited for ever
            assert any(line.startswith("sentinel: the plan is applied from") for line in lines)
            for _ in range(5):  # steps with the plan; one would do
                assert any(line.startswith("step ") for line in lines)
        running.send_signal(by)
        _, said = running.communicate(timeout=LONGEST_S)
    assert running.returncode == -by, said
    assert "Traceback" not in said
    require_whole(tmp_path)
    assert json.loads((tmp_path / "r.json").read_text())["headline"]["steps"] > 0


def test_sigterm_as_the_first_report_is_drawn_leaves_a_whole_one(tmp_path: Path) -> None:
    command = endless(tmp_path, "ended")
    done = subprocess.run(
        command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=600
    )
    assert (done.returncode, done.stderr.count("importing")) == (-signal.SIGTERM, 1), done.stderr
    assert "there is no report" not in done.stderr
    assert "sentinel: ended by SIGTERM; report  r.json\n" in done.stderr
    require_whole(tmp_path)
    assert json.loads((tmp_path / "r.json").read_text())["headline"]["steps"] > 0


@pytest.mark.long  # as SIGKILL, after which nothing is cleaned up either
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
