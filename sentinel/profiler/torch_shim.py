"""The torch shim: C++ that speaks torch's ABI, compiled once against the torch that it meets."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import torch

from sentinel.system import native
from sentinel.system.compiler import Library, compile_once

_SOURCES = Path(__file__).parent / "shim"


@functools.cache
def path() -> Path:
    """The compiled shim; a host's first call compiles it (10 to 20 s). Raises CapabilityError without a compiler."""
    root = Path(torch.__file__).parent
    include = root / "include"
    abi = int(torch.compiled_with_cxx11_abi())
    # Without NDEBUG the layout of at::RecordFunction differs from the one in torch's own libraries.
    flags = ["-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread", "-DNDEBUG"]
    flags += [f"-D_GLIBCXX_USE_CXX11_ABI={abi}", f"-isystem{include}", f"-isystem{include}/torch/csrc/api/include"]
    flags += [f"-I{native.include_folder()}", f"-I{_SOURCES}"]
    return compile_once(
        Library(
            name="sentinel_torch",
            sources=tuple(sorted(_SOURCES.glob("*.cpp"))),
            headers=(*sorted(_SOURCES.glob("*.h")), *sorted(native.include_folder().glob("*.h"))),
            compile_flags=tuple(flags),
            link_flags=("-pthread", "-Wl,-z,nodelete", f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu"),
            tag=f"torch-{torch.__version__}",
        )
    )


@functools.cache
def library() -> ctypes.PyDLL:
    """The shim, loaded once. Its calls keep the GIL: they handle objects that other Python threads may hold."""
    native.library()  # first: the shim's calls into it are resolved as it loads
    return ctypes.PyDLL(str(path()))


def function(name: str, result: Any, *arguments: Any) -> Any:
    """`name` of the shim with its ctypes signature."""
    bound = library()[name]
    bound.restype, bound.argtypes = result, arguments
    return bound
