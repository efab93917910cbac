"""A session without a plan that is interrupted, ends, forks, or begins with a script: what is left, what goes on."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from torch.optim import optimizer as torch_optimizer  # noqa: E402

import sentinel  # noqa: E402
from sentinel.profiler import step_ends  # noqa: E402
from sentinel.runtime import RUNTIME  # noqa: E402
from sentinel.session.fused_steps import one_by_one  # noqa: E402
from sentinel.session.passive import PassiveSession  # noqa: E402
from sentinel.system import scratch_disk  # noqa: E402
from sentinel.tiers.file_tier import FileTier, FramedTensors  # noqa: E402
from sentinel.tiers.frames import Frames  # noqa: E402
from tests import warm  # noqa: E402
from tests.processes import LONGEST_S, started  # noqa: E402
from tests.torch.test_passive import begin, frames_of  # noqa: E402

pytestmark = pytest.mark.needs("torch", "compiler", "native")
ROOT = Path(__file__).parents[2]


HERE = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


POINTS = [
    (Frames, "_read_facts", True),
    (Frames, "hand_over", False),
    (Frames, "hand_over", True),
    (FramedTensors, "__init__", True),
    (FileTier, "begin", True),
    (PassiveSession, "add", True),
    (FramedTensors, "end", False),
    (step_ends, "register_optimizer_step_post_hook", True),
]


def begin_and_stop(folder: Path) -> None:
    begin(folder)
    sentinel.stop()


@pytest.mark.parametrize(("owner", "name", "after"), POINTS)
def test_an_interrupt_as_it_begins_leaves_nothing(
    owner: Any, name: str, after: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., Any] = getattr(owner, name)
    came: list[str] = []

    def call(*given: Any) -> Any:
        if not came:
            came.append(name)
            if after:
                real(*given)
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(owner, name, staticmethod(call) if name == "end" else call)
    gc.collect()  # as above
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(KeyboardInterrupt):
        begin_and_stop(folder)
    if sentinel.active():
        sentinel.stop()
    assert came
    assert not sentinel.active()
    assert RUNTIME.memory is None
    assert not torch_optimizer._global_optimizer_post_hooks
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert "memfd:sentinel-frames" not in Path("/proc/self/maps").read_text()
    session = begin(folder)
    held = torch.ones(1 << 20)
    assert frames_of(session).live_bytes == held.nbytes


def test_an_end_is_whole_though_no_descriptor_is_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks the kernel what is resident, for the report."""

    def refused(_: FramedTensors) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    begin(folder)
    monkeypatch.setattr(FramedTensors, "resident_bytes", refused)
    sentinel.stop()
    assert not sentinel.active()
    assert RUNTIME.memory is None


