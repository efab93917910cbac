"""The torch shim: C++ that speaks torch's ABI, compiled once against the torch that it meets."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from sentinel.system import native
from sentinel.system.compiler import Library, compile_into, compile_once, made_ahead

_SOURCES = Path(__file__).parent / "shim"
REDUCERS = _SOURCES / "reducers"
AHEAD = (("sentinel_torch", _SOURCES), ("sentinel_reducers", REDUCERS))
"""What a wheel may bring: (library, the folder of its C++ files)."""


def path() -> Path:
    """Where the shim lies that is loaded. Raises as `library` does."""
    return Path(library()._name)


def loaded(name: str, sources: Path) -> ctypes.PyDLL:
    """The library `name` of the C++ files in the folder `sources`: as a wheel brought it for this torch, else compiled,
    by a host's first call (10 to 20 s). Raises CapabilityError without a compiler."""
    native.library()  # first: calls into it are resolved as this one loads
    made = made_for_torch(name, sources)
    ahead = made_ahead(made)
    if ahead is not None:
        with contextlib.suppress(OSError):  # it needs a newer C++ library than this host has
            return ctypes.PyDLL(str(ahead))
    return ctypes.PyDLL(str(compile_once(made)))


def made_for_torch(name: str, sources: Path) -> Library:
    """What the library `name` of the C++ files in the folder `sources` is made of, for the torch that is imported."""
    root = Path(torch.__file__).parent
    include = root / "include"
    abi = int(torch.compiled_with_cxx11_abi())
    # Without NDEBUG the layout of at::RecordFunction differs from the one in torch's own libraries.
    flags = ("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread", "-DNDEBUG")
    # torch's exceptions pass through this library: they crash in one that a compiler gave a C++ runtime of its own.
    runtime = "libstdc++.so.6"
    folders = (f"-isystem{include}", f"-isystem{include}/torch/csrc/api/include")
    return Library(
        name=name,
        sources=tuple(sorted(sources.glob("*.cpp"))),
        headers=(*sorted(sources.glob("*.h")), *sorted(native.include_folder().glob("*.h"))),
        compile_flags=(*flags, f"-D_GLIBCXX_USE_CXX11_ABI={abi}"),
        link_flags=("-pthread", "-Wl,-z,nodelete", "-lc10", "-ltorch_cpu", f"-l:{runtime}"),
        tag=f"torch-{torch.__version__}",
        compile_paths=(
            *folders,
            *(f"-I{native.include_folder()}", f"-I{sources}"),
            # torch's checks keep the names of files: in a wheel they would tell where it was made
            *(f"-ffile-prefix-map={root}=torch", f"-ffile-prefix-map={sources}={name}"),
        ),
        link_paths=(f"-L{root / 'lib'}", *(f"-L{folder}" for folder in _folders_of(runtime))),
        made_for=f"{torch.__version__} {torch.version.git_version} {headers_of(root)}",
    )


def _folders_of(library: str) -> list[str]:
    """From where this process has it: not every linker searches there. None where the kernel does not tell."""
    with contextlib.suppress(OSError), open("/proc/self/maps", errors="surrogateescape") as maps:
        paths = (line.split(maxsplit=5)[-1].strip() for line in maps)
        return sorted({os.path.dirname(path) for path in paths if os.path.basename(path).startswith(library)})
    return []


def headers_of(root: Path) -> str:
    """A hash of the headers in torch's folder `root`: of the list that its wheel came with, which has a hash of each;
    of the headers themselves where there is none."""
    digest = hashlib.sha256()
    for line in _recorded(root) or _hashed(root / "include"):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def _recorded(root: Path) -> list[str]:
    try:
        wheel = importlib.metadata.distribution("torch")
        if Path(str(wheel.locate_file("torch"))).resolve() != root.resolve():
            return []
        lines = (wheel.read_text("RECORD") or "").splitlines()
    except (importlib.metadata.PackageNotFoundError, OSError):
        return []
    return sorted(line for line in lines if line.startswith("torch/include/") and ",sha256=" in line)


def _hashed(include: Path) -> list[str]:
    files = sorted(file for file in include.rglob("*") if file.is_file())
    return [f"{file.relative_to(include)} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files]


@functools.cache
def library() -> ctypes.PyDLL:
    """The shim, loaded once (`loaded`). Its calls keep the GIL: they handle objects that other threads may hold."""
    return loaded("sentinel_torch", _SOURCES)


def make_ahead(folder: Path) -> None:
    """Compile all that is made for torch into `folder`, as a wheel brings it. Raises CapabilityError without a
    compiler."""
    for name, sources in AHEAD:
        compile_into(made_for_torch(name, sources), folder)


def brought() -> dict[str, str]:
    """Library -> "" where this installation brought it and it loads with the torch that is imported, else why not."""
    return {name: _why_not_brought(made_for_torch(name, sources)) for name, sources in AHEAD}


def _why_not_brought(made: Library) -> str:
    ahead = made_ahead(made)
    if ahead is None:
        return f"this installation brought none that was made for torch {torch.__version__} as it is here"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _LOADS, str(ahead)], capture_output=True, text=True, check=False, timeout=_PATIENCE_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{ahead.name} was not tried: {error}"
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return f"{ahead.name} does not load: {lines[-1] if lines else f'signal {-done.returncode}'}"
    return ""


_LOADS = """import ctypes, sys, torch
from sentinel.system import native
native.library()  # first: calls into it are resolved as this one loads
ctypes.PyDLL(sys.argv[1])
"""
"""In a process of its own: a damaged library may end it."""
_PATIENCE_S = 300


def function(name: str, result: Any, *arguments: Any) -> Any:
    """`name` of the shim with its ctypes signature."""
    bound = library()[name]
    bound.restype, bound.argtypes = result, arguments
    return bound
