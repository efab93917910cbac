"""An executed comparison's parts: what children import once, the line between parent and child, room and failures."""

from __future__ import annotations

import ast
import contextlib
import ctypes
import errno
import gc
import json
import mmap
import os
import select
import signal
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import torch

from sentinel.core.errors import CapabilityError, NativeError
from sentinel.executed import comparing, trained_bits
from sentinel.executed.child import Line
from sentinel.executed.placements import ALL_FAST, OURS
from sentinel.executed.shared_imports import _imported, _present, import_shared
from tests import warm
from tests.processes import LONGEST_S

ROOT = Path(__file__).parents[2]


def test_what_a_script_imports_from_elsewhere_is_imported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_the_job.py").write_text("raise RuntimeError('the script itself imports this')")
    script = tmp_path / "train.py"
    script.write_text("import wave, beside_the_job, no_such_module_1009\nfrom colorsys import rgb_to_hsv\n1 / 0\n")
    for name in ("wave", "colorsys"):
        sys.modules.pop(name, None)
    frozen: list[bool] = []
    # frozen objects are hidden from what looks for references, and so from other tests
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    import_shared(str(script))
    assert frozen == [True]
    assert {"wave", "colorsys"} <= set(sys.modules)
    assert "beside_the_job" not in sys.modules


@pytest.mark.parametrize(
    ("source", "imported"),
    [
        pytest.param(b"# -*- coding: latin-1 -*-\nimport wave  # \xe9\n", True, id="a coding of its own"),
        pytest.param(b"import wave\nfor step in range(9)\n", False, id="a typo"),
        pytest.param(b"import wave\n\xe9 = 1\n", False, id="no UTF-8"),
        pytest.param(b"import wave\0\n", False, id="no text"),
    ],
)
def test_a_script_that_cannot_be_parsed_shares_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: bytes, imported: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_bytes(source)
    sys.modules.pop("wave", None)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    import_shared(str(script))
    assert ("wave" in sys.modules) == imported


def test_only_absolute_imports_are_shared() -> None:
    found = [_imported(node) for node in ast.parse("import a, b.c\nfrom d import e, f\nfrom . import g\nx = 1").body]
    assert found == [[("a", []), ("b.c", [])], [("d", ["e", "f"])], [], []]


