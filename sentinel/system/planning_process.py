"""PlanningProcess: a plan that another process makes, so that the one that trains does not wait for it."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sentinel.core.errors import PlanError, SentinelError
from sentinel.system.parent_end import end_with_parent

if TYPE_CHECKING:
    from sentinel.planner.make_plan import MadePlan, PlanOrder

_NICE = 10
"""Training goes first where processors are scarce."""
_ROOT = str(Path(__file__).parents[2])
_BEGIN = f"""
import sys
if {_ROOT!r} not in sys.path:  # a checkout, say: the same package as here
    sys.path.insert(0, {_ROOT!r})
from sentinel.system.planning_process import main
main(int(sys.argv[1]))
"""


class PlanningLost(PlanError):
    """The process that planned has ended without an answer."""


class PlanningProcess:
    """`order` is being planned. Raises OSError where no process can be made. It ends with the thread that made it."""

    def __init__(self, order: PlanOrder) -> None:
        if not sys.executable:
            raise FileNotFoundError("this program is no Python that could be started once more")
        with contextlib.ExitStack() as stack:
            asked, self._made, self._said = (stack.enter_context(_in_memory(name)) for name in ("order", "plan", "log"))
            pickle.dump(order, asked, protocol=5)
            asked.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BEGIN, str(os.getpid())],
                stdin=asked,
                stdout=self._made,
                stderr=self._said,
                process_group=0,  # which Ctrl-C spares; in this session, so that `nice` counts against training
            )
            stack.pop_all()
            asked.close()

    @property
    def has_ended(self) -> bool:
        """Whether the other process has: `made` has an answer."""
        return self._process.poll() is not None

    def made(self) -> MadePlan | None:
        """The plan, once; None as long as it is being made. Raises PlanError where there is none, PlanningLost where
        the process has ended without an answer."""
        code = self._process.poll()
        if code is None:
            return None
        with self._made, self._said:
            self._made.seek(0)
            try:
                found: MadePlan | str | None = pickle.load(self._made) if code == 0 else None  # of our own process
            except (EOFError, pickle.UnpicklingError):
                found = None
            if isinstance(found, str):
                raise PlanError(found)
            if found is not None:
                return found
            self._said.seek(0)
            last = self._said.read().decode(errors="replace").rstrip().rpartition("\n")[2][:200]
            raise PlanningLost(f"the process that planned ended with {code}: {last or 'it said nothing'}")

    def cancel(self) -> None:
        """Nobody wants the plan any more. May be called again, and after `made`."""
        self._process.kill()
        self._process.wait()
        self._made.close()
        self._said.close()


def _in_memory(name: str) -> io.BufferedRandom:
    return open(os.memfd_create(f"sentinel-{name}"), "w+b")


def main(parent: int) -> None:
    """In the other process: the plan, or why there is none, on stdout."""
    end_with_parent(parent, signal.SIGKILL)
    os.nice(_NICE)
    with open(os.dup(1), "wb") as answer:
        os.dup2(2, 1)  # whatever a solver prints is no part of the answer
        order: PlanOrder = pickle.load(sys.stdin.buffer)
        try:
            made: MadePlan | str = order.made()
        except SentinelError as error:
            made = str(error)
        pickle.dump(made, answer, protocol=5)
