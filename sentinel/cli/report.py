"""`sentinel report`: saved nouns, drawn. Needs no torch, and not the machine."""

from __future__ import annotations

import argparse

from sentinel.cli.common import OK, add_json, add_verb, check_outputs, machine_named, print_json, telling

_EXAMPLES = """\
examples:
  sentinel report --profile p.safetensors
      where the memory goes, without a plan
  sentinel report --profile p.safetensors --plan plan.json --run run.safetensors -o report.html
      the suffix decides the form: .html .json .csv .txt .trace; without -o the text is printed
"""


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verb's arguments."""
    parser = add_verb(verbs, "report", "draw a report from saved files", _EXAMPLES)
    parser.add_argument("--profile", required=True, metavar="FILE", help="written by `sentinel run --save-profile`")
    parser.add_argument("--plan", metavar="FILE", help="made from that profile")
    parser.add_argument("--run", metavar="FILE", help="of that plan, simulated or executed")
    parser.add_argument("--machine", metavar="PRESET|FILE", help="the machine that was planned for")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the report here")
    add_json(parser)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Load, draw, write or print."""
    from sentinel import files
    from sentinel.reports import build_report
    from sentinel.reports.forms import form_of

    if arguments.output:
        form_of(arguments.output)
        check_outputs(arguments.output)
    profile = files.load_profile(arguments.profile)
    plan = files.load_plan(arguments.plan) if arguments.plan else None
    run = files.load_run(arguments.run) if arguments.run else None
    machine = machine_named(arguments.machine) if arguments.machine else None
    with telling("drawing the report"):
        executed, simulated = (run, None) if run is not None and run.kind == "executed" else (None, run)
        report = build_report(profile=profile, plan=plan, machine=machine, executed=executed, simulated=simulated)
        if arguments.output:
            report.write(arguments.output)
    if arguments.json:
        print_json(report.headline)
    elif arguments.output:
        print(arguments.output)
    else:
        print(report.text())
    return OK
