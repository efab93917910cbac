"""Raises KeyboardInterrupt at one line of Sentinel, or notes which of its lines are run."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import sentinel

PACKAGE = str(Path(sentinel.__file__).parent) + os.sep

Place = tuple[str, str, int]
"""(part of the life, file within the package, line)."""


class Interrupter:
    """Notes each place of ours when it is first run; with a `target`, only raises KeyboardInterrupt there, and
    follows nothing else: to be followed takes most of a life's time."""

    def __init__(self, target: Place | None) -> None:
        self.places: dict[Place, None] = {}
        self.raised = False
        self._part = ""
        self._target = target
        self._followed = PACKAGE if target is None else PACKAGE + target[1]

    @contextlib.contextmanager
    def within(self, part: str) -> Iterator[None]:
        """Follows what is run, as this part of the life, if anything of it matters."""
        self._part = part
        if not self.raised and (self._target is None or part == self._target[0]):
            sys.settrace(self)
        try:
            yield
        finally:
            sys.settrace(None)

    def __call__(self, frame: FrameType, _event: str, _arg: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(self._followed) else None

    def _line(self, frame: FrameType, event: str, _arg: object) -> Any:
        if event == "line":
            place = (self._part, frame.f_code.co_filename.removeprefix(PACKAGE), frame.f_lineno)
            if place not in self.places:
                self.places[place] = None
                if place == self._target:
                    self.raised = True
                    sys.settrace(None)
                    raise KeyboardInterrupt
        return self._line
