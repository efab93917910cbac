"""`sentinel plan`: a saved profile and a machine give a plan. Needs no torch, and not the machine."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from sentinel.cli.common import (
    HERE,
    MACHINES,
    OK,
    POLICIES,
    about_compute,
    add_json,
    add_pins,
    add_verb,
    amount,
    check_outputs,
    known_rows,
    machine_named,
    pins_in,
    print_json,
    print_table,
    saving,
    telling,
)
from sentinel.core.budget import Budget
from sentinel.core.rules import holding
from sentinel.core.units import counted, format_bytes, format_ns, parse_budget

if TYPE_CHECKING:
    from sentinel.core.machine import Machine
    from sentinel.core.plan import Plan
    from sentinel.core.profile import Profile

_EXAMPLES = """\
examples:
  sentinel run --save-profile p.safetensors train.py
  sentinel plan p.safetensors --machine cxl-m5 --fast 20% -o plan.json
  sentinel plan p.safetensors --machine cxl-m5 --fast 20% --policy first-touch
      prints what another policy would decide; nothing is written without -o
  sentinel plan p.safetensors --machine cxl-m5 --fast 20% --no-forgiving -o plan.json
      the fastest plan on exactly this machine. The default gives up some speed, so that on a worse one (half the link
      bandwidth, slow accesses 1.5 times as dear) it is at most 3% slower than the best placement that moves nothing

A share such as 20% is of the footprint of the plan that keeps everything in fast memory.
"""


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verb's arguments."""
    parser = add_verb(verbs, "plan", "decide where the tensors of a profiled step live", f"{_EXAMPLES}\n{MACHINES}")
    parser.add_argument("profile", metavar="PROFILE", help="written by `sentinel run --save-profile`")
    parser.add_argument("--machine", metavar="PRESET|FILE", help=f"the machine to plan for (default: {HERE})")
    parser.add_argument(
        "--fast",
        type=amount,
        metavar="AMOUNT",
        help="fast memory: 20%% of the footprint, 8GiB, or bytes (default: all of the machine's fast tier)",
    )
    parser.add_argument("--policy", default="sentinel", help=POLICIES)
    parser.add_argument(
        "--forgiving",
        action=argparse.BooleanOptionalAction,
        help="take a plan that also holds on a worse machine: at most 3%% slower than the best placement that moves"
        " nothing, with half the link bandwidth, alone or with slow memory 1.5 times as slow (default for sentinel,"
        " but for very large steps)",
    )
    add_pins(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="write the plan here (JSON)")
    add_json(parser)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Plan, write the plan, print what it decides."""
    from sentinel import files, planner
    from sentinel.reports.price_of_moves import about_moves
    from sentinel.simulator import simulate

    check_outputs(arguments.output, read=(arguments.profile, arguments.machine))
    profile = files.load_profile(arguments.profile)
    machine, pins = machine_named(arguments.machine), pins_in(arguments)
    footprint = planner.footprint_bytes(profile)
    with telling(f"planning {len(profile.names)} tensors over {profile.n_layers} layers"):
        budget = None if arguments.fast is None else Budget(parse_budget(arguments.fast, footprint))
        plan = planner.plan(profile, machine, arguments.policy, budget=budget, forgiving=arguments.forgiving, pins=pins)
        if planner.needs_windows(machine):
            within = machine if budget is None else budget.reach(machine)
            plan = plan.told(bound_step_ns=planner.profile_window_bound_ns(profile, within))
        mean = simulate(plan, profile, machine).fast_mean_bytes
        all_fast = planner.plan(profile, machine, "all-fast", budget=Budget(footprint)).predicted_step_ns
    made = files.with_origin(plan, profile=profile, machine=machine)
    with saving(arguments.output, partial(files.save, made)) as saved:
        if arguments.json:
            told = {"fast_mean_bytes": mean, "step_ns_all_fast": all_fast, "price_of_moves": about_moves(machine)}
            print_json({**decisions(plan), **told})
            return OK
        print(f"simulated on {machine.name}: predictions, nothing was run\n")
        print_table(rows_of(plan, all_fast, mean))
        print("".join(f"\n{sentence}" for sentence in notes_on(plan, machine, profile, all_fast)))
        if saved or not arguments.output:
            print(f"plan written to {arguments.output}" if saved else "nothing was written: -o FILE keeps the plan")
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


def rows_of(plan: Plan, all_fast_ns: int | None, mean_bytes: int | None = None) -> list[tuple[str, str, str]]:
    """(what, amount, what to compare it with) of a plan; what is unknown is left out."""
    budget, footprint, step = plan.capacity_bytes[0], plan.footprint_bytes, plan.predicted_step_ns
    moves, gap = counted(len(plan.migrations), "migration"), plan.details.get("gap")
    return known_rows(
        ("policy", plan.policy, str, ""),
        ("fast memory", budget, format_bytes, f"of {format_bytes(footprint)} that the step needs"),
        ("  most in use", plan.fast_peak_bytes, format_bytes, in_the_mean(mean_bytes)),
        ("moved a step", plan.migrated_bytes_per_step, format_bytes, moves),
        ("step", step, format_ns, against(step, all_fast_ns)),
        ("  all fast", all_fast_ns, format_ns, "with everything in fast memory"),
        ("  gap", gap, "{:.2%}".format, "upper limit for what a longer search could save"),
        ("  bound", plan.bound_step_ns, format_ns, "no plan of this kind is faster"),
    )


def about_pins(plan: Plan) -> list[str]:
    """What is kept where by the user's word, and what that saves or costs."""
    from sentinel.core.pins import kept_in

    told, found = kept_in(plan.details), []
    for fast, verb in ((True, "saves"), (False, "costs")):
        rows = [row for row in told if (row["tier"] == plan.tier_names[0]) is fast]
        if rows:
            ns, nbytes = (sum(row[name] for row in rows) for name in ("slow_use_ns", "nbytes"))
            where = "fast" if fast else "slow"
            found.append(
                f"{counted(len(rows), 'tensor')} ({format_bytes(nbytes)}) kept {where} as you asked: that {verb}"
                f" {format_ns(ns)} of slow accesses a step."
            )
    return found


