"""Sessions: a step is profiled and planned, and the plan applied. The user's calls are in `calls`, which is imported,
and torch with it, when the first one is used: what a session is asked for is checked without."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentinel.profiler.annotate import Annotation, annotate
    from sentinel.session.calls import (
        BegunSession,
        current,
        end_applying,
        end_profile,
        is_profiling,
        leave_annotations_to_script,
        leave_to_script,
        report,
        set_overrides,
        start_profile,
        stop,
        wanted,
    )
    from sentinel.session.pinning import keep
    from sentinel.session.request import Request

__all__ = [
    "Annotation",
    "BegunSession",
    "Request",
    "annotate",
    "current",
    "end_applying",
    "end_profile",
    "is_profiling",
    "keep",
    "leave_annotations_to_script",
    "leave_to_script",
    "report",
    "set_overrides",
    "start_profile",
    "stop",
    "wanted",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("sentinel.session.calls"), name)
