"""What is done before a script imports torch, and as it has. The script may set what torch and the libraries below it
read once, as they are loaded, such as OMP_NUM_THREADS; so until then nothing here has loaded them."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

from sentinel.cli.common import FAILED, INTERRUPTED, OK, code_of
from sentinel.core.errors import CapabilityError, SentinelError
from sentinel.system.progress import on_stderr


def is_loaded() -> bool:
    """Whether this process has torch already."""
    return "torch" in sys.modules


def require_torch() -> None:
    """Raises CapabilityError where no torch is installed."""
    if not is_loaded() and find_spec("torch") is None:
        raise CapabilityError(
            "profiling a training step",
            "torch cannot be imported (No module named 'torch')",
            "in a checkout: pip install '.[torch]'",
        )


def refused_apart(check: Callable[[], object], *, debug: bool) -> int:
    """OK, or an exit code where `check()` raises, which is told on stderr. It runs in a forked process: what it imports
    is not in this one."""
    if not (child := os.fork()):
        code = FAILED
        try:
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
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class AfterTorch:
    """On sys.meta_path until this process has imported torch: then it calls `begin()` once, in the thread that did."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin, self._process = begin, os.getpid()
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where torch is, by a loader that calls `begin()` once it is loaded. Others are found as ever."""
        if name != "torch":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next((spec for finder in others if (spec := finder.find_spec(name, path, target))), None)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_begin(module: ModuleType) -> None:
            load(module)
            self._loaded()

        spec.loader.exec_module = load_and_begin  # type: ignore[method-assign]
        return spec

    def _loaded(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            if os.getpid() == self._process:  # a forked child trains by itself
                self._begin()


@contextlib.contextmanager
def away_from(folder: str) -> Iterator[None]:
    """In its block no module is taken from `folder`, that of a script, for one of Python's own library that has its
    name; after it, those of the script's have their names."""
    theirs = {name: sys.modules.pop(name) for name in sorted(sys.stdlib_module_names) if _is_in(folder, name)}
    before, looked_in = set(sys.modules), sys.path[:1] == [folder]
    if looked_in:
        del sys.path[0]
    try:
        yield
    finally:
        if looked_in:
            sys.path.insert(0, folder)
        for name in sys.stdlib_module_names & (set(sys.modules) - before):
            if any(os.path.exists(os.path.join(folder, path)) for path in (f"{name}.py", f"{name}/__init__.py")):
                del sys.modules[name]  # it is looked for again when the script asks
        sys.modules.update(theirs)


def _is_in(folder: str, name: str) -> bool:
    """Whether this process has the module from a file in the folder."""
    return os.path.dirname(getattr(sys.modules.get(name), "__file__", None) or "") == folder
