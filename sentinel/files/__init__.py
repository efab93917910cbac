"""Nouns to disk and back: `save`, `load`, and a digest that lets one file prove which others it came from.

Machine and Plan are JSON; Trace, Profile, Run and Layout are safetensors containers. See docs/formats.md. Nothing
here runs code found in a file, and nothing allocates what a header claims before the file's own length agrees.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentinel.files.digests import Noun as Noun
    from sentinel.files.digests import digest as digest
    from sentinel.files.digests import with_origin as with_origin
    from sentinel.files.save_load import load as load
    from sentinel.files.save_load import load_machine as load_machine
    from sentinel.files.save_load import load_plan as load_plan
    from sentinel.files.save_load import load_profile as load_profile
    from sentinel.files.save_load import load_run as load_run
    from sentinel.files.save_load import load_trace as load_trace
    from sentinel.files.save_load import save as save

_NAMES = {
    "Noun",
    "digest",
    "load",
    "load_machine",
    "load_plan",
    "load_profile",
    "load_run",
    "load_trace",
    "save",
    "with_origin",
}


def __getattr__(name: str) -> Any:
    """What is in its modules, which need NumPy: `disk` does not, and is needed before it."""
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "digests" if name in ("Noun", "digest", "with_origin") else "save_load"
    return getattr(import_module(f"sentinel.files.{module}"), name)