def test_wherever_a_start_is_interrupted_the_last_session_is_one_that_began(folder: Path) -> None:
    code, line, left = sentinel.session.start_profile.__code__, 0, 0

    def follow(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code is not code:
            return None
        left -= event == "line"
        if left == 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return follow

    whole = False
    while not whole:
        before, traced, line = RUNTIME.last, sys.gettrace(), line + 1
        left = line
        sys.settrace(follow)
        try:
            begin(folder)
            whole = True
        except KeyboardInterrupt:
            assert RUNTIME.last is (RUNTIME.sink or before)
        finally:
            sys.settrace(traced)
        if sentinel.active():
            sentinel.stop()
    assert line > 10, "lines of start_profile are many"


def test_an_end_that_was_interrupted_is_finished_by_the_next_call(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = begin(folder)
    held = torch.ones(1 << 20)

    def interrupted() -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(session._step_ends, "leave", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sentinel.stop()
    assert "tensors" in sentinel.report().text()
    assert not sentinel.active()
    assert float(held.sum()) == 1 << 20
    del held
    begin(folder)
    assert float(torch.ones(1 << 20).sum()) == 1 << 20


@pytest.mark.parametrize("fork", [os.fork, ctypes.PyDLL(None).fork], ids=["os.fork", "fork of the C library"])
def test_a_forked_child_ends_nothing(fork: Callable[[], int], folder: Path) -> None:
    session = begin(folder)
    held = torch.full((1 << 20,), 3.0)
    if (pid := fork()) == 0:
        code = 1
        try:
            signal.alarm(int(LONGEST_S))
            session.stop()
            sentinel.session.calls.end_at_exit()
            code = int(float(held.numpy().min()) != 3.0)
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert sentinel.active()
    assert frames_of(session).live_bytes == held.nbytes


@pytest.mark.parametrize("before", [0, 3], ids=["the parent has not stepped", "the parent has stepped"])
@pytest.mark.parametrize("fork", [os.fork, ctypes.PyDLL(None).fork], ids=["os.fork", "fork of the C library"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")  # Python 3.12 and later
def test_a_forked_child_trains_on_without_a_budget(fork: Callable[[], int], before: int, folder: Path) -> None:
    begin(folder)
    parameter = torch.nn.Parameter(torch.zeros(4))
    parameter.grad = torch.ones(4)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    for _ in range(before):
        optimizer.step()
    if (pid := fork()) == 0:
        code = 1
        try:
            signal.alarm(int(LONGEST_S))
            for _ in range(3):
                optimizer.step()
            code = int(parameter.tolist() != [-3.0 - before] * 4)
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    optimizer.step()
    assert parameter.tolist() == [-1.0 - before] * 4


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")  # as above
def test_in_a_forked_child_a_fused_step_asks_for_no_budget() -> None:
    calls: list[int] = []

    def no_budget() -> int:
        raise AssertionError

    step = one_by_one(lambda tensors: calls.append(len(tensors)), no_budget)
    if (pid := os.fork()) == 0:
        code = 1
        try:
            signal.alarm(int(LONGEST_S))
            step([torch.ones(2), torch.ones(3)])
            code = int(calls != [2])
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


SCRIPT = """
import torch, sentinel, sys
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(6)])
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    if step == 1:
        sentinel.start_profile(model, optimizer, fast="20%")
    model(torch.ones(8, 1024)).sum().backward()
    sentinel.add_layer()
    optimizer.step()
    optimizer.zero_grad()
    if step == 1:
        sentinel.end_profile()
print("trained", flush=True)
"""


def test_a_script_runs_under_a_budget_whatever_it_asks_for(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "sentinel", "run", "--fast", "32MiB", "--slow", f"file:{folder}=1GiB", str(script)]
    done = warm.run(command, cwd=tmp_path, env=HERE)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained\n"
    assert "read from the file" in done.stderr
    assert "stayed in place" not in done.stderr


def test_a_script_that_begins_a_session_runs_under_a_budget_that_is_configured(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    configured = {**HERE, "SENTINEL_FAST": "32MiB", "SENTINEL_SLOW": f"file:{folder}=1GiB"}
    command = [sys.executable, "-m", "sentinel", "run", str(script)]
    done = warm.run(command, cwd=tmp_path, env=configured)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained\n"
    assert "read from the file" in done.stderr


def test_a_script_runs_under_a_cap(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "sentinel", "run", "--cap", "4GiB", "--fast", "32MiB", str(script)]
    environment = {**HERE, scratch_disk.NAMED: str(folder)}
    done = warm.run(command, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert f"file:auto is {folder}" in done.stderr
    assert done.stdout == "trained\n"
    assert "read from the file" in done.stderr


def test_a_quiet_run_says_nothing_that_is_not_wrong(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "sentinel", "run", "--quiet", "--cap", "4GiB", "--fast", "32MiB", "train.py"]
    environment = {**HERE, scratch_disk.NAMED: str(folder)}
    done = warm.run(command, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")
    assert (tmp_path / "sentinel-report.html").exists()


LATER_HANDLERS = {
    "faulthandler": "import faulthandler; faulthandler.enable()",
    "save_and_leave": "import signal, sys; signal.signal(signal.SIGSEGV, lambda *_: sys.exit(3))",
    "blocked": "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
}
SCATTERED = """
import hashlib
import torch

torch.set_num_threads(1)
torch.manual_seed(0)
tensors = [torch.randn(1024, 6144) for _ in range(6)]
places, values = torch.randint(6291456, (2000000,)), torch.randn(2000000)
for i in range(18):
    tensors[i % 6].view(-1).scatter_add_(0, places, values)
print(hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest())
"""


@pytest.mark.slow
def test_a_script_may_handle_segmentation_faults_on_its_own(folder: Path, tmp_path: Path) -> None:
    """Its operators do not fit. Their stores meet granules that are turned over beside them."""
    script = tmp_path / "train.py"
    script.write_text(SCATTERED)
    expected = warm.run([sys.executable, str(script)], check=True, cwd=tmp_path, env=HERE).stdout
    for name, handler in LATER_HANDLERS.items():
        script.write_text(handler + SCATTERED)
        words = ["run", "--fast", "32MiB", "--slow", f"file:{folder}=768MiB", str(script)]
        done = warm.run([sys.executable, "-m", "sentinel", *words], cwd=tmp_path, env=HERE)
        assert (done.returncode, done.stdout) == (0, expected), f"{name}: {done.stderr}"
        assert "Fatal" not in done.stderr


def test_an_interrupted_script_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("range(3)", "range(10**6)").replace("optimizer.zero_grad()", "print(step)"))
    command = [sys.executable, "-m", "sentinel", "run", "--fast", "32MiB", "--slow", f"file:{folder}=1GiB", str(script)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": HERE}
    with started(command, cwd=tmp_path, **options) as running:
        assert running.stdout is not None
        running.stdout.readline()
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=LONGEST_S)
    assert "interrupted" in errors
    assert "read from the file" in errors
    assert "Fatal" not in errors
    assert running.returncode in (1, 130, -signal.SIGINT)
    assert not list(folder.iterdir())
