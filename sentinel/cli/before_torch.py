"""What is done before a script imports torch, and as it has. The script may set what torch and the libraries below it
read once, as they are loaded, such as OMP_NUM_THREADS; so until then nothing here has loaded them."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType

from sentinel import need_torch
from sentinel.cli.common import FAILED, INTERRUPTED, OK, code_of
from sentinel.core.errors import SentinelError
from sentinel.system.parent_end import end_with_parent
from sentinel.system.progress import on_stderr, say


def is_loaded() -> bool:
    """Whether this process has torch already."""
    return sys.modules.get("torch") is not None


def require_torch() -> None:
    """As `need_torch`, where no torch is installed; does not import it."""
    if not is_loaded() and find_spec("torch") is None:
        need_torch()


def refused_apart(check: Callable[[], object], *, debug: bool) -> int:
    """OK, or an exit code where `check()` raises, which is told on stderr. It runs in a forked process: what it imports
    is not in this one. Where that process cannot be made, or is killed, nothing is refused: who begins finds it."""
    parent = os.getpid()
    try:
        child = os.fork()
    except OSError as error:
        say(f"what was asked for is checked later: no process could be made for it ({error.strerror})", wrong=True)
        return OK
    if not child:
        code = FAILED
        try:
            atexit._clear()  # those of the parent are not its own
            end_with_parent(parent, signal.SIGKILL)
            check()
            code = OK
        except KeyboardInterrupt:
            code = INTERRUPTED
        except (SentinelError, OSError) as error:
            if debug:
                traceback.print_exc()
            else:
                on_stderr(f"sentinel: {error}")
            code = code_of(error) if isinstance(error, SentinelError) else FAILED
        except BaseException:
            traceback.print_exc()
        finally:
            atexit._run_exitfuncs()  # a library that was compiled for this process alone goes with it
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        say(f"what was asked for is checked later: the process that checked it ended by signal {-code}", wrong=True)
    return max(code, OK)


class AfterTorch:
    """On sys.meta_path: as this process imports torch, it calls `begin()` once, in the thread that does."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin, self._process, self._begun = begin, os.getpid(), False
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where torch is, with a loader that calls `begin()` once it is loaded. Others are found as ever."""
        if name != "torch" or self._begun:
            return None
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next((spec for finder in others if (spec := finder.find_spec(name, path, target))), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Telling(spec.loader, self._loaded)
        return spec

    def _loaded(self) -> None:
        begun, self._begun = self._begun, True
        if not begun and os.getpid() == self._process:  # a forked child trains by itself
            self._begin()


class _Telling(Loader):
    """Loads as `loader` does, whose the module is, and then calls `loaded()`."""

    def __init__(self, loader: Loader, loaded: Callable[[], None]) -> None:
        self._loader, self._told = loader, loaded

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the other one does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As the other one does; then it tells."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._told()


class PythonsOwn:
    """On sys.meta_path: in the thread that made it, modules of Python's own library are not looked for in `folder`."""

    def __init__(self, folder: str) -> None:
        self._folder, self._thread = folder, threading.get_ident()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where it is elsewhere; None for all others, and for what is built in."""
        del path  # those of its library that are not in a package
        if name not in sys.stdlib_module_names or threading.get_ident() != self._thread:
            return None
        return PathFinder.find_spec(name, [each for each in sys.path if each != self._folder], target)


@contextlib.contextmanager
def away_from(folder: str) -> Iterator[None]:
    """In its block no module is taken from `folder`, that of a script, for one of Python's own library that has its
    name; after it, those of the script's have their names."""
    theirs = {name: sys.modules.pop(name) for name in sorted(sys.stdlib_module_names) if _is_in(folder, name)}
    before, finder = set(sys.modules), PythonsOwn(folder)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in sys.stdlib_module_names & (set(sys.modules) - before):
            if any(os.path.exists(os.path.join(folder, path)) for path in (f"{name}.py", f"{name}/__init__.py")):
                del sys.modules[name]  # it is looked for again when the script asks
        sys.modules.update(theirs)


def _is_in(folder: str, name: str) -> bool:
    """Whether this process has the module from a file in the folder, or from a package in it."""
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return file in (os.path.join(folder, f"{name}.py"), os.path.join(folder, name, "__init__.py"))