def in_the_mean(nbytes: int | None) -> str:
    """What is in use in the mean, beside the most."""
    return "" if nbytes is None else f"{format_bytes(nbytes)} in the mean over the step"


def against(step_ns: int | None, all_fast_ns: int | None) -> str:
    """A step's time beside that with everything in fast memory; "" where one of them is not known."""
    if step_ns is None or not all_fast_ns:
        return ""
    return f"{step_ns / all_fast_ns:.2f} times the step with everything fast"


def notes_on(plan: Plan, machine: Machine, profile: Profile, all_fast_ns: int | None) -> list[str]:
    """What a reader must know before believing the rows."""
    from sentinel.core.pins import pins_of
    from sentinel.reports.price_of_moves import about_moves

    budget, footprint = plan.capacity_bytes[0], plan.footprint_bytes
    pins = pins_of(plan.details)
    return holding(
        (profile.is_estimated, "The profile is an estimate: it was made from shapes, and its times are a model."),
        (
            budget >= footprint,
            f"{format_bytes(budget)} hold all {format_bytes(footprint)}: nothing moves; `--fast 20%` gives less.",
        ),
        (budget < footprint, about_moves(machine)),
        *((True, sentence) for sentence in about_pins(plan)),
        *(
            (True, f"{pattern!r} matches no parameter, buffer or optimizer state: no effect.")
            for pattern in pins.idle(profile)
        ),
        (told := pins.overruled(profile), f"{told}."),
        (told := about_compute(machine, all_fast_ns, profile.step_ns_plain), told),
    )
