"""What pyproject.toml cannot say: the native library is built from a glob, and may be missing.

With COMPILE_FOR_TORCH=1 the wheel also brings what is otherwise compiled at first use, for the torch that is installed
where the wheel is made: `make wheel`.
"""

from __future__ import annotations

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
NATIVE = Path("kernel_profiler")


class BuildPy(build_py):
    """Copies the C header into the package: the torch shim is compiled at run time, against the torch it meets.

    In a source tree it is read where it lies.
    """

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "sentinel" / "_include"
        target.mkdir(parents=True, exist_ok=True)
        for header in HERE.glob(f"{NATIVE}/include/*.h"):
            shutil.copyfile(header, target / header.name)
        shutil.rmtree(target.parent / "_compiled", ignore_errors=True)  # of an earlier wheel
        if os.environ.get("COMPILE_FOR_TORCH") == "1":
            sys.path.insert(0, str(HERE))
            from sentinel.profiler import torch_shim

            torch_shim.make_ahead(target.parent / "_compiled")


class BuildExt(build_ext):
    """Compiles the library's files side by side: there are some fifty."""

    def build_extension(self, ext: Extension) -> None:
        one_after_the_other = self.compiler.compile

        def side_by_side(sources: list[str], **options: Any) -> list[str]:
            # each takes memory, of which a container of many processors may have little
            jobs = int(os.environ.get("MAX_JOBS", 0)) or min(len(os.sched_getaffinity(0)), 8)
            with ThreadPoolExecutor(jobs) as threads:
                made = threads.map(lambda source: one_after_the_other([source], **options), sources)
                return [file for each in made for file in each]

        self.compiler.compile = side_by_side
        super().build_extension(ext)


def _relative(pattern: str) -> list[str]:
    return sorted(path.relative_to(HERE).as_posix() for path in HERE.glob(f"{NATIVE}/{pattern}"))


setup(
    cmdclass={"build_py": BuildPy, "build_ext": BuildExt},
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