def test_pages_that_are_in_memory_are_found() -> None:
    memory = mmap.mmap(-1, 7 * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for page in (1, 2, 5):
        memory[page * 4096] = 1
    anchor = ctypes.c_char.from_buffer(memory)
    start = ctypes.addressof(anchor)
    assert _present(start, start + 7 * 4096) == [(start + 4096, 2 * 4096), (start + 5 * 4096, 4096)]
    del anchor
    memory.close()


@pytest.mark.parametrize("ready", [True, False])
def test_parent_and_child_wait_for_each_other(ready: bool) -> None:
    line = Line()
    child = os.fork()
    if not child:
        try:
            if ready:
                line.ready()
                line.job_ended()
        finally:
            os._exit(7)
    assert line.await_ready() == ready
    line.start_job()
    assert line.ended_within(LONGEST_S)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    line.close()


def test_a_child_ends_with_a_parent_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where memory runs out: who is killed cannot end its child, which would train on beside later runs."""
    reading, writing = os.pipe()

    def kills_its_parent(*_: object) -> int:
        os.write(writing, str(os.getpid()).encode())
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()
        return 0

    monkeypatch.setattr(comparing, "run_child", kills_its_parent)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    job: Any = SimpleNamespace(script="train.py")
    parent = os.fork()
    if not parent:
        try:
            comparing._child(job, comparing.PLACEMENTS[0], lambda *_: contextlib.nullcontext(), None)
        finally:
            os._exit(1)
    os.close(writing)
    child = int(os.read(reading, 32))
    assert os.waitstatus_to_exitcode(os.waitpid(parent, 0)[1]) == -signal.SIGKILL
    gone = select.select([reading], [], [], LONGEST_S)[0]  # the pipe's end was the child's alone
    if not gone:
        os.kill(child, signal.SIGKILL)
    os.close(reading)
    assert gone


def test_room_beside_the_budget_is_what_stock_took_beyond_its_tensors() -> None:
    ours = {"ours": {"budget_bytes": 100, "footprint_bytes": 400}}
    stock = {"free_before_bytes": 2000, "least_free_bytes": 1300, "tensor_bytes": [450, 500, 480]}
    assert comparing._room(ours, stock) == (100, 200)
    assert comparing._room(ours, {**stock, "least_free_bytes": 1900}) == (100, 0)


@pytest.mark.parametrize(
    "refusal", [NativeError("mbind", errno.EPERM), CapabilityError("pinning 1 GiB", "not permitted", "run as root")]
)
def test_a_placement_whose_ballast_is_refused_is_one_skipped_row(
    monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
    def refused(*_: object) -> None:
        raise refusal

    for name in ("kernel_settings", "new_cgroup"):
        monkeypatch.setattr(comparing, name, lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(comparing, "_child", refused)
    job: Any = SimpleNamespace(nodes=(0, 1), weights={})
    first_touch = next(placement for placement in comparing.PLACEMENTS if placement.name == "first-touch")
    row = comparing._row(job, first_touch, {}, (1 << 20, 0), lambda *_: contextlib.nullcontext())
    assert (row.name, row.skipped) == ("first-touch", str(refusal))


class OnDevice(torch.Tensor):
    """As a tensor of a GPU: NumPy has no access to it."""

    def cpu(self, *_: Any) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()")


def test_losses_and_parameters_on_a_device_count_as_those_in_host_memory() -> None:
    def computed(kind: type[torch.Tensor]) -> tuple[list[bytes], str]:
        model = torch.nn.Module()
        model.weight = torch.nn.Parameter(torch.arange(7.0).as_subclass(kind))
        with trained_bits.losses() as found:
            model.weight.square().sum().backward()
        return found, trained_bits.digest_of_trained([model], [])

    assert computed(OnDevice) == computed(torch.Tensor)
    assert computed(OnDevice)[0] == [torch.tensor(91.0).numpy().tobytes()]


_UNCHANGED = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
optimizer = torch.optim.AdamW(model.parameters())
for step in range({steps}):
    model(torch.ones(4, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def compared(tmp_path: Path, name: str, steps: int, more: str = "") -> dict[str, Any]:
    """What a child saw of a script that does not mention Sentinel but in `more` lines of its loop."""
    script = tmp_path / "train.py"
    script.write_text(_UNCHANGED.format(steps=steps) + more)
    command = [sys.executable, "-m", "tests.torch.compared_job", str(script), name]
    done = warm.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.needs("native")
def test_the_loop_of_an_unchanged_script_is_found_under_every_placement(tmp_path: Path) -> None:
    ours, stock = (compared(tmp_path, name, 14) for name in (OURS, ALL_FAST))
    assert ours["ours"]["budget_bytes"] > 0
    assert stock["ours"] is None
    assert (ours["measured_steps"], stock["measured_steps"]) == (1, 1)
    assert (ours["n_losses"], ours["losses"], ours["parameters"]) == (14, stock["losses"], stock["parameters"])


@pytest.mark.needs("native")
def test_a_script_without_a_loop_is_refused_by_what_was_looked_for(tmp_path: Path) -> None:
    assert compared(tmp_path, ALL_FAST, 1)["error"].startswith("all-fast: no training loop was found")


_BEGINS_LATE = """\
    import sentinel
    if step == 5:
        sentinel.annotate(model, optimizer)
        sentinel.start_profile(model, optimizer)
    if step == 6:
        sentinel.end_profile()
"""


@pytest.mark.needs("native")
@pytest.mark.parametrize("name", [OURS, ALL_FAST])
def test_a_script_that_begins_its_session_late_is_left_to_do_so(tmp_path: Path, name: str) -> None:
    told = compared(tmp_path, name, 16, _BEGINS_LATE)
    assert (told["n_losses"], told["measured_steps"], told["failed"]) == (16, 1, "")
    assert (told["ours"] is None) == (name == ALL_FAST)


@pytest.mark.needs("native")
def test_a_script_of_too_few_steps_is_told_so_and_not_that_it_has_no_loop(tmp_path: Path) -> None:
    assert "0 whole steps ran after the profiled one" in compared(tmp_path, ALL_FAST, 3)["error"]
