"""`sentinel run`: a training script under Sentinel, in this process."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from sentinel.cli.common import FAILED, MACHINES, POLICIES, PRESETS, add_verb, amount, check_outputs, code_of
from sentinel.cli.script import module_named, run_as_main, script_at
from sentinel.core.errors import SentinelError, UsageError

if TYPE_CHECKING:
    from sentinel.reports import Report
    from sentinel.session.auto import Follower

_EXAMPLES = """\
examples:
  sentinel run --fast 20% --slow emulated:cxl-asic-x8 --report out.html train.py --epochs 3
      overrides what an annotated script asks for; the emulated tier works on any host
  sentinel run --fast 8GiB --slow numa:1 train.py
      bytes beyond 8 GiB live on NUMA node 1
  sentinel run --auto --fast 20% train.py
      for a script without annotations: finds its training loop by PyTorch's own hooks
  sentinel run --auto --fast 20% -m package.train --epochs 3
      a module, found as `python -m` finds it
  sentinel run --cpus node:0 --slow numa:1 train.py
      keeps all threads on the CPUs of node 0, so that its memory is the fast tier
  sentinel run --save-plan plan.json train.py
  sentinel run --plan plan.json train.py
      the second run applies the plan of the first one without profiling

The report is written when the script ends, also if it fails. Sentinel's options come before the script, the script's
after it. The exit code is the script's own, however its tensors were placed; it is 1 if the script succeeded but a
requested file could not be written.
"""


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verb's arguments."""
    parser = add_verb(
        verbs,
        "run",
        "train with a script, profiling one step and placing its tensors",
        f"{_EXAMPLES}\n{PRESETS}\n{MACHINES}",
    )
    where = parser.add_argument_group("where tensors live", "each overrides what the script asks for")
    where.add_argument(
        "--fast", type=amount, metavar="AMOUNT", help="fast memory: 20%% of the footprint, 8GiB, or bytes"
    )
    where.add_argument("--slow", metavar="TIER", help="auto, numa:1, emulated:PRESET[=8GiB+PRESET], or PRESET to plan")
    where.add_argument("--tracker", help="auto, ops, or a page tracker: ebpf (or ebpf:2MiB), perf, pagemap, uffd")
    where.add_argument("--policy", help=POLICIES)
    where.add_argument("--machine", metavar="PRESET|FILE", help="plan for the numbers of this machine")
    where.add_argument("--plan", metavar="FILE", help="apply this plan at once, without profiling")
    where.add_argument("--cpus", metavar="CPUS", help='run on these CPUs only: "node:0", "node:0,1", or "0-3,8"')
    where.add_argument("--rate-limit", metavar="RATE", help="migrations go no faster, each way: 500MB/s, 1GiB/s")
    out = parser.add_argument_group("files to write")
    out.add_argument("--report", metavar="FILE", help="write the report here: .html .json .csv .txt .trace")
    out.add_argument("--save-plan", metavar="FILE", help="write the plan here")
    out.add_argument("--save-profile", metavar="FILE", help="write the profile here")
    out.add_argument("--save-run", metavar="FILE", help="write the run here, for `sentinel report --run`")
    parser.add_argument("--auto", action="store_true", help="the script has no annotations: find its training loop")
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is the name of a module, not a path")
    parser.add_argument("script", metavar="SCRIPT", help="the training script")
    own = parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's arguments")
    own.required = False  # argparse would name it among what is missing
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Run the script, then write what was asked for; returns the script's exit code."""
    script = module_named(arguments.script) if arguments.module else script_at(arguments.script)
    check_files(arguments)
    bind_cpus(arguments.cpus)
    follower = prepare_session(arguments)
    try:
        status = run_as_main(script, arguments.arguments)
        if follower is not None:
            follower.finish()
    except SentinelError as error:
        if arguments.debug:
            raise
        print(f"sentinel: {error}", file=sys.stderr)
        status = code_of(error)
    kept = keep(arguments, follower, failed=status != 0)
    return status or kept


