"""A process that does not outlive its parent, however that ends: by a signal, for memory, or killed."""

from __future__ import annotations

import ctypes
import os
import select
import signal
from threading import Thread

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int, number: signal.Signals) -> None:
    """From now on the kernel sends this process `number` when its parent ends; at once if that is gone already.

    `parent`: its process id, read before this process was forked. Only the thread that forked counts as the parent.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def end_after(process: int) -> None:
    """From now on this process ends when `process` has ended, which need not be its parent; at once if that is gone
    already. Nothing of Python runs then: a thread that waits for a lock or a pipe cannot hold the end up. Where the
    kernel has no descriptors of processes nothing happens."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        os._exit(1)
    except OSError:
        return
    Thread(target=_exit_at_end_of, args=(handle,), name="sentinel-end", daemon=True).start()


def _exit_at_end_of(handle: int) -> None:
    ends = select.poll()
    ends.register(handle, select.POLLIN)
    ends.poll()
    os._exit(1)
