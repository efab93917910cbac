"""`sentinel compare`: every policy by fast memory, simulated; every placement, executed; or two reports."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sentinel.cli import compare_executed, compare_reports
from sentinel.cli.common import (
    HERE,
    MACHINES,
    OK,
    about_compute,
    above_0,
    add_json,
    add_verb,
    amount,
    check_outputs,
    machine_named,
    print_json,
    saving,
    telling,
)
from sentinel.cli.fast_memory_curve import CURVE
from sentinel.core.errors import UsageError
from sentinel.core.rules import require
from sentinel.core.units import parse_budget

if TYPE_CHECKING:
    from sentinel.core.machine import Machine
    from sentinel.core.plan import Plan
    from sentinel.core.profile import Profile
    from sentinel.planner.sweep import Cell, Comparison, Point, Subject

FAST, LIMIT_S = ("10%", "20%", "40%", "60%", "80%"), 60.0
_TEXT = "simulate every policy by fast memory, run placements on two nodes, or compare two reports"
_EXAMPLES = """\
examples:
  sentinel compare p.safetensors --machine cxl-m5
  sentinel compare p.safetensors --machine cxl-m5 --fast 10%,20% --policies sentinel,static,autotm
  sentinel compare a.safetensors b.safetensors --machine optane-m10 --html compare.html
  sentinel compare p.safetensors --machine cxl-m5 --fast 20% --curve 15%,25%,35%,45% --json
  sentinel compare before.json after.json
      two reports (`sentinel run --report before.json`): what changed, by tensor, and what it cost
  sentinel compare --slow numa:1 --fast 20% --executed train.py --epochs 1
      runs the script, which needs no change, under ours and the kernel's own placements, each with the same fast bytes
      (needs two nodes, root)

How to read it:
  of all-fast speed  1 is as fast as with everything in fast memory
  of the bound       1 is as fast as any plan of this kind can be with that much fast memory (whole layers, room on
                     both sides of a move)
  second table       the same plan if links carry half, and on a worse machine: links carry half and slow accesses take
                     1.5 times as long
  third table        fast memory held, at most and in the mean over the step
  best-static        the best placement found that moves nothing
  curve              speed of the policy sentinel by amount of fast memory
  knee               the least amount tried with at least 95% of all-fast speed: "how much DRAM do I need?"; two more
                     amounts just below it are tried as well

A migration takes time on the link, and time from compute: what `sentinel calibrate` measured, or 0 on most described
machines, where nobody measured it; the first lines say which. If any policy is faster with less fast memory than with
more, its plan for less is used again. A policy without a plan is shown with the reason.

Without --executed nothing is run: every number is simulated on a described machine, and every output says
`simulated`. A share such as 20% is of the memory that a profile's plan needs to keep everything fast (its footprint).
"""


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verb's arguments."""
    parser = add_verb(verbs, "compare", _TEXT, f"{_EXAMPLES}\n{MACHINES}")
    parser.add_argument(
        "profiles", nargs="*", metavar="PROFILE", help="written by `sentinel run --save-profile`; or two reports"
    )
    parser.add_argument(
        "--machine", metavar="PRESET|FILE", help=f"the machine to simulate, or to plan for (default: {HERE})"
    )
    shown = ",".join(FAST).replace("%", "%%")
    parser.add_argument(
        "--fast", type=_amounts, metavar="AMOUNTS", help=f"fast memory in the table (default {shown}; executed: 20%%)"
    )
    parser.add_argument(
        "--curve",
        type=_amounts,
        metavar="AMOUNTS",
        help="more amounts of fast memory for the curve (default: every tenth, and 5%%)",
    )
    parser.add_argument(
        "--policies",
        type=_names,
        metavar="NAMES",
        help="comma-separated (default: all but autotm, which is slow, and all-fast, which the others are a share of);"
        " with --executed, placements",
    )
    parser.add_argument("--html", metavar="FILE", help="write one self-contained page here as well")
    for flag, what in (("--bound-limit", "each bound"), ("--search-limit", "each search of autotm")):
        parser.add_argument(
            flag,
            type=partial(above_0, of="seconds above 0"),
            metavar="SECONDS",
            help=f"time limit for {what} (default {LIMIT_S:g})",
        )
    add_json(parser)
    compare_executed.add_to(parser)
    parser.set_defaults(execute=execute)


_OF_A_SCRIPT = ("slow", "tracker", "plan", "warm_up", "measure")
_OF_PROFILES = ("curve", "bound_limit", "search_limit")
_OF_BOTH = ("machine", "fast", "policies")


