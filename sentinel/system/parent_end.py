"""A process that does not outlive its parent, however that ends: by a signal, for memory, or killed."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int, number: signal.Signals) -> None:
    """From now on the kernel sends this process `number` when its parent ends; at once if that is gone already.

    `parent`: its process id, read before this process was forked. Only the thread that forked counts as the parent.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)
