"""OwnerThread: the thread that began a session. Its allocations are managed and its ticks count; others' are not."""

from __future__ import annotations

import threading
from pathlib import Path

from sentinel.core.errors import UsageError
from sentinel.core.step_follower import StepFollower
from sentinel.core.trace import LayerId
from sentinel.migration.memory import ManagedMemory
from sentinel.system import native


class OwnerThread:
    """`foreign_ticks`: how many ticks came from other threads, and so did not count.

    A later thread may get Python's identifier of one that has ended, and the kernel's: a number of the native library
    is never given again.
    """

    def __init__(self) -> None:
        self._calling = native.quick().sn_thread_number
        self._set_owner()
        self.foreign_ticks = 0

    def _set_owner(self) -> None:
        self._thread, self._number = threading.current_thread(), self._calling()
        self._task = threading.get_native_id()

    def accepts_tick(self) -> bool:
        """Whether a tick that comes now is one of the session's."""
        if self._calling() == self._number:
            return True
        self.foreign_ticks += 1
        return False

    @property
    def away(self) -> bool:
        """Whether another thread asks, while this one may be training."""
        if self._here:
            return False
        if isinstance(self._thread, threading._DummyThread):  # Python did not start it, and never hears of its end
            return Path(f"/proc/self/task/{self._task}").exists()
        return self._thread.is_alive()

    @property
    def _here(self) -> bool:
        # a forked child's thread goes on under its parent's number
        return bool(self._calling() == self._number) and self._task == threading.get_native_id()

    def hand_over(self, call: str, memory: ManagedMemory) -> None:
        """The calling thread may end what was begun: where the owner has ended, `memory` is the caller's from now on.

        Raises UsageError, with nothing changed, where the owner is another thread that lives.
        """
        if self._here:
            return
        if self.away:
            raise UsageError(
                f"{call}: the session belongs to thread {self._thread.name!r}, which called start_profile()",
                "call it there, or when that thread has ended",
            )
        memory.own()
        self._set_owner()

    def learn(self, follower: StepFollower) -> tuple[LayerId, ...]:
        """The layers of the profiled step. Raises UsageError where nothing ticked, naming other threads that did."""
        try:
            return follower.learn()
        except UsageError:
            if not self.foreign_ticks:
                raise
        raise UsageError(
            f"end_profile(): all {self.foreign_ticks:,} ticks of the profiled step came from other threads than the one"
            " that called start_profile()",
            "call start_profile() and end_profile() in the thread that trains",
        )

    def notes(self) -> list[str]:
        """What the report must say of ticks from elsewhere."""
        if not self.foreign_ticks:
            return []
        came = f"{self.foreign_ticks:,} ticks came from other threads than the one that called start_profile()"
        return [f"{came}: they did not count, and what was allocated there came from malloc"]
