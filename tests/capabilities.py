"""What a test may need of its host. Each probe tries, and says what is missing and how to get it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

SOURCE = Path(__file__).parents[1]


def _module(name: str, extra: str) -> Callable[[], str]:
    return lambda: "" if importlib.util.find_spec(name) else f"pip install '.[{extra}]'"


def _program(*names: str, package: str) -> Callable[[], str]:
    return lambda: "" if any(map(shutil.which, names)) else f"apt-get install {package}"


def _native() -> str:
    built = list((SOURCE / "sentinel").glob("_native*.so"))
    return "" if built or not PROBES["compiler"]() else "make venv"  # with a compiler it is made when first used


def _root() -> str:
    return "" if os.geteuid() == 0 else "run as root"


def _two_nodes() -> str:
    nodes = list(Path("/sys/devices/system/node").glob("node[0-9]*"))
    return "" if len(nodes) > 1 else "a host with two NUMA nodes, or tools/numa_vm"


def _static_runtime() -> str:
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), "")
    if not compiler:
        return "apt-get install g++"
    asked = [compiler, "-print-file-name=libstdc++.a"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=600).stdout.strip()
    return "" if os.path.isabs(found) else "the package that has libstdc++.a, such as libstdc++-static"


def _huge_pages() -> str:
    there = Path("/sys/kernel/mm/transparent_hugepage").exists()
    return "" if there else "a kernel with transparent huge pages (CONFIG_TRANSPARENT_HUGEPAGE)"


PROBES: dict[str, Callable[[], str]] = {
    "torch": _module("torch", "torch"),
    "transformers": _module("transformers", "examples"),
    "scikit-learn": _module("sklearn", "examples"),
    "accelerate": _module("accelerate", "dev"),
    "pytorch-lightning": _module("pytorch_lightning", "dev"),
    "pyarrow": _module("pyarrow", "data"),
    "valkey": _module("valkey", "data"),
    "viztracer": _module("viztracer", "dev"),
    "redis-server": _program("valkey-server", "redis-server", package="redis-server"),
    "compiler": _program("g++", "c++", "clang++", package="g++"),
    "static C++ runtime": _static_runtime,
    "cmake": _program("cmake", package="cmake"),
    "browser": _program("chromium", "chromium-browser", "google-chrome", package="chromium"),
    "native": _native,
    "root": _root,
    "two nodes": _two_nodes,
    "huge pages": _huge_pages,
}
"""Capability -> a question whose answer is "" where it is there, else the remedy."""
