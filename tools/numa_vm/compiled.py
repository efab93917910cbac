"""The libraries that Sentinel compiles on its host at first use: made here, for the guest has no compiler."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from tools.numa_vm.image import Environment
from tools.numa_vm.packages import cache_folder

_SOURCES = ("kernel_profiler/include", "kernel_profiler/src", "sentinel/profiler/shim")
_COMPILE = """
from sentinel.system import native
print(native.path())
try:
    from sentinel.profiler import torch_shim
except ModuleNotFoundError:  # an environment without torch
    pass
else:
    print(torch_shim.path())
"""


def compiled_libraries(project: Path, environment: Environment) -> tuple[Path, ...]:
    """The folders of the compiler's cache that hold them; compiled first if the sources or torch changed.

    Where they do not compile, a warning says so: a command may not need them.
    """
    digest = hashlib.sha256(str(project).encode())
    for source in sorted(path for folder in _SOURCES for path in (project / folder).glob("*.*")):
        digest.update(f"{source} {source.stat().st_mtime_ns}\n".encode())
    digest.update(repr(sorted(path.name for path in environment.site_packages.glob("torch-*"))).encode())
    stamp = cache_folder() / "compiled"
    known, *libraries = stamp.read_text().splitlines() if stamp.exists() else [""]
    if known != digest.hexdigest() or not all(map(Path.exists, map(Path, libraries))):
        python = environment.prefix / "bin" / "python"
        done = subprocess.run([python, "-c", _COMPILE], cwd=project, capture_output=True, text=True, check=False)
        if done.returncode:
            why = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
            print(f"numa_vm: the guest goes without Sentinel's compiled libraries: {why[0]}", file=sys.stderr)
            return ()
        libraries = done.stdout.split()
        stamp.write_text("\n".join([digest.hexdigest(), *libraries]))
    return tuple(Path(library).parent for library in libraries if not Path(library).is_relative_to(project))