def _refuse(arguments: argparse.Namespace, names: tuple[str, ...], where: str) -> None:
    """Raises UsageError for options of `names`, which are None where they are not given: they do nothing there."""
    for name in names:
        given = getattr(arguments, name) is not None
        require((given, f"--{name.replace('_', '-')} {where}: it does nothing there", "leave it out"))


def execute(arguments: argparse.Namespace) -> int:
    """Compare, write the page, print the table or the object."""
    script = (arguments.executed or ())[:1]
    check_outputs(arguments.html, read=(*arguments.profiles, *script, arguments.machine, arguments.plan))
    if arguments.executed is not None:
        if arguments.profiles:
            raise UsageError("profiles and --executed are given", "compare profiles, or execute a script")
        _refuse(arguments, _OF_PROFILES, "with --executed")
        return compare_executed.execute(arguments)
    _refuse(arguments, _OF_A_SCRIPT, "without --executed")
    if compare_reports.are_reports(arguments.profiles):
        _refuse(arguments, (*_OF_BOTH, *_OF_PROFILES), "beside reports")
        return compare_reports.execute(arguments)
    require(
        (
            not arguments.profiles,
            "nothing to compare",
            "give profiles and --machine, two reports (.json), or --executed SCRIPT",
        ),
    )
    from sentinel import files
    from sentinel.planner import check_policies
    from sentinel.planner.sweep import DEFAULT_POLICIES
    from sentinel.reports.policy_comparison import as_object, text

    policies = arguments.policies or DEFAULT_POLICIES
    check_policies(policies)
    machine = machine_named(arguments.machine)
    profiles = {label: files.load_profile(path) for label, path in _labels(arguments.profiles).items()}
    found = _compared(profiles, machine, policies, arguments)
    with saving(arguments.html, partial(_write_page, found)):
        if arguments.json:
            print_json(as_object(found))
            return OK
        print(text(found))
        for subject in found.profiles:
            if profiles[subject.profile].is_estimated:
                print(f"\n{subject.profile} is an estimate: it was made from shapes, and its times are a model.")
            if told := about_compute(machine, subject.all_fast_step_ns, profiles[subject.profile].step_ns_plain):
                print(f"\n{subject.profile}: {told}")
    return OK


def _write_page(found: Comparison, path: str) -> None:
    from sentinel.files.disk import write_whole
    from sentinel.reports.html.policy_comparison_page import comparison_page

    write_whole(path, comparison_page(found).encode(errors="backslashreplace"))


def _compared(
    profiles: dict[str, Profile], machine: Machine, policies: tuple[str, ...], arguments: argparse.Namespace
) -> Comparison:
    from sentinel.planner.sweep import Comparison, cells, curve, knee, make_subject, near_knee
    from sentinel.reports.price_of_moves import about_moves

    in_table, along = arguments.fast or FAST, arguments.curve or CURVE
    limits = {"time_limit_s": arguments.bound_limit or LIMIT_S, "search_s": arguments.search_limit or LIMIT_S}
    subjects: list[Subject] = []
    table: list[Cell] = []
    points: list[Point] = []
    knees = []
    for label, profile in profiles.items():
        subject = make_subject(label, profile, machine)
        amounts = {fast: parse_budget(fast, subject.footprint_bytes) for fast in (*in_table, *along)}
        wanted = {amounts[fast] for fast in in_table}
        with telling(f"{label}: simulating the curve"):
            own = near_knee(subject, profile, machine, list(curve(subject, profile, machine, amounts)))
        best: dict[str, Plan] = {}
        for point in own:
            if point.fast_bytes in wanted:
                number = "1 policy" if len(policies) == 1 else f"{len(policies)} policies"
                with telling(f"{label}: simulating {number} and the bound at {point.fast}"):
                    table += cells(subject, profile, machine, point, policies, best=best, **limits)
        subjects.append(subject)
        points += own
        knees.append(knee(own))
    reached = tuple(k for k in knees if k is not None)
    told = tuple(subjects), tuple(table), tuple(points), reached
    return Comparison(machine.name, tuple(policies), *told, about_moves(machine))


def _labels(paths: list[str]) -> dict[str, str]:
    """A short name for each path: its stem, or all of it where stems coincide. UsageError for one path twice."""
    if len(set(paths)) < len(paths):
        raise UsageError("a profile is given twice", "name each file once")
    stems = [Path(path).stem for path in paths]
    return {stem if stems.count(stem) == 1 else path: path for stem, path in zip(stems, paths, strict=True)}


def _amounts(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(amount(part.strip()) for part in text.split(",")))


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",")))
