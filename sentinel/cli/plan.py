"""`sentinel plan`: a saved profile and a machine give a plan. Needs no torch, and not the machine."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from sentinel.cli.common import (
    MACHINES,
    OK,
    POLICIES,
    add_json,
    add_verb,
    amount,
    check_outputs,
    machine_named,
    print_json,
    print_table,
    telling,
)
from sentinel.core.budget import Budget
from sentinel.core.units import format_bytes, format_ns, parse_budget

if TYPE_CHECKING:
    from sentinel.core.plan import Plan

_EXAMPLES = """\
examples:
  sentinel run --save-profile p.safetensors train.py
  sentinel plan p.safetensors --machine cxl-m5 --fast 20% -o plan.json
  sentinel plan p.safetensors --machine cxl-m5 --fast 20% --policy first-touch
      prints what another policy would decide; nothing is written without -o

A share such as 20% is of the footprint of the plan that keeps everything in fast memory.
"""


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verb's arguments."""
    parser = add_verb(verbs, "plan", "decide where the tensors of a profiled step live", f"{_EXAMPLES}\n{MACHINES}")
    parser.add_argument("profile", metavar="PROFILE", help="written by `sentinel run --save-profile`")
    parser.add_argument("--machine", required=True, metavar="PRESET|FILE", help="the machine to plan for")
    parser.add_argument("--fast", type=amount, metavar="AMOUNT", help="fast memory; default: the machine's own")
    parser.add_argument("--policy", default="sentinel", help=POLICIES)
    parser.add_argument("-o", "--output", metavar="FILE", help="write the plan here (JSON)")
    add_json(parser)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Plan, write the plan, print what it decides."""
    from sentinel import files, planner

    check_outputs(arguments.output)
    profile = files.load_profile(arguments.profile)
    machine = machine_named(arguments.machine)
    with telling(f"planning {len(profile.names)} tensors over {profile.n_layers} layers"):
        budget = None
        if arguments.fast is not None:
            budget = Budget(parse_budget(arguments.fast, planner.footprint_bytes(profile)))
        plan = planner.plan(profile, machine, arguments.policy, budget=budget)
    if arguments.output:
        files.save(files.with_origin(plan, profile=profile, machine=machine), arguments.output)
    decided = decisions(plan)
    if arguments.json:
        print_json(decided)
    else:
        print_table(rows_of(decided))
    return OK


def decisions(plan: Plan) -> dict[str, Any]:
    """What a plan decides, in numbers; null where it was not simulated or has no such thing."""
    from sentinel.reports.headline import range_shares

    return {
        "policy": plan.policy,
        "fast_capacity_bytes": plan.capacity_bytes[0],
        "fast_peak_bytes": plan.fast_peak_bytes,
        "fast_needed_bytes": plan.fast_needed_bytes,
        "footprint_bytes": plan.footprint_bytes,
        "migrations_per_step": len(plan.migrations),
        "migrated_bytes_per_step": plan.migrated_bytes_per_step,
        "mil": plan.details.get("mil"),
        "step_ns_predicted": plan.predicted_step_ns,
        "step_ns_bound": plan.bound_step_ns,
        **range_shares(plan),
    }


def rows_of(values: dict[str, Any]) -> list[tuple[str, str]]:
    """(name, printed value) of each entry; the suffix of the name tells the unit."""
    return [(name, _printed(name, value)) for name, value in values.items()]


def _printed(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if "bytes" in name:
        return format_bytes(value)
    if "fraction" in name:
        return f"{value:.1%}"
    return format_ns(value) if "_ns" in name else str(value)
