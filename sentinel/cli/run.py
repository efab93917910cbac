"""`sentinel run`: a training script under Sentinel, in this process."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from sentinel.cli.before_torch import AfterTorch, away_from, is_loaded, refused_apart, require_torch
from sentinel.cli.common import (
    MACHINES,
    POLICIES,
    PRESETS,
    add_pins,
    add_verb,
    amount,
    code_of,
    fast_amount,
    whole_number,
)
from sentinel.cli.early_end import Enough, StepLimit, before_sigterm
from sentinel.cli.kept_files import DEFAULT_REPORT, KeptFiles, require_form
from sentinel.cli.launchers import require_no_launcher
from sentinel.cli.live import Live
from sentinel.cli.script import BY_INTERRUPT, EndsByInterrupt, module_named, run_as_main, script_at
from sentinel.cli.script_session import asked_by, prepare_session, said, settings_wherever_the_script_goes, words_of
from sentinel.cli.story import Story, tell_end
from sentinel.core.errors import SentinelError, UsageError
from sentinel.core.interrupts import is_interrupt
from sentinel.core.rules import require
from sentinel.core.units import parse_fast
from sentinel.runtime import RUNTIME
from sentinel.system import progress
from sentinel.system.progress import on_stderr, say

if TYPE_CHECKING:
    from sentinel.session.auto import Follower
    from sentinel.session.planning import Dataflow

_EXAMPLES = """\
examples:
  sentinel run --fast 20% train.py --epochs 3
      profiles a step, and from the next one on keeps a fifth of the memory fast
  sentinel run --fast 20% --slow emulated:cxl-asic-x8 train.py
      works on any host: the slow tier is ordinary memory with injected delays
  sentinel run --fast 8GiB --slow numa:1 -m package.train --epochs 3
      bytes beyond 8 GiB live on NUMA node 1; the module is found as `python -m` finds it
  sentinel run --dry-run train.py
      profiles a step, prints how much fast memory is enough, and stops the script
  sentinel run --fast 8GiB --slow file:/data/scratch train.py
      keeps 8 GiB of tensors in memory and the rest in a file, which it reads ahead; works with any script
  sentinel run --cap 8GiB train.py
      the whole process takes 8 GiB, as far as the operands of each operator fit; the file is on the fastest local disk,
      on that of the root file system only if you name a folder there: --slow file:/var/tmp
  sentinel run --cpus node:0 --slow numa:1 train.py
      keeps all threads on the CPUs of node 0, so that its memory is the fast tier
  sentinel run --save-plan plan.json train.py
  sentinel run --plan plan.json train.py
      the second run applies the plan of the first one without profiling

The script needs no change: Sentinel finds its training loop by PyTorch's own hooks. If the script calls
sentinel.annotate() and sentinel.start_profile() itself, options given here override its arguments. Sentinel's options
come before the script, the script's own after it. The exit code is the script's, even if placement or a file failed.

Defaults can be set in the environment (SENTINEL_FAST, SENTINEL_SLOW and so on) or in a file of the current folder:
sentinel.toml, or the table [tool.sentinel] of pyproject.toml. `sentinel doctor` shows which values are used.

