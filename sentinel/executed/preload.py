"""What the children share: modules that the script imports anyway, imported once, in pinned memory."""

from __future__ import annotations

import ast
import contextlib
import ctypes
import gc
import importlib
from pathlib import Path

_MCL_CURRENT, _MCL_ONFAULT = 1, 4


def preload(script: str) -> None:
    """Import what the script imports at its top from elsewhere than its own folder: forked children have it then.

    Raises OSError if it cannot be read; what cannot be imported is left to the script.
    """
    beside = {path.stem for path in Path(script).resolve().parent.iterdir()}
    for node in ast.parse(Path(script).read_text()).body:
        for module, names in _imported(node):
            if module.split(".")[0] not in beside:
                with contextlib.suppress(ImportError, AttributeError):
                    found = importlib.import_module(module)
                    for name in names:
                        getattr(found, name, None)  # a lazy module imports it now
    for asked_later in ("torch._dynamo", "pandas", "sentinel.reports.text"):  # by the first optimizer, by a report
        importlib.import_module(asked_later)
    gc.collect()
    gc.freeze()  # what looks for references to tensors, or for garbage, need not look here, nor copy these pages


def _imported(node: ast.stmt) -> list[tuple[str, list[str]]]:
    """(module, names from it) of an import statement."""
    if isinstance(node, ast.Import):
        return [(alias.name, []) for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [(node.module, [alias.name for alias in node.names])]
    return []


def pin_what_is_there() -> bool:
    """Pin what this process has, so that the kernel's tiering makes no room of it; whether it was allowed.

    Forked children do not inherit the pin, but the pages that they share are pinned by it.
    """
    return bool(ctypes.CDLL(None).mlockall(_MCL_CURRENT | _MCL_ONFAULT) == 0)
