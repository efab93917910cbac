"""Launchers: programs that start the processes that train. Sentinel belongs into each of these, not around those."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from sentinel.core.errors import UsageError

REMEDY = "start Sentinel in each: `torchrun --nproc-per-node N --no-python sentinel run train.py`"
_OWN = ("run", "-m", "--module", "--auto")
_THEIRS = ("-m", "--module", "--no-python", "--no_python")
"""Words of a command line that are said again, or not at all, in the one that works."""


_Launcher = tuple[tuple[str, ...], str, str, str]
_TORCHRUN = (("python", "-m", "torch.distributed.run"), "--no-python", "torch.distributed.run", "get_args_parser")
_ACCELERATE = (("accelerate", "launch"), "--no_python", "accelerate.commands.launch", "launch_command_parser")
LAUNCHERS: dict[str, _Launcher] = {
    "torchrun": _TORCHRUN,
    "torch.distributed.run": _TORCHRUN,
    "torch.distributed.launch": _TORCHRUN,
    "accelerate": _ACCELERATE,
    "accelerate-launch": _ACCELERATE,
    "accelerate.commands.launch": _ACCELERATE,
    "accelerate.commands.accelerate_cli": _ACCELERATE,
}
"""Modules and programs: how each is called, its option to start a program as it is, and the module and function of its
own that gives the parser of its command line."""


def require_no_launcher(arguments: argparse.Namespace) -> None:
    """Raises UsageError, with the command that works, for a module or script that starts the processes that train:
    Sentinel would watch the one that waits."""
    name = arguments.script if arguments.module else os.path.basename(arguments.script)
    if name not in LAUNCHERS:
        return
    words = list(arguments.arguments)
    if name in ("accelerate", "accelerate.commands.accelerate_cli"):
        words = words[1:]  # launch
    command = command_for(LAUNCHERS[name], words, _own_options(arguments))
    remedy = f"{REMEDY}; here: `{command}`" if command else REMEDY
    raise UsageError(f"{arguments.script} starts other processes, which do the training", remedy)


def command_for(launcher: _Launcher, words: Sequence[str], own: Sequence[str]) -> str:
    """The command that has Sentinel, with `own` options, in each process that `launcher` starts for `words`; "" where
    its command line is not understood, or starts something else than a script."""
    called, as_it_is, module_of_parser, maker = launcher
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            parser = getattr(importlib.import_module(module_of_parser), maker)()
            told: Any = parser.parse_args(list(words))
    except (ImportError, AttributeError, SystemExit, argparse.ArgumentError):
        return ""
    script = [told.training_script, *told.training_script_args]
    if told.no_python or not told.training_script or list(words[-len(script) :]) != script:
        return ""
    options = [word for word in words[: -len(script)] if word not in _THEIRS]
    module = ["-m"] if told.module else []
    return shlex.join([*called, *options, as_it_is, "sentinel", "run", *own, *module, *script])


def _own_options(arguments: argparse.Namespace) -> list[str]:
    """What the command line says to Sentinel, before the script."""
    rest = [arguments.script, *arguments.arguments]
    words = sys.argv[1:]
    return [word for word in words[: -len(rest)] if word not in _OWN] if words[-len(rest) :] == rest else []
