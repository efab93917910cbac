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

LOGGER = "sentinel"
"""Name of the logger that has what we say."""

QUIET_SECONDS, AGAIN_SECONDS = 2.0, 5.0
"""Work shorter than the first is not announced; longer work says so again each time that the second is over."""
ONLY_WRONG = False
"""Whether only what went wrong is said: `sentinel run --quiet`."""
STDOUT_IS_THE_SCRIPTS = False
"""Whether nothing of ours may be there, also by a handler of the program's: `sentinel run`."""


def say(sentence: str, *, wrong: bool = False) -> None:
    """A sentence for the logger `sentinel` and on stderr, but once on a terminal: where a handler of the program's
    writes it there, we do not. `wrong`: it tells of something that went wrong, so its level is WARNING, else INFO."""
    if not _logged(sentence, wrong=wrong) and (wrong or not ONLY_WRONG):
        _print(sentence)


def _logged(sentence: str, *, wrong: bool) -> bool:
    """Whether a handler has written the sentence to stdout or stderr. Without handlers that take it, nothing is logged:
    logging's own last resort would print it a second time. Who never imported logging has none."""
    logging = sys.modules.get("logging")
    if logging is None:
        return False
    with contextlib.suppress(Exception):  # of a handler: it is the program's
        logger = logging.getLogger(LOGGER)
        level = logging.WARNING if wrong else logging.INFO
        takers = [handler for handler in _handlers(logger) if handler.level <= level]
        if STDOUT_IS_THE_SCRIPTS and any(_stream(handler) in (sys.stdout, sys.__stdout__) for handler in takers):
            return False
        if takers and logger.isEnabledFor(level):
            logger.log(level, "%s", sentence)
            return any(_shown_by(handler) for handler in takers)
    return False


def _handlers(logger: Any) -> Iterator[Any]:
    """Those that a record of this logger comes to."""
    while logger is not None:
        yield from logger.handlers
        logger = logger.parent if logger.propagate else None


def _shown_by(handler: Any) -> bool:
    """Whether it writes where we do."""
    return _stream(handler) in (sys.stderr, sys.stdout, sys.__stderr__, sys.__stdout__)


def _stream(handler: Any) -> Any:
    """Where it writes; itself where that is not known."""
    return getattr(handler, "stream", None) or getattr(getattr(handler, "console", None), "file", None) or handler


NO_STDERR = (OSError, ValueError, AttributeError, RuntimeError)
"""What comes where stderr is full, closed, None, or within a write."""


def on_stderr(line: str) -> None:
    """The line, if stderr takes it: what is said there is not worth what else was to be done."""
    with contextlib.suppress(*NO_STDERR):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def _print(sentence: str) -> None:
    """On a line of its own: a progress bar that stands there is drawn again below it. Where stderr takes nothing,
    nothing is said."""
    with contextlib.suppress(*NO_STDERR):
        clear = "\r\x1b[K" if sys.stderr.isatty() else ""
        on_stderr(f"{clear}sentinel: {sentence}")


def warn(sentence: str, stacklevel: int) -> None:
    """A RuntimeWarning that never raises: it comes from within the script's own step. `stacklevel`: 1 is the caller.

    Where warnings are errors, the sentence is said, and whoever has set sys.unraisablehook gets the error.
    """
    try:
        warnings.warn(sentence, RuntimeWarning, stacklevel=stacklevel + 1)
    except Exception as error:
        say(sentence, wrong=True)
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
    """Says on stderr what takes so long, from QUIET_SECONDS on and every AGAIN_SECONDS after that.

    `state()`: how far it is, in few words. Wherever an interrupt comes, the telling ends with the work.
    """
    done, began = threading.Event(), time.monotonic()
    work = _Work()  # lives as long as this frame does
    weakref.finalize(work, done.set)

    def tell() -> None:
        wait = QUIET_SECONDS
        while not done.wait(wait):
            how_far = f" ({said})" if (said := state()) else ""
            say(f"{what}{how_far}, {time.monotonic() - began:.0f} s so far")
            wait = AGAIN_SECONDS

    teller = threading.Thread(target=tell, daemon=True)
    with contextlib.suppress(RuntimeError):  # the interpreter ends, or a limit leaves no thread: the work goes on
        teller.start()
    try:
        yield
    finally:
        done.set()  # itself: once Python has run its exit functions, calling a finalizer does nothing
        if teller.ident is not None:
            teller.join()


class _Work:
    """Something that can be referred to weakly."""
