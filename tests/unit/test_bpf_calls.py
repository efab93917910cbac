"""Calls of bpf(2), with the kernel's part played by the test."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import pytest

from sentinel.profiler.pages import bpf_calls


@pytest.mark.parametrize(("possible", "at_least"), [("0-239\n", 240), ("", 8192)], ids=["sys", "no sys"])
def test_each_possible_processor_has_room_for_its_value(
    monkeypatch: pytest.MonkeyPatch, possible: str, at_least: int
) -> None:
    """The kernel is told no length: it writes a value for each processor that may ever come online."""

    def looked_up(command: int, attributes: bytes, what: str, kept: list[int]) -> int:
        values = struct.unpack("<IIQQQ", attributes)[3]
        ctypes.c_uint64.from_address(values).value = 7
        return 0

    def read(path: Path) -> str:
        return possible

    monkeypatch.setattr(bpf_calls, "text", read)
    monkeypatch.setattr(bpf_calls, "_call", looked_up)
    values = bpf_calls.look_up_per_cpu(3, 8)
    assert len(values) >= at_least
    assert values[:2] == [bytes([7]) + bytes(7), bytes(8)]
