"""One report with all that a report can have, for the tests of its headline, frames, sums and forms."""

from __future__ import annotations

import dataclasses
from typing import Any

from sentinel import planner
from sentinel.core.profile import Profile
from sentinel.core.run import Run
from sentinel.core.trace import LayerId
from sentinel.files import with_origin
from sentinel.reports import Report, Setup, StorageFigures, build_report
from sentinel.simulator import simulate
from tests.builders import MIB, act, make_machine, make_profile, param

NASTY = "<b>\"'&\u202e\x1b[31m\n</script>é"
MACHINE = make_machine(8 * MIB)


def _profile() -> Profile:
    specs = [param(f"layer{k}.weight", 2 * MIB, [k, 7 - k]) for k in range(4)]
    specs += [param(NASTY, 5000, [3]), param("alias.weight", 4096, [0], managed=False)]
    specs += [act(f"out{k}", MIB, k, 8 - k, [7 - k]) for k in range(4)]
    specs += [act("round", 4096, 6, 9, [0])]  # alive across the end of the step
    profile = make_profile(specs, 8, layer_ns=10_000_000)
    phases = [LayerId(f"h.{k}", 0, "forward") for k in range(4)] + [
        LayerId(f"h.{3 - k}", 0, "backward") for k in range(4)
    ]
    return dataclasses.replace(
        profile,
        layers=tuple(phases),
        step_ns_plain=81_000_000,
        step_ns_profiled=200_000_000,
        live_peak_bytes=9 * MIB,
        unmanaged_peak_bytes=4097,
    )


PROFILE = _profile()
PLAN = with_origin(planner.plan(PROFILE, MACHINE, "sentinel-2021"), profile=PROFILE, machine=MACHINE)
SIMULATED = with_origin(simulate(PLAN, PROFILE, MACHINE, steps=3), plan=PLAN)
SETUP = Setup("ops", "emulated:cxl-asic-x8", "50%", None, 7, 11, (("alias.weight", 4096, "shared"),), {"no slot": 4097})


def executed(emulated: bool = True, **tables: Any) -> Run:
    """The simulated run, called executed, with some tables replaced."""
    return dataclasses.replace(SIMULATED, kind="executed", emulated=emulated, **tables)


def full_report(setup: Setup = SETUP) -> Report:
    """Of an executed run and its prediction."""
    return build_report(
        profile=PROFILE, plan=PLAN, machine=MACHINE, executed=executed(), simulated=SIMULATED, setup=setup
    )


def report_on_a_file(**figures: int) -> Report:
    """Of a session without a plan, on a file; figures that are not given are 0."""
    known = {name: "" if name == "too_large_by" else 0 for name in StorageFigures._fields} | figures
    setup = Setup(slow="file:/scratch", kind="passive", storage=StorageFigures(**known))
    return build_report(profile=None, plan=None, setup=setup)
