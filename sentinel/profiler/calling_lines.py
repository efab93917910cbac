"""Lines of the program that operators were called from: what the shim saw, as people write them."""

from __future__ import annotations

import ctypes
import os
import sys
import sysconfig
from pathlib import Path

import torch

from sentinel.profiler import torch_shim

_SENTINEL = Path(__file__).parents[1]
_LIBRARIES = ("site-packages", "dist-packages")


def _ours() -> tuple[str, ...]:
    """Beginnings of the paths that name no line: torch, Sentinel, Python's own modules."""
    folders = [Path(torch.__file__).parent, _SENTINEL, Path(sysconfig.get_path("stdlib")), Path(os.__file__).parent]
    paths = {str(folder) + os.sep for folder in (*folders, *(folder.resolve() for folder in folders))}
    return ("<frozen ", *sorted(paths))


def begin() -> None:
    """The recording that begins notes lines."""
    ours = [path.encode(errors="surrogateescape") for path in _ours()]
    libraries = [f"{os.sep}{name}{os.sep}".encode() for name in _LIBRARIES]
    skipped, within = ((ctypes.c_char_p * len(words))(*words) for words in (ours, libraries))
    note = torch_shim.function("sn_recorder_note_lines", None, *([ctypes.c_uint64, ctypes.c_void_p] * 2))
    note(len(ours), ctypes.cast(skipped, ctypes.c_void_p), len(libraries), ctypes.cast(within, ctypes.c_void_p))


def seen() -> tuple[str, ...]:
    """What was noted: `train.py:31`, or `train.py:31 > package/module.py:310` where the program called a library."""
    count = torch_shim.function("sn_recorder_line_count", ctypes.c_uint64)()
    line_of = torch_shim.function("sn_recorder_line", ctypes.c_char_p, ctypes.c_uint64)
    return tuple(_written(os.fsdecode(line_of(i))) for i in range(count))


def _written(line: str) -> str:
    """A line of the shim's, the program's part first, without the folders of this host."""
    return " > ".join(_short(*part.rsplit(":", 1)) for part in line.split("\n"))


def _short(path: str, number: str) -> str:
    for name in _LIBRARIES:
        _, joint, after = path.rpartition(f"{os.sep}{name}{os.sep}")
        if joint:
            return f"{after}:{number}"
    for folder in _here():
        if path.startswith(folder + os.sep):
            return f"{path[len(folder) + 1 :]}:{number}"
    return f"{os.path.basename(path)}:{number}"


def _here() -> tuple[str, ...]:
    """The script's folder and the current one; none where the current one has been removed."""
    try:
        return os.path.dirname(os.path.abspath(next(iter(sys.argv), "") or ".")), os.path.abspath(os.curdir)
    except OSError:
        return ()
