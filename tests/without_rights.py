"""For programs that give up their rights: what they read later must be read before, since a checkout may be private.

Many homes are, and folders that `mktemp -d` makes: only their owner may enter them.
"""

from __future__ import annotations

import importlib

from sentinel.profiler.pages import ebpf
from sentinel.system import native


def read_beforehand() -> None:
    """The native library, the programs of tracker `ebpf`, and what is imported only when it is used."""
    native.library()
    for module in ("numpy.ma", "tomllib"):
        importlib.import_module(module)
    programs = ebpf.read_programs(ebpf.OBJECT, "raw_tp/")
    ebpf.read_programs = lambda path, prefix: programs


def draw_a_report() -> None:
    """So that all that a report imports is there."""
    from tests.unit.report_builders import full_report

    full_report().text()
