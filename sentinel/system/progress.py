"""Progress: long work says on stderr that it goes on."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

QUIET_SECONDS = 2.0
"""Work shorter than this is not announced."""


def say(sentence: str) -> None:
    """A sentence on stderr, on a line of its own: a progress bar that stands there is drawn anew below it. Where stderr
    takes nothing, nothing is said."""
    with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):  # full, closed, None, within a write
        clear = "\r\x1b[K" if sys.stderr.isatty() else ""
        sys.stderr.write(f"{clear}sentinel: {sentence}\n")
        sys.stderr.flush()


def warn(sentence: str, stacklevel: int) -> None:
    """A RuntimeWarning that never raises: it comes from within the script's own step. `stacklevel`: 1 is the caller.

    Where warnings are errors, the sentence is said, and whoever has set sys.unraisablehook gets the error.
    """
    try:
        warnings.warn(sentence, RuntimeWarning, stacklevel=stacklevel + 1)
    except Exception as error:
        say(sentence)
        if sys.unraisablehook is not sys.__unraisablehook__:  # Python's own takes nothing that is made here
            told = SimpleNamespace(
                exc_type=type(error),
                exc_value=error,
                exc_traceback=error.__traceback__,
                err_msg="Warning that is an error, within a step",
                object=None,
            )
            with contextlib.suppress(Exception):
                sys.unraisablehook(cast("Any", told))


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
