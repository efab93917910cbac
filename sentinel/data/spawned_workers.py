"""Workers that are started by `spawn`: one that is killed as it starts holds nobody up."""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing import popen_spawn_posix
from multiprocessing.context import BaseContext, SpawnContext, SpawnProcess
from typing import Any

_KEEPS_THE_WORKERS_END = sys.version_info < (3, 13, 8)
"""Python's starter has the end that a worker reads from open while it writes to it: of a worker that has died it then
waits for ever, if that is more than a pipe holds (python/cpython issue 118981)."""


def context_of(asked: str | BaseContext | None) -> str | BaseContext | None:
    """As `asked`; of Python's own spawn, one whose workers may be killed as they start."""
    method = multiprocessing.get_start_method(allow_none=True) if asked is None else asked
    return _Spawn() if method == "spawn" or type(method) is SpawnContext else asked


class _Popen(popen_spawn_posix.Popen):
    _fds: list[int]

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "sentinel" and _KEEPS_THE_WORKERS_END:  # the worker runs, and nothing is written yet
            with open(os.devnull, "rb") as nothing:
                os.dup2(nothing.fileno(), self._fds[-2], inheritable=False)

    def _launch(self, process_obj: Any) -> None:
        try:
            super()._launch(process_obj)  # type: ignore[misc]
        except BrokenPipeError:
            if not hasattr(self, "sentinel"):
                raise
            # it was started, and has ended: whoever looks at it sees that


class _Process(SpawnProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        return _Popen(process_obj)


class _Spawn(SpawnContext):
    Process = _Process
