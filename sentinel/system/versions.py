"""The interpreters and torch releases that sessions were tested on (docs/versions.md), and the refusal of others."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from typing import Any

from sentinel.core.errors import CapabilityError

PYTHON_SINCE, PYTHON_BEFORE = (3, 11), (3, 15)
TORCH_SINCE, TORCH_BEFORE = (2, 12), (2, 16)
"""As pyproject.toml says."""
PYTHONS = f"{PYTHON_SINCE[0]}.{PYTHON_SINCE[1]} to {PYTHON_BEFORE[0]}.{PYTHON_BEFORE[1] - 1}"
"""In words."""
UNTESTED_TORCH = "SENTINEL_UNTESTED_TORCH"
"""Set to 1, this environment variable lets a session begin on a torch release that it was not tested on."""


def require_tested(torch_version: str) -> None:
    """Raises CapabilityError where a session was not tested on this interpreter or with `torch_version`."""
    if why := why_not_python():
        raise CapabilityError(
            f"profiling a training step on Python {_said(sys.version_info[:2])}",
            why,
            f"use Python {PYTHONS} with the GIL; plans, simulations and reports work here",
        )
    if (why := why_not_torch(torch_version)) and not untested_torch_is_allowed():
        raise CapabilityError(
            f"profiling a training step with torch {torch_version}",
            why,
            f"install one of these, or set {UNTESTED_TORCH}=1 to try it; plans, simulations and reports work here",
        )


def why_not_python() -> str:
    """Why no session begins on this interpreter; "" where it does."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return (
            "this is a free-threaded build, whose reference counts do not tell whether another thread uses a tensor,"
            " so moving the tensor could lose what that thread writes"
        )
    if sys.version_info[:2] >= PYTHON_BEFORE:
        return (
            f"sessions were tested on Python {PYTHONS} only; how references are counted changes between releases, and"
            " they tell whether a tensor may be moved"
        )
    jit: Any = getattr(sys, "_jit", None)
    if jit is not None and jit.is_enabled():
        return (
            "its experimental compiler is on, whose code counts fewer references, and they tell whether a tensor may"
            " be moved: start it without PYTHON_JIT=1"
        )
    return ""


def untested_torch_is_allowed() -> bool:
    """Whether the user lets sessions begin on any release."""
    return os.environ.get(UNTESTED_TORCH) == "1"


def why_not_torch(version: str) -> str:
    """Why no session begins with this release; "" where it does."""
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if TORCH_SINCE <= found < TORCH_BEFORE:
        return ""
    return f"sessions were tested on {_said(TORCH_SINCE)} or later and earlier than {_said(TORCH_BEFORE)} only"


def _said(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
