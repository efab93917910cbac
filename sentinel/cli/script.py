"""Runs a script or a module in this process as Python would: argv, sys.path and `__main__` are its own."""

from __future__ import annotations

import builtins
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, NoReturn

from sentinel.core.errors import SentinelError, UsageError
from sentinel.core.rules import require
from sentinel.system.progress import on_stderr

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


@dataclass(frozen=True)
class Script:
    """What is to be run. `name`: its argv[0]. `folder` comes first on sys.path; `spec` is that of a module, None for
    a file."""

    code: CodeType
    name: str
    path: str
    folder: str
    spec: ModuleSpec | None = None


def script_at(path: str) -> Script:
    """The script in a file. OSError if it cannot be read, UsageError for a program that runs scripts; a syntax error is
    shown as Python shows it."""
    require(
        (
            re.fullmatch(r"python[0-9.]*", os.path.basename(path)) and not os.path.isdir(path),
            f"{path} is no training script, it runs scripts",
            "leave it out: `sentinel run train.py` runs a script as Python does, `-m` a module",
        ),
        (os.path.isdir(path), f"{path} is a folder, no script", f"name the script in it, such as {path}/__main__.py"),
        (path == "-", "-: a script is read from a file", "`sentinel run /dev/stdin < train.py` reads one from stdin"),
    )
    with open(path, "rb") as file:
        source = file.read()
    if b"\0" in source:
        raise UsageError(
            f"{path} is no script: it is compiled, an archive, or no Python at all",
            "give the script's source, or a module with -m",
        )
    absolute = os.path.abspath(path)  # it is found also where the script goes to another folder
    try:
        code = compile(source, absolute, "exec", dont_inherit=True)
    except SyntaxError:
        _show_syntax_error()
    return Script(code, path, absolute, os.path.dirname(os.path.realpath(path)))


def module_named(name: str) -> Script:
    """The module `name`, or `__main__` of the package `name`, as `python -m` finds it: from this folder first."""
    import importlib.util  # a hundredth of a second, that the help of the command line would wait for
    from importlib.abc import InspectLoader

    folder = os.getcwd()
    _look_first_in(folder)
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
        code = spec.loader.get_code(spec.name) if spec is not None and isinstance(spec.loader, InspectLoader) else None
    except SyntaxError:
        _show_syntax_error()
    except (ImportError, ValueError) as error:
        raise UsageError(f"module {name!r} cannot be run: {error}", _AS_PYTHON) from error
    if spec is None or code is None:
        raise UsageError(f"there is no module {name!r} to run, from {folder} or installed", _AS_PYTHON)
    path = spec.origin or name
    return Script(code, path, path, folder, spec)


def function_named(text: str) -> Callable[..., object]:
    """What `package.module:function`, found from this folder first, or `path/to/script.py:function` names.

    Raises UsageError where there is none.
    """
    module, _, name = text.partition(":")
    if not (module and name):
        form = f"{module}:function" if module else "package.module:function or path/to/script.py:function"
        remedy = f"write {form}, a function that makes the job"
        if _is_path(module):
            remedy += f"; a script as it is: sentinel run --dry-run {module}"
        raise UsageError(f"{text!r} names no function", remedy)
    try:
        found = _imported(module)
    except (Exception, SystemExit) as error:  # a script that is not guarded runs, and may leave
        remedy = _UNGUARDED if isinstance(error, SystemExit) else _AS_PATH if _is_path(module) else _AS_PYTHON
        told = str(error) or "no message"
        raise UsageError(
            f"{module!r} cannot be imported from {os.getcwd()}: {type(error).__name__}: {told}", remedy
        ) from (error)
    made: object = getattr(found, name, None)
    if callable(made):
        return made
    there = [key for key, value in vars(found).items() if _is_function_of(value, found.__name__)]
    has = f"it has {', '.join(there)}" if there else "it has none"
    raise UsageError(f"{module!r} has no function {name!r}", f"name one that makes the job: {has}")


def _imported(module: str) -> ModuleType:
    import importlib
    from importlib.util import module_from_spec, spec_from_file_location

    if not _is_path(module):
        _look_first_in(os.getcwd())
        return importlib.import_module(module)
    _look_first_in(os.path.dirname(os.path.realpath(module)))
    name = os.path.basename(module).removesuffix(".py")
    spec = spec_from_file_location(name, module)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(module)
    found = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def _is_path(module: str) -> bool:
    return module.endswith(".py")


def _is_function_of(value: object, module: str) -> bool:
    return isinstance(value, FunctionType) and value.__module__ == module and not value.__name__.startswith("_")


_AS_PATH = "name the file by its path from this folder"
_UNGUARDED = "importing it must not train: put what runs below `if __name__ == '__main__':`"
_AS_PYTHON = "name it as `python -m` takes it"


def _show_syntax_error() -> NoReturn:
    traceback.print_exc(limit=0)
    raise SystemExit(1) from None


def _look_first_in(folder: str) -> None:
    """Modules are found there before elsewhere, unless Python was told not to (PYTHONSAFEPATH, -P, -I): then it has put
    no script's folder first, and the first entry of sys.path is, say, of PYTHONPATH."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


def run_as_main(script: Script, arguments: list[str]) -> int:
    """Run it as `__main__`; returns its exit code, or BY_INTERRUPT. An error of its own is shown by sys.excepthook, and
    its traceback begins in it."""
    main = ModuleType("__main__")
    main.__file__ = script.path
    main.__dict__["__builtins__"] = builtins
    if script.spec is not None:
        main.__spec__, main.__loader__, main.__package__ = script.spec, script.spec.loader, script.spec.parent
    sys.modules["__main__"] = main
    sys.argv = [script.name, *arguments]
    _look_first_in(script.folder)
    try:
        exec(script.code, main.__dict__)
    except SystemExit as leaving:
        return status_of(leaving)
    except SentinelError:
        raise
    except BaseException as error:
        return _shown(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))  # without this frame
    return 0


BY_INTERRUPT = -signal.SIGINT
"""In the place of an exit code: a program whose KeyboardInterrupt nobody caught ends by the signal. A shell that runs
several knows by that to run no other."""


class EndsByInterrupt(BaseException):
    """All is done, and the process is to end by SIGINT."""


def _shown(error: BaseException) -> int:
    """The exit code of an error that nobody caught, once it is shown as Python shows it."""
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as leaving:
        return status_of(leaving)
    except Exception:  # of a hook of the script's
        traceback.print_exc()
        traceback.print_exception(error)
    return BY_INTERRUPT if isinstance(error, KeyboardInterrupt) else 1


def status_of(leaving: SystemExit) -> int:
    """The exit code that Python gives for `sys.exit(...)`."""
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    on_stderr(str(leaving.code))
    return 1
