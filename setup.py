"""What pyproject.toml cannot say: the native library is built from a glob, and may be missing."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
NATIVE = Path("kernel_profiler")
# Read at run time (the torch shim is compiled against the torch it meets) and kept where their owners edit them.
COPIED = {"_include": ("kernel_profiler/include/*.h",), "_ebpf": ("ebpf/*.h", "ebpf/*.bpf.c", "ebpf/*.bpf.o")}


class BuildPy(build_py):
    """Copies the C headers and eBPF sources into the package. In a source tree they are read where they lie."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for folder, patterns in COPIED.items():
            for found in sorted(path for pattern in patterns for path in HERE.glob(pattern)):
                target = Path(self.build_lib) / "sentinel" / folder / found.name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(found, target)


def _relative(pattern: str) -> list[str]:
    return sorted(path.relative_to(HERE).as_posix() for path in HERE.glob(f"{NATIVE}/{pattern}"))


setup(
    cmdclass={"build_py": BuildPy},
    ext_modules=[
        # A plain C library that ctypes loads: no Python.h, no init function.
        Extension(
            "sentinel._native",
            sources=_relative("src/*.cpp"),
            depends=_relative("src/*.h") + _relative("include/*.h"),
            include_dirs=[str(NATIVE / "include"), str(NATIVE / "src")],
            extra_compile_args=["-std=c++17", "-O2", "-DNDEBUG", "-Wall", "-Wextra", "-fvisibility=hidden", "-pthread"],
            # Storages may outlive whoever loaded the library: it is never unmapped.
            extra_link_args=["-pthread", "-Wl,-z,nodelete"],
            language="c++",
            optional=True,
        )
    ],
)