Profile and plan are written as soon as they exist, the report every few minutes and at the end, even if the script
fails or SIGTERM ends it. With several processes (`torchrun --no-python sentinel run ...`), each writes files with its
rank in their names, and one report covers all ranks. All processes of a node share `--fast 8GiB/node`.
"""


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verb's arguments."""
    parser = add_verb(
        verbs,
        "run",
        "train with a script, profiling one step and placing its tensors",
        f"{_EXAMPLES}\n{PRESETS}\n{MACHINES}",
    )
    where = parser.add_argument_group("where tensors live", "each overrides what the script itself gives")
    where.add_argument(
        "--fast",
        type=fast_amount,
        metavar="AMOUNT",
        help="fast memory: 20%% of the footprint, 8GiB, 8GiB/node shared by all processes of a node, or bytes"
        " (default: all that the fast tier has, so if everything fits, nothing moves; with a file, what the limit of"
        " the container leaves)",
    )
    where.add_argument(
        "--slow",
        metavar="TIER",
        help="auto, numa:1, file:DIR[=64GiB], file:auto, emulated:PRESET[=8GiB+PRESET], or PRESET to plan (default:"
        " auto, the nearest slower NUMA node; if there is none, Sentinel profiles and plans, and applies nothing; with"
        " --cap: file:auto, the local disk that looks fastest)",
    )
    where.add_argument(
        "--cap",
        type=amount,
        metavar="SIZE",
        help="limit for the whole process and its children; tensors get what the rest of it leaves, and are in a file"
        " where they do not fit",
    )
    where.add_argument(
        "--overlap-optimizer",
        action="store_const",
        const=True,
        help="with a file: update each parameter within backward, and free its gradient there",
    )
    where.add_argument(
        "--tracker", help="auto (default), ops, or a page tracker: ebpf (or ebpf:2MiB), perf, pagemap, uffd"
    )
    where.add_argument("--policy", help=POLICIES)
    where.add_argument("--machine", metavar="PRESET|FILE", help="plan for the numbers of this machine")
    where.add_argument("--plan", metavar="FILE", help="apply this plan at once, without profiling")
    where.add_argument("--cpus", metavar="CPUS", help='run on these CPUs only: "node:0", "node:0,1", or "0-3,8"')
    add_pins(where)
    where.add_argument("--rate-limit", metavar="RATE", help="limit for migrations in each direction: 500MB/s, 1GiB/s")
    out = parser.add_argument_group("files to write")
    out.add_argument(
        "--report",
        metavar="FILE",
        help=f"the report: .html .json .csv .txt .trace, or - to show it (default: {DEFAULT_REPORT})",
    )
    out.add_argument("--save-plan", metavar="FILE", help="write the plan here")
    out.add_argument("--save-profile", metavar="FILE", help="write the profile here")
    out.add_argument("--save-run", metavar="FILE", help="write the run here, for `sentinel report --run`")
    parser.add_argument("--dry-run", action="store_true", help="profile a step, print how much is enough, and stop")
    parser.add_argument("--steps", type=whole_number, metavar="N", help="stop the script after N optimizer steps")
    parser.add_argument(
        "--live", action="store_true", help="print a line every 5 s: steps, tiers, links, waits, lateness"
    )
    parser.add_argument("--quiet", action="store_true", help="print only what went wrong")
    parser.add_argument("--auto", action="store_true", help=argparse.SUPPRESS)  # what is done anyway
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is the name of a module, not a path")
    parser.add_argument("script", metavar="SCRIPT", help="the training script")
    own = parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's arguments")
    own.required = False  # argparse would name it among what is missing
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Run the script, then write what was asked for; returns the script's exit code."""
    require(
        (arguments.live and arguments.quiet, "--live with --quiet: its lines would not be printed", "leave one out")
    )
    require_no_launcher(arguments)
    RUNTIME.configured = settings_wherever_the_script_goes()
    arguments.report = said(arguments, "report")
    require_a_watched_step(arguments)
    script = module_named(arguments.script) if arguments.module else script_at(arguments.script)
    kept = KeptFiles.asked_for(arguments, script.path)
    if arguments.cpus is not None:
        bind_cpus(arguments.cpus)
    progress.ONLY_WRONG, progress.STDOUT_IS_THE_SCRIPTS = arguments.quiet, True
    tell_of_misplaced_options(arguments)
    require_torch()
    words = words_of(arguments)

    def check() -> None:
        require_form(arguments.report)
        asked_by(words)

    if is_loaded():
        check()
    elif (words or RUNTIME.configured or arguments.report) and (refused := refused_apart(check, debug=arguments.debug)):
        return refused
    story, limit, process = Story(dry=arguments.dry_run), StepLimit(arguments.steps, dry=arguments.dry_run), os.getpid()
    sigterm_waits = before_sigterm(lambda: write_what_is_known(kept))
    live = Live() if arguments.live else None
    follower: Follower | None = None

    def begin() -> None:
        nonlocal follower
        with sigterm_waits(lambda: write_what_is_known(kept)), away_from(script.folder):
            if arguments.cpus is None:
                bind_cpus(None)
            follower = prepare_session(words)
            watch(story, kept, limit, sigterm_waits, live=live, quiet=arguments.quiet)

    def begin_in_the_script() -> None:
        try:
            begin()
        except Exception as error:
            if is_interrupt(error) or (isinstance(error, SentinelError) and arguments.debug):
                raise
            if isinstance(error, SentinelError) and threading.current_thread() is threading.main_thread():
                on_stderr(f"sentinel: {error}")
                raise SystemExit(code_of(error)) from None  # through the script, which may guard its import of torch
            end_what_began()
            say(f"training goes on without Sentinel, which cannot begin: {error}", wrong=True)

    if is_loaded():
        begin()
    else:
        AfterTorch(begin_in_the_script)
    RUNTIME.ends_at_exit = True
    atexit.register(end_at_exit)  # after the script's own exit functions, which may need the session
    RUNTIME.shows_uncaught = True  # what the script does not catch ends the session below, and not as it is shown
    try:
        status = run_as_main(script, arguments.arguments)
    except SentinelError as error:
        if arguments.debug:
            raise
        on_stderr(f"sentinel: {error}")
        status = code_of(error)

    def end() -> None:
        if os.getpid() != process:  # a child that the script forked and let run on
            return
        try:
            with sigterm_waits():
                finish(arguments, follower, kept, limit, failed=status != 0)
        except KeyboardInterrupt:
            say("interrupted: the report was not finished", wrong=True)
        except Exception as error:  # the training is done, and its exit code is not ours to change
            say(f"the report was not finished: {error}", wrong=True)

    once_nothing_trains(end)
    if status == BY_INTERRUPT:
        raise EndsByInterrupt
    return status


