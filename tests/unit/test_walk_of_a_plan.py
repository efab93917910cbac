"""From a profile to its plan: through which files, one within the other."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest

import sentinel
from sentinel.core.machine import Machine
from sentinel.planner import plan
from tests.builders import MIB, make_machine
from tests.three_tiers import three_tiers
from tests.unit.test_planner import network

ROOT = str(Path(sentinel.__file__).parent)
FETCHED = replace(make_machine(64 * MIB), name="fetched")
FETCHED = replace(FETCHED, tiers=(FETCHED.fast, replace(FETCHED.tiers[1], addressable=False)))


@pytest.mark.parametrize("machine", [make_machine(24 * MIB), three_tiers(24 * MIB, 40 * MIB), FETCHED])
def test_planning_never_returns_to_a_file_that_it_has_left_for_another(machine: Machine) -> None:
    profile, within, returns = network(), list[str](), set[tuple[str, str]]()
    plan(profile, machine)  # what is imported at first use is imported

    def watch(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if not file.startswith(ROOT):
            return
        if event == "call":
            if within and within[-1] != file and file in within:
                returns.add((within[-1], file))
            within.append(file)
        elif event == "return" and within:
            within.pop()

    sys.setprofile(watch)
    try:
        plan(profile, machine)
    finally:
        sys.setprofile(None)
    assert returns == set()
