"""The kinds of lives: one whose slow memory is an emulated tier, and one whose slow memory is a file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import sentinel
from sentinel.profiler.pages import native_touch
from sentinel.reports import Report
from sentinel.runtime import RUNTIME
from sentinel.session.passive import PassiveSession
from sentinel.tiers.file_tier import FramedCounters
from sentinel.tiers.frames import State
from tools.interrupts.life import Life, Part, stop
from tools.interrupts.training import Shape

ROOM_BYTES = 256 << 20


class EmulatedLife(Life):
    """`start_profile()`, a watched step, `end_profile()`, steps that are watched again, applied steps, `stop()`."""

    shape = Shape(width=48, depth=3, steps=9)

    def __init__(self, tracker: str) -> None:
        super().__init__()
        self.asked = {"fast": "40%", "slow": "emulated:cxl-asic-x8", "tracker": tracker}
        _prepare_little()
        self.grow()

    def parts(self) -> Iterator[Part]:
        """See Life."""
        yield Part("start_profile", lambda: sentinel.start_profile(**self.asked))
        yield self.step("watched step", 0)
        yield Part("end_profile", self.end_profile)
        yield from (self.step("step watched again", i) for i in range(1, 3))
        yield from (self.step("applied step", i) for i in range(3, self.shape.steps))
        yield Part("stop", stop)
        yield self.step("step after the end", self.shape.steps)

    def undone(self) -> str:
        """See Life."""
        return ""

    def between_sessions(self) -> None:
        """See Life. The model stays."""

    def within_second(self) -> None:
        """See Life. The model is there."""

    def undone_by_second(self, report: Report) -> str:
        """See Life."""
        return "" if report.executed is not None and report.executed.steps.size else "applied nothing"


def _prepare_little() -> None:
    """Each watch prepares memory, as in a container that has little: else that takes half of the time of a life."""
    leave = native_touch.leave_room
    native_touch.leave_room = lambda nbytes: leave(ROOM_BYTES if nbytes is None else min(nbytes, ROOM_BYTES))


class FileLife(Life):
    """`start_profile()` with the layer that there is, the model, steps of which one is recorded, steps by that record,
    `stop()`, and a step that brings in what is away. Then the model is copied, dropped and made anew within the second
    session: while tensors of one session live, no other can begin. Parameters, gradients and state take 24 MiB; memory
    holds 8."""

    shape = Shape(width=512, depth=6, steps=6)

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=folder))
        self.asked = {"fast": "8MiB", "cap": "8GiB", "slow": f"file:{self.folder}=64MiB"}
        self._told: list[FramedCounters] = []

    def parts(self) -> Iterator[Part]:
        """See Life."""
        yield Part("start_profile", lambda: sentinel.start_profile(self.training.first, **self.asked))
        self.grow()
        yield self.step("step", 0)
        yield Part("end_profile", self.end_profile)
        yield from (self.step("step", i) for i in range(1, 3))
        yield from (self.step("step by the record", i) for i in range(3, self.shape.steps))
        yield Part("stop", stop)
        self._tell()
        yield self.step("step after the end", self.shape.steps)
        self._tell()

    def undone(self) -> str:
        """See Life."""
        before, after = self._told
        away, came_back = before.frames.in_state[State.AWAY], after.frames.read_bytes - before.frames.read_bytes
        return "" if away and came_back else f"{away} granules were away, {came_back} bytes came back"

    def between_sessions(self) -> None:
        """See Life."""
        self.leave()

    def within_second(self) -> None:
        """See Life."""
        self.grow()

    def undone_by_second(self, report: Report) -> str:
        """See Life."""
        told = report.setup.storage
        assert told is not None
        return "" if told.recorded and told.hit_bytes + told.late_bytes else f"read nothing ahead: {told}"

    def _tell(self) -> None:
        session = RUNTIME.last
        if isinstance(session, PassiveSession) and session._framed is not None:
            self._told.append(session._framed.counters())