def end_at_exit() -> None:
    """Ends the session, if one began."""
    if calls := sys.modules.get("sentinel.session.calls"):
        calls.end_at_exit()


def end_what_began() -> None:
    """Nobody watches for a loop, and no session runs, where the rest of what they need could not be had."""
    if RUNTIME.finder is not None:
        RUNTIME.finder.give_way()
    end_at_exit()


def once_nothing_trains(end: Callable[[], None]) -> None:
    """`end()`: now, where the script's main code is all there is to it. Python waits for other threads before it ends,
    and such a one may train, or may be about to: then as Python ends, before the script's exit functions. To wait here
    would take for ever for threads that end only once Python has begun to end."""
    waited_for = any(not each.daemon for each in threading.enumerate() if each is not threading.current_thread())
    if waited_for and _trains_elsewhere():
        atexit.register(end)
    else:
        end()


def _trains_elsewhere() -> bool:
    """Whether it is not this thread whose steps a session follows, or may come to follow."""
    if RUNTIME.last is None:
        return True
    from sentinel import session

    last = session.current()
    return last is None or last.away


_OF_A_PLAN = {
    "--dry-run": "dry_run",
    "--save-profile": "save_profile",
    "--save-plan": "save_plan",
    "--save-run": "save_run",
    "--live": "live",
}


def require_a_watched_step(arguments: argparse.Namespace) -> None:
    """Raises UsageError for what is asked of a profiled step or its plan where there will be none: a dry run would not
    stop, and what is to be written would be missed when the training is over."""
    asked = [option for option, name in _OF_A_PLAN.items() if getattr(arguments, name)]
    if not asked:
        return
    if arguments.dry_run and said(arguments, "plan") is not None:
        raise UsageError("--dry-run with --plan: a saved plan is applied without profiling a step", "leave one out")
    slow, cap = said(arguments, "slow"), said(arguments, "cap")
    by_cap = cap is not None and slow in (None, "auto")  # a cap takes a file by itself
    if by_cap or str(slow).startswith("file:"):
        remedy = "leave one out"
        raise UsageError(
            f"{asked[0]} with {f'--cap {cap}' if by_cap else f'--slow {slow}'}: with a file, no step is profiled and"
            " nothing is planned",
            f"{remedy}; `--steps N` stops after N steps of an optimizer" if arguments.dry_run else remedy,
        )


_MISPLACED = ("--fast", "--slow", "--cap", "--save-profile", "--save-plan")
"""Options that are easily written after the script, and hardly any script has."""


def tell_of_misplaced_options(arguments: argparse.Namespace) -> None:
    """What comes after the script is the script's: say so of words that are probably meant for Sentinel."""
    taken = [word for word in arguments.arguments if word.split("=")[0] in _MISPLACED]
    if taken:
        say(f"{', '.join(taken)}: passed to {arguments.script}; put Sentinel's own options before it")


