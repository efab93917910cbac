"""Processes for what a proof does: each a fork of one server that has imported torch, with a log and a time limit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import traceback
from collections.abc import Iterator, Sequence
from importlib import import_module
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from sentinel.core.errors import Infeasible, SentinelError
from sentinel.files.disk import write_whole
from sentinel.system.parent_end import end_with_parent

_GOES_AFTER_S = 30.0
"""A process that was asked to end has so long to put back what it changed."""


class CellFailed(SentinelError):
    """A process ended without a result. `late`: its time was up. `refused`: there is no plan, which is a result too."""

    def __init__(self, why: str, *, late: bool = False, refused: bool = False) -> None:
        self.late, self.refused = late, refused
        super().__init__(why)


class CellProcesses:
    """Runs one process at a time. `imports`: modules that the server imports, once; what is not there is left out."""

    def __init__(self, imports: Sequence[str]) -> None:
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(list(imports))

    def run(self, call: str, order: Any, log: Path, limit_s: float) -> dict[str, Any]:
        """What the function `call`, such as `package.module:name`, gives for `order` in a process of its own.

        Raises CellFailed with the last word of the process. However this ends, the process is gone.
        """
        result = log.with_suffix(".result")
        result.unlink(missing_ok=True)
        process = self._context.Process(target=_inside, args=(call, order, str(result), str(log)))
        try:
            resource_tracker.ensure_running()  # the server needs it, and to begin it lets interrupts in
            with _interrupts_held():  # also in the server: while it imports, Ctrl-C would be a traceback of its own
                ensure_running()
            process.start()
            process.join(limit_s)
            late = process.is_alive()
        finally:
            _ended(process)
        if late:
            raise CellFailed(f"not over after {limit_s:.0f} s", late=True)
        if not result.exists():
            code = process.exitcode or 0
            how = f"ended by signal {-code}" if code < 0 else f"ended with exit code {code} and without a result"
            raise CellFailed(f"{how}: {_last_line(log)}")
        told: dict[str, Any] = json.loads(result.read_text())
        result.unlink()
        if "failed" in told:
            raise CellFailed(told["failed"], refused=told["refused"])
        return told


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C comes afterwards, in this thread and, where they let it, in processes that it begins meanwhile."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _ended(process: BaseProcess) -> None:
    """It is gone when this returns, and where a second Ctrl-C ends this: else the proof waits for it at exit."""
    try:
        if process.is_alive():
            process.terminate()
            process.join(_GOES_AFTER_S)
    finally:
        if process.is_alive():
            process.kill()
            process.join()


def _inside(call: str, order: Any, result: str, log: str) -> None:
    """In the process. It ends with its parent."""
    signal.signal(signal.SIGTERM, _end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    end_with_parent(os.getppid(), signal.SIGTERM)
    proof = parent_process()  # the kernel's parent is the server that forks cells
    if proof is not None and not proof.is_alive():
        _end(0, None)
    with open(log, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    module, _, name = call.partition(":")
    try:
        told = getattr(import_module(module), name)(order)
    except Exception as error:
        traceback.print_exc()
        told = {"failed": f"{type(error).__name__}: {error}", "refused": isinstance(error, Infeasible)}
    write_whole(result, json.dumps(told).encode())


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    """What is left as it was is put back on the way out."""
    raise SystemExit(128 + signal.SIGTERM)


def _last_line(log: Path) -> str:
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").split("\n")
        return next((line[:200] for line in reversed(lines) if line.strip()), "it said nothing")
    return "it said nothing"
