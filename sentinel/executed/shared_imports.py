"""What the children share: modules that the script imports anyway, imported once, in pinned memory."""

from __future__ import annotations

import ast
import contextlib
import ctypes
import gc
import importlib
from pathlib import Path

import numpy as np

from sentinel.core.units import PAGE_BYTES

_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
_MADV_POPULATE_WRITE = 23
"""Linux 5.14; where it is missing, pages are copied when they are written, and count as the job's."""


def import_shared(script: str) -> None:
    """Import what the script imports at its top from elsewhere than its own folder: forked children have it then.

    Raises OSError if it cannot be read; what cannot be parsed or imported is left to the script, whose children say so.
    """
    try:
        program = ast.parse(Path(script).read_bytes())
    except (SyntaxError, ValueError):  # ValueError: it has a NUL, before Python 3.12
        return
    beside = {path.stem for path in Path(script).resolve().parent.iterdir()}
    for node in program.body:
        for module, names in _imported(node):
            if module.split(".")[0] not in beside:
                with contextlib.suppress(ImportError, AttributeError):
                    found = importlib.import_module(module)
                    for name in names:
                        getattr(found, name, None)  # a lazy module imports it now
    for asked_later in ("torch._dynamo", "pandas", "sentinel.reports.sections"):  # by the first optimizer, by a report
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


def pin_present_pages() -> bool:
    """Pin what this process has and takes, so that the kernel's tiering makes no room of it; whether it was allowed.

    Forked children do not inherit the pin, but the pages that they share are pinned by it.
    """
    return bool(ctypes.CDLL(None).mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT) == 0)


def own_present_pages() -> None:
    """In a forked child: copy every page that it shares with the parent and may write, now and not little by little.

    What it takes of a node from then on is what the job takes. The pages are pinned, as the parent's are.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.malloc_trim(ctypes.c_size_t(0))
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        span, rights = line.split()[:2]
        if rights.startswith("rw") and rights.endswith("p"):
            start, stop = (int(word, 16) for word in span.split("-"))
            for begin, nbytes in _present(start, stop):
                libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(nbytes), _MADV_POPULATE_WRITE)
    libc.mlockall(_MCL_CURRENT | _MCL_ONFAULT)  # not what the job takes later


def _present(start: int, stop: int) -> list[tuple[int, int]]:
    """(address, nbytes) of the runs of pages in [start, stop) that are in memory."""
    with open("/proc/self/pagemap", "rb", buffering=0) as file:
        file.seek(start // PAGE_BYTES * 8)
        entries = np.frombuffer(file.read((stop - start) // PAGE_BYTES * 8), np.uint64)
    there = np.concatenate([[0], (entries >> np.uint64(63)).astype(np.int8), [0]])
    edges = np.flatnonzero(np.diff(there)) * PAGE_BYTES + start
    return [(int(first), int(last - first)) for first, last in edges.reshape(-1, 2)]