def check_files(arguments: argparse.Namespace) -> None:
    """Refuse what could not be written when the script has ended."""
    if arguments.report:
        from sentinel.reports.forms import form_of

        form_of(arguments.report)
    check_outputs(arguments.report, arguments.save_plan, arguments.save_profile, arguments.save_run)


def bind_cpus(cpus: str | None) -> None:
    """Bind this process to `cpus` before torch starts threads; say so where its CPUs are of several nodes."""
    from sentinel.system.affinity import bind_to, cpus_named, spanning
    from sentinel.system.topology import topology

    if cpus is not None:
        bind_to(cpus_named(cpus, topology()))
    said = spanning(topology())
    if said:
        print(f"sentinel: {said}", file=sys.stderr)


def prepare_session(arguments: argparse.Namespace) -> Follower | None:
    """Hand the overrides to the session that the script will start. Returns who finds the loop, where `--auto` asks.

    Raises what that session would raise for the overrides.
    """
    from sentinel import need_torch

    need_torch()
    from sentinel.session import Overrides, set_overrides

    names = ("fast", "slow", "tracker", "policy", "machine", "plan", "rate_limit")
    overrides = Overrides(**{name: getattr(arguments, name) for name in names})
    overrides.check()
    if arguments.tracker is not None:
        require_tracker(arguments.tracker)
    set_overrides(overrides)
    if not arguments.auto:
        return None
    from sentinel.session.auto import Follower

    return Follower()


def require_tracker(name: str) -> None:
    """Raises CapabilityError where the page tracker that is asked for does not work here."""
    from sentinel.profiler.pages import obstacle

    if name != "ops" and not name.startswith("auto") and (refused := obstacle(name)) is not None:
        raise refused


def keep(arguments: argparse.Namespace, follower: Follower | None, *, failed: bool) -> int:
    """Write report, plan, profile and run; returns 1 if one that was asked for could not be written.

    `follower`: who looked for the loop, and has said so where it failed. `failed`: the script did.
    """
    import sentinel
    from sentinel.session import end_applying

    asked = any((arguments.report, arguments.save_plan, arguments.save_profile, arguments.save_run))
    try:
        end_applying()
        report = sentinel.report()
    except UsageError:
        if follower is None or not follower.failed:
            print(f"sentinel: {arguments.script} {_why_none(arguments.auto, failed)}", file=sys.stderr)
        return FAILED if asked else 0
    except Exception as error:  # the training is done, and its exit code is not ours to change
        print(f"sentinel: there is no report: {error}", file=sys.stderr)
        return FAILED if asked else 0
    kept = save_nouns(arguments, report)
    if arguments.report:
        try:
            report.write(arguments.report)
            print(f"sentinel: report written to {arguments.report}", file=sys.stderr)
            return kept
        except SentinelError as error:  # such as a full disk: the training is done, and its report is not lost
            print(f"sentinel: {error}; this is the report:", file=sys.stderr)
            kept = FAILED
    print(report.text(), file=sys.stderr)
    return kept


def _why_none(auto: bool, failed: bool) -> str:
    """Why there is nothing to report, and what may help."""
    from sentinel import session

    if session.current() is not None:
        return "ended before a step was profiled to its end: end_profile() was not reached"
    if failed:
        return "ended before a step was profiled"
    if auto:
        return (
            "trained no step under Sentinel: --auto found no training loop: forwards with gradients, then steps of a"
            " torch.optim optimizer, at least three times in one thread (model.compile() hides forwards)"
        )
    return "trained no step under Sentinel; try --auto"


def save_nouns(arguments: argparse.Namespace, report: Report) -> int:
    """Write the plan, the profile and the run of the last session; returns 1 if one could not be written."""
    from sentinel import files, session

    last, code = session.current(), 0
    for noun, path in (
        (last.plan if last else None, arguments.save_plan),
        (last.profile if last else None, arguments.save_profile),
        (report.run, arguments.save_run),
    ):
        if path and noun is None:
            print(f"sentinel: nothing to write to {path}: the script ended before there was any", file=sys.stderr)
        elif path and noun is not None:
            try:
                files.save(noun, path)
            except SentinelError as error:  # the others may find room
                print(f"sentinel: {error}", file=sys.stderr)
                code = FAILED
    return code