def watch(
    story: Story,
    kept: KeptFiles,
    limit: StepLimit,
    sigterm_waits: Callable[..., AbstractContextManager[object]],
    *,
    live: Live | None,
    quiet: bool,
) -> None:
    """All are told what sessions do from now on, or hear each step of an optimizer. The limit comes last: it ends the
    script. `sigterm_waits`: see `before_sigterm`."""
    from sentinel import observe
    from sentinel.session.optimizer_steps import after_each_step

    for each in (kept, *(() if quiet else (story,)), *(() if live is None else (live,)), limit):
        observe(each)
    process = os.getpid()

    def stepped() -> None:
        if os.getpid() != process:  # a forked child: the files are its parent's
            return
        story.steps += 1
        try:
            with sigterm_waits(lambda: write_what_is_known(kept)):
                kept.stepped()
        except Exception as error:  # the script's own step must not fail for it
            if is_interrupt(error):
                raise
        limit.stepped()

    after_each_step(stepped)


def write_what_is_known(kept: KeptFiles) -> None:
    """Plan, profile, run and report as they stand, while the session goes on, and without the search for the bound:
    whoever ends the process may not wait for it."""
    report = None
    if RUNTIME.last is not None:
        from sentinel import session

        last = session.current()
        with contextlib.suppress(UsageError):  # its remedy is for who calls report()
            report = session.report(bounded=False) if last is None else last.report(bounded=False)
    if report is None:
        say("ended by SIGTERM before a step was profiled, so there is no report", wrong=True)
        return
    kept.write_nouns(report.run)
    if kept.write_report(report, failed=True):
        say(f"ended by SIGTERM; report  {kept.written}")


def bind_cpus(cpus: str | None) -> None:
    """Bind this process to `cpus`, if any, before torch starts threads; say so where its CPUs are of several nodes."""
    from sentinel.system.affinity import bind_to, cpus_named, spanning
    from sentinel.system.topology import topology

    if cpus is not None:
        bind_to(cpus_named(cpus, topology()))
    said = spanning(topology())
    if said:
        say(said)  # also where stderr is full or closed: the script runs


def finish(
    arguments: argparse.Namespace, follower: Follower | None, kept: KeptFiles, limit: StepLimit, *, failed: bool
) -> None:
    """The script has ended: write report, plan, profile and run, and tell how it went. `failed`: the script did.
    `follower`: None where it has not imported torch, or Sentinel could not begin."""
    if follower is None:
        kept.end_without_report(failed=failed)
        if not is_loaded():  # else it is said already
            why = _BEFORE_A_STEP if failed else "trained no step under Sentinel: it did not import torch"
            say(f"{arguments.script} {why}", wrong=True)
        return
    import sentinel
    from sentinel import session

    for end in (follower.finish, session.end_applying):
        with contextlib.suppress(Enough):  # there is no script any more that it would end
            end()
    try:
        report = sentinel.report()
    except UsageError:
        kept.end_without_report(failed=failed)
        if not follower.failed:  # else it is said already
            say(f"{arguments.script} {_why_none(failed)}", wrong=True)
        return
    kept.write_nouns(report.run)
    if not arguments.quiet:
        tell_end(report, curve=limit.asked)
    if kept.write_report(report, failed=failed) and not arguments.quiet:
        say(f"report  {kept.written}")
    last = session.current()
    if limit.asked and last is not None:
        tell_curve(arguments, last.flow)


def tell_curve(arguments: argparse.Namespace, flow: Dataflow) -> None:
    """How much fast memory is enough for the step that was profiled, with what its plan keeps fast or slow. A dry run
    tells it also where it is to be quiet: that is what it is for."""
    from sentinel.cli.fast_memory_curve import curve_text
    from sentinel.core.pins import pins_of

    if flow.profile is None or flow.machine is None or (arguments.quiet and not arguments.dry_run):
        return
    asked = said(arguments, "fast")
    if flow.budget is not None and asked is not None and parse_fast(asked).per_node:
        asked = flow.budget.fast_bytes  # this process's part
    asked = None if asked is None else str(asked)  # a file of settings may have a number
    pins = None if flow.plan is None else pins_of(flow.plan.details)
    try:
        on_stderr(curve_text(arguments.script, flow.profile, flow.machine, asked, pins))
    except SentinelError as error:  # the report is written already
        say(f"no curve of fast memory: {error}", wrong=True)


_BEFORE_A_STEP = "ended before a step was profiled"


def _why_none(failed: bool) -> str:
    """Why there is nothing to report, and what may help."""
    from sentinel import session
    from sentinel.session.auto import CUT_SHORT, NO_LOOP

    if session.current() is not None:
        return f"{CUT_SHORT}: end_profile() was not reached"
    if failed:
        return _BEFORE_A_STEP
    return f"trained no step under Sentinel: {NO_LOOP}"
