"""Sessions: a step is profiled and planned, and the plan applied. The user's calls are in `calls`, which is imported,
and torch with it, when the first one is used: what a session is asked for is checked without."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentinel.profiler.annotate import Annotation as Annotation
    from sentinel.profiler.annotate import annotate as annotate
    from sentinel.session.calls import BegunSession as BegunSession
    from sentinel.session.calls import current as current
    from sentinel.session.calls import end_applying as end_applying
    from sentinel.session.calls import end_profile as end_profile
    from sentinel.session.calls import is_profiling as is_profiling
    from sentinel.session.calls import leave_annotations_to_script as leave_annotations_to_script
    from sentinel.session.calls import leave_to_script as leave_to_script
    from sentinel.session.calls import report as report
    from sentinel.session.calls import set_overrides as set_overrides
    from sentinel.session.calls import start_profile as start_profile
    from sentinel.session.calls import stop as stop
    from sentinel.session.calls import wanted as wanted
    from sentinel.session.pinning import keep as keep
    from sentinel.session.request import Request as Request

_NAMES = {
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
}


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("sentinel.session.calls"), name)
