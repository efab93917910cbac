"""The command line: one file per verb. `main` parses, calls the verb, and turns errors into one line and a code."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Sequence
from functools import partial

from sentinel import __version__
from sentinel.cli.common import FAILED, INTERRUPTED, USAGE, code_of
from sentinel.cli.script import EndsByInterrupt
from sentinel.core.errors import SentinelError
from sentinel.system.progress import on_stderr

_EPILOG = """\
a typical session:
  sentinel doctor                                      what this host allows, and how to allow more
  sentinel calibrate                                   measure its memory, so that plans know its speeds
  sentinel run --fast 20% train.py                     train with a fifth of the memory fast; writes a report
  sentinel run --dry-run --save-profile p.safetensors train.py
                                                       profile a step, say how much fast memory is enough
  sentinel plan p.safetensors --machine cxl-m5 --fast 8GiB -o plan.json
  sentinel simulate p.safetensors plan.json --machine cxl-m5
  sentinel compare p.safetensors --machine cxl-m5      how much fast memory is enough
  sentinel run --plan plan.json train.py               apply the plan without profiling
  sentinel estimate train:factory --batch 8            before any run: how much memory, how fast, what to buy
  sentinel prove                                       an hour at most: predict and measure placements here
  sentinel data plan photos.tar                        what reading training data in random order costs here

exit codes:
  0    done
  1    failed; one line on stderr says why
  2    the command was not understood
  3    infeasible: the step needs more fast memory, or more memory in all, than there is
  130  interrupted
  143  ended by SIGTERM; `run` writes its report first
  `run` exits with the script's own exit code, even if placement or report failed; by SIGINT where Ctrl-C ended it.
"""


def parser() -> argparse.ArgumentParser:
    """The whole command line. Imports nothing heavy: a verb does when it runs."""
    from sentinel.cli import calibrate, compare, data, doctor, estimate, plan, prove, report, run, simulate

    top = argparse.ArgumentParser(
        prog="sentinel",
        description="Place the tensors of a PyTorch training step across fast and slow memory.",
        epilog=_EPILOG,
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, indent_increment=1),  # or a long verb wraps
    )
    top.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    top.add_argument("--debug", action="store_true", help="show the traceback of an error")
    verbs = top.add_subparsers(metavar="VERB", dest="verb", required=True, title="verbs")
    for verb in (run, plan, simulate, compare, estimate, report, data, doctor, calibrate, prove):
        verb.add_to(verbs)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own); returns the exit code."""
    debug = False
    try:
        arguments = parsed(sys.argv[1:] if argv is None else argv)
        debug = arguments.debug
        code: int = arguments.execute(arguments)
        with contextlib.suppress(ValueError, AttributeError):  # the script has closed it, or there is none
            sys.stdout.flush()  # a pipe that nobody reads any more is told here, not as Python ends
        return code
    except BrokenPipeError:
        _leave_stdout()  # as head and less leave it: no word
        return FAILED
    except SentinelError as error:
        if debug:
            raise
        on_stderr(f"sentinel: {error}")
        return code_of(error)
    except OSError as error:
        if debug:
            raise
        if error.filename is None and isinstance(error, FileNotFoundError) and _folder_was_removed():
            on_stderr("sentinel: the current folder was removed; go to one that is there")
        elif error.filename is None:  # of no file that is named: most often what is printed, on a full disk
            _leave_stdout()
            on_stderr(f"sentinel: {error.strerror or error}; `sentinel --debug VERB` shows where")
        else:
            on_stderr(f"sentinel: {error.filename}: {error.strerror}; check the path")
        return FAILED
    except KeyboardInterrupt:
        on_stderr("sentinel: interrupted")
        return INTERRUPTED
    except EndsByInterrupt:
        sys.excepthook = lambda *_: None  # it was shown
        raise KeyboardInterrupt from None  # by which Python ends the process by the signal, once all else has ended


def _folder_was_removed() -> bool:
    """Whether the current one is gone: os.getcwd names no file in its error."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _leave_stdout() -> None:
    """What is still to be printed goes nowhere, so that Python says nothing more as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments; without any, the help on stderr and the exit code of what is not understood."""
    top = parser()
    if not argv:
        top.print_help(sys.stderr)
        raise SystemExit(USAGE)
    arguments = top.parse_args(argv)
    if arguments.verb != "run" and isinstance(sys.stdout, io.TextIOWrapper):  # what a script prints is its own affair
        sys.stdout.reconfigure(errors="replace")  # a bar that a locale such as C cannot print is a `?`, not an error
    return arguments
