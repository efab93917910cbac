"""Nouns to disk and back: `save`, `load`, and a digest that lets one file prove which others it came from.

Machine and Plan are JSON; Trace, Profile, Run and Layout are safetensors containers. See docs/formats.md. Nothing
here runs code found in a file, and nothing allocates what a header claims before the file's own length agrees.
"""

from sentinel.files.digests import Noun, digest, with_origin
from sentinel.files.save_load import load, load_machine, load_plan, load_profile, load_run, load_trace, save

__all__ = [
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
]
