"""`sentinel simulate`: what a plan would do on a machine. Needs no torch, and not the machine."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from sentinel.cli.common import (
    HERE,
    MACHINES,
    OK,
    about_compute,
    add_json,
    add_verb,
    check_outputs,
    known_rows,
    machine_named,
    print_json,
    print_table,
    saving,
    telling,
    whole_number,
)
from sentinel.cli.plan import against, in_the_mean
from sentinel.core.budget import Budget
from sentinel.core.units import counted, format_bytes, format_ns

if TYPE_CHECKING:
    from sentinel.core.run import Run

_EXAMPLES = """\
examples:
  sentinel simulate p.safetensors plan.json --machine cxl-m5
  sentinel simulate p.safetensors plan.json --machine optane-m10 --steps 3 -o run.safetensors

Times are predictions, not measurements: every output says `simulated`.
"""


_MOST_STEPS = 10_000


def _steps(text: str) -> int:
    """An argparse type. Of each step rows are kept, and steps of the steady state are alike."""
    steps = whole_number(text)
    if steps > _MOST_STEPS:
        raise argparse.ArgumentTypeError(f"{text} steps are too many; give at most {_MOST_STEPS:,}")
    return steps


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verb's arguments."""
    parser = add_verb(verbs, "simulate", "predict what a plan does on a machine", f"{_EXAMPLES}\n{MACHINES}")
    parser.add_argument("profile", metavar="PROFILE", help="written by `sentinel run --save-profile`")
    parser.add_argument("plan", metavar="PLAN", help="written by `sentinel plan -o` or `sentinel run --save-plan`")
    parser.add_argument("--machine", metavar="PRESET|FILE", help=f"the machine to simulate (default: {HERE})")
    parser.add_argument("--steps", type=_steps, default=1, help="steps in the steady state (default 1)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the run here (.safetensors)")
    add_json(parser)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Simulate, write the run, print its numbers."""
    from sentinel import files, planner
    from sentinel.reports.price_of_moves import about_moves
    from sentinel.simulator import simulate

    check_outputs(arguments.output, read=(arguments.profile, arguments.plan, arguments.machine))
    profile = files.load_profile(arguments.profile)
    plan = files.load_plan(arguments.plan)
    machine = machine_named(arguments.machine)
    with telling(f"simulating {len(plan.migrations)} migrations over {plan.n_layers} layers"):
        run = simulate(plan, profile, machine, steps=arguments.steps)
        everything = Budget(planner.footprint_bytes(profile))
        all_fast = planner.plan(profile, machine, "all-fast", budget=everything).predicted_step_ns
    found = numbers(run)
    run = files.with_origin(run, profile=profile, plan=plan, machine=machine)
    with saving(arguments.output, partial(files.save, run)) as saved:
        if arguments.json:
            print_json({**found, "step_ns_all_fast": all_fast, "price_of_moves": about_moves(machine)})
            return OK
        print(f"simulated on {machine.name}: predictions, nothing was run\n")
        print_table(rows_of(found, all_fast))
        if plan.migrations:
            print(f"\n{about_moves(machine)}")
        if told := about_compute(machine, all_fast, profile.step_ns_plain):
            print(f"\n{told}")
        if saved:
            print(f"run written to {arguments.output}")
    return OK


def rows_of(found: dict[str, Any], all_fast_ns: int | None) -> list[tuple[str, str, str]]:
    """(what, amount, what to compare it with) of `numbers`; what is unknown is left out."""
    step, moves = found["step_ns"], counted(found["migrations_per_step"], "migration")
    cases = "/".join(str(found[f"case{case}"]) for case in (1, 2, 3))
    return known_rows(
        ("step", step, format_ns, against(step, all_fast_ns)),
        ("  all fast", all_fast_ns, format_ns, "with everything in fast memory"),
        ("  waits", found["stall_ns_per_step"], format_ns, "for what had not arrived"),
        ("fast memory", found["fast_capacity_bytes"], format_bytes, "the plan's budget"),
        ("  most in use", found["fast_peak_bytes"], format_bytes, in_the_mean(found["fast_mean_bytes"])),
        ("moved a step", found["migrated_bytes_per_step"], format_bytes, moves),
        ("layers", cases, str, "had all in time / waited for room / for time (cases 1, 2, 3)"),
    )


def numbers(run: Run) -> dict[str, Any]:
    """A run in numbers, each of a median or the last step."""
    done = run.steps[run.steps["in_step"]]
    last = run.migrations[run.migrations["step"] == run.steps["step"][-1]] if len(run.steps) else run.migrations
    return {
        "kind": run.kind,
        "steps": len(run.steps),
        "step_ns": run.step_ns,
        "stall_ns_per_step": int(done["stall_ns"][-1]) if len(done) else None,
        "fast_capacity_bytes": run.fast_capacity_bytes,
        "fast_peak_bytes": int(run.steps["fast_peak_bytes"].max()) if len(run.steps) else None,
        "fast_mean_bytes": run.fast_mean_bytes,
        "migrations_per_step": len(last),
        "migrated_bytes_per_step": int(last["moved_bytes"].sum()),
        **{f"case{case}": count for case, count in run.counters.cases.items()},
    }
