"""`sentinel report`: saved nouns, drawn, or the reports of a job's ranks as one. Needs no torch, nor the machine."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from sentinel.cli.common import OK, add_json, add_verb, check_outputs, machine_named, print_json, telling
from sentinel.core.rules import require

if TYPE_CHECKING:
    from sentinel.reports import Report
    from sentinel.reports.all_ranks import AllRanks

_EXAMPLES = """\
examples:
  sentinel report --profile p.safetensors
      where the memory goes, without a plan
  sentinel report --profile p.safetensors --plan plan.json --run run.safetensors -o report.html
      the suffix decides the form: .html .json .csv .txt .trace; without -o the text is printed
  sentinel report sentinel-report.rank0.json sentinel-report.rank1.json
      what the ranks of one job wrote, as one report
"""


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verb's arguments."""
    parser = add_verb(verbs, "report", "draw a report from saved files", _EXAMPLES)
    parser.add_argument("ranks", nargs="*", metavar="RANK", help="reports of the ranks of a job: r.rank0.json ...")
    parser.add_argument("--profile", metavar="FILE", help="written by `sentinel run --save-profile`")
    parser.add_argument("--plan", metavar="FILE", help="made from that profile")
    parser.add_argument("--run", metavar="FILE", help="of that plan, simulated or executed")
    parser.add_argument("--machine", metavar="PRESET|FILE", help="the machine that was planned for")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the report here")
    add_json(parser)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Load, draw, write or print."""
    from sentinel import files
    from sentinel.reports import Setup, build_report
    from sentinel.reports.forms import form_of
    from sentinel.reports.setup import MORE_PLANS_S

    _require_one_kind(arguments)
    if arguments.output:
        form_of(arguments.output)
        given = (*arguments.ranks, arguments.profile, arguments.plan, arguments.run, arguments.machine)
        check_outputs(arguments.output, read=given)
    if arguments.ranks:
        return _over_all(arguments)
    profile = files.load_profile(arguments.profile)
    plan = files.load_plan(arguments.plan) if arguments.plan else None
    run = files.load_run(arguments.run) if arguments.run else None
    machine = machine_named(arguments.machine) if arguments.machine else None
    with telling("drawing the report"):
        executed, simulated = (run, None) if run is not None and run.kind == "executed" else (None, run)
        setup = Setup(more_plans_s=MORE_PLANS_S)
        report = build_report(
            profile=profile, plan=plan, machine=machine, executed=executed, simulated=simulated, setup=setup
        )
        if arguments.output:
            report.write(arguments.output)
    return _shown(report, arguments)


def _require_one_kind(arguments: argparse.Namespace) -> None:
    """Raises UsageError where there is nothing to draw, or two things."""
    noun = next((name for name in ("profile", "plan", "run", "machine") if getattr(arguments, name)), None)
    require(
        (
            arguments.ranks and noun,
            f"reports of ranks with --{noun}",
            "give either the ranks' JSON reports, or saved nouns",
        ),
        (
            not arguments.ranks and not arguments.profile,
            "there is nothing to draw",
            "give --profile FILE, or the JSON reports of all ranks of a job",
        ),
    )


def _over_all(arguments: argparse.Namespace) -> int:
    from sentinel.reports.all_ranks import AllRanks
    from sentinel.reports.rank_rows import read

    report = AllRanks([read(path) for path in arguments.ranks])
    if arguments.output:
        report.write(arguments.output)
    return _shown(report, arguments)


def _shown(report: Report | AllRanks, arguments: argparse.Namespace) -> int:
    if arguments.json:
        print_json(report.headline)
    elif arguments.output:
        print(arguments.output)
    else:
        print(report.text())
    return OK
