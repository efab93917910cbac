"""Progress: long work says on stderr that it goes on."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

QUIET_SECONDS = 2.0
"""Work shorter than this is not announced."""


def say(sentence: str) -> None:
    """A sentence on stderr, on a line of its own: a progress bar that stands there is drawn anew below it. Where stderr
    takes nothing, nothing is said."""
    with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):  # full, closed, None, within a write
        clear = "\r\x1b[K" if sys.stderr.isatty() else ""
        sys.stderr.write(f"{clear}sentinel: {sentence}\n")
        sys.stderr.flush()


@contextmanager
def telling(what: str, state: Callable[[], str] = str) -> Iterator[None]:
    """Says on stderr what takes so long, from QUIET_SECONDS on and every five seconds after that.

    `state()`: how far it is, in few words. Wherever an interrupt comes, the telling ends with the work.
    """
    done, began = threading.Event(), time.monotonic()
    work = _Work()  # lives as long as this frame does
    ended = weakref.finalize(work, done.set)

    def tell() -> None:
        wait = QUIET_SECONDS
        while not done.wait(wait):
            how_far = f" ({said})" if (said := state()) else ""
            say(f"{what}{how_far}, {time.monotonic() - began:.0f} s so far")
            wait = 5.0

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended()
        teller.join()


class _Work:
    """Something that can be referred to weakly."""
