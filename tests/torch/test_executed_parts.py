"""An executed comparison's parts: what children import once, the line between parent and child, room and failures."""

from __future__ import annotations

import ast
import contextlib
import ctypes
import gc
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

pytest.importorskip("torch", reason="needs torch: pip install 'sentinel-hm[torch]'")

from sentinel.executed import comparing
from sentinel.executed.child import Line
from sentinel.executed.shared_imports import _imported, _present, import_shared
from tests.processes import LONGEST_S


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
    ours = {"ours": {"budget_bytes": 100, "live_peak_bytes": None, "footprint_bytes": 500}}
    assert comparing._room(ours, {"free_before_bytes": 2000, "least_free_bytes": 1300}) == (100, 200)
    assert comparing._room(ours, {"free_before_bytes": 2000, "least_free_bytes": 1900}) == (100, 0)
