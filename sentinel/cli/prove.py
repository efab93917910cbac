"""`sentinel prove`: what a host with two kinds of memory runs once, and sends back."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentinel.cli.common import (
    FAILED,
    INTERRUPTED,
    OK,
    above_0,
    add_json,
    add_verb,
    end_as_by_an_interrupt,
    print_json,
    print_table,
)
from sentinel.cli.script_session import file_from_here
from sentinel.core.errors import CapabilityError, SentinelError, UsageError
from sentinel.core.rules import require
from sentinel.system.progress import say

if TYPE_CHECKING:
    from sentinel.proving.proof import Asked, Proof
    from sentinel.proving.proof_folder import ProofFolder

EMULATED = "emulated:cxl-asic-x8"
_LEAST_FILE_BYTES = 64 << 20
_EXAMPLES = """\
examples:
  sentinel prove
      what this host allows, its memory's speeds, then six examples under every placement, the most important first,
      until an hour is over; keep the host idle
  sentinel prove --dry-run
      what would be run, in which order, with minutes
  sentinel prove --quick -o try
      two small models, a minute or two
  sentinel prove --slow numa:1 --minutes 90 -o proof
  sentinel prove --resume -o proof
      runs what has not run yet, after an interruption or once the time was up

Send back two files of the folder: sentinel-proof.html and sentinel-proof.json. They hold no name of host or user, no
path and no address; all that they hold is listed at the end of the page, and printed. The folder `work` beside them
stays with you.

--slow auto takes the nearest slower node, else ordinary memory with injected delays, and says which; it also tries a
file in the folder. Each prediction is written, with a digest, before the run that judges it. Losses and trained
parameters of each run are compared with those of stock PyTorch, bit by bit. The kernel's own placements need root and
other kernel settings, which are put back.

exit code: 0 if all runs succeeded with the same bits; 1 if bits differ anywhere, or a run failed; 130 if it was
interrupted: the files have what was done by then, marked partial.
"""


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verb's arguments."""
    parser = add_verb(
        verbs, "prove", "predict, then measure placements on this host; writes two files to send back", _EXAMPLES
    )
    minutes = partial(above_0, of="minutes above 0, and below a week", below=60 * 24 * 7)
    parser.add_argument("--minutes", type=minutes, default=60.0, metavar="N", help="time limit in minutes (default 60)")
    parser.add_argument("--quick", action="store_true", help="two small models and few placements")
    parser.add_argument(
        "--slow", default="auto", metavar="TIER", help="auto, numa:1, emulated:PRESET or file:DIR (default auto)"
    )
    parser.add_argument(
        "-o", "--output", default="sentinel-proof", metavar="FOLDER", help="where to write (default %(default)s)"
    )
    parser.add_argument(
        "--no-kernel",
        action="store_true",
        help="leave out the kernel's own placements, for which nearly all of the fast node is pinned meanwhile",
    )
    parser.add_argument("--resume", action="store_true", help="continue the proof in the folder")
    parser.add_argument("--dry-run", action="store_true", help="print what would be run, and run nothing")
    add_json(parser)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Prove, write the two files, print the table or the object."""
    from sentinel.proving.proof_folder import OBJECT, PAGE

    dry = arguments.dry_run
    require(
        (dry and arguments.json, "--dry-run with --json: what would be run is told as a table only", "leave one out"),
        (dry and arguments.resume, "--dry-run with --resume: it does not look at what has run", "leave one out"),
    )
    path = Path(os.path.abspath(arguments.output))
    asked = asked_for(arguments.slow, path, quick=arguments.quick, kernel=not arguments.no_kernel)
    if dry:
        _print_plan(asked, arguments.minutes)
        return OK
    _require_torch()
    if asked.on_nodes:
        _stay_near_the_fast_node()
    with _opened(path, asked, resume=arguments.resume) as folder:
        found, code = _proved(asked, folder, arguments.minutes)
    if arguments.json:
        print_json(found)
    else:
        from sentinel.reports.proof_tables import table_row, text

        print(text(found))
        print("\nWhat is in the file, and nothing else:")
        print(textwrap.fill(", ".join(found["contents"]), 116, initial_indent="  ", subsequent_indent="  "))
        print(f"\nThe row for docs/real-hardware.md:\n{table_row(found)}")
    say(f"to send back: {path / PAGE} and {path / OBJECT}")
    return code


def asked_for(slow: str, folder: Path, *, quick: bool, kernel: bool = True) -> Asked:
    """What a proof is of. Raises UsageError or CapabilityError for words that this host cannot do."""
    from sentinel.proving.proof import Asked
    from sentinel.proving.workloads import examples, small_workloads
    from sentinel.system.topology import topology
    from sentinel.tiers import machine_for, on_paper
    from sentinel.tiers.file_tier import is_file

    file: str | None = None
    tier: str | None = slow
    if slow == "auto":
        slower = topology().slower
        tier = f"numa:{slower[0]}" if slower else EMULATED
        file = _file_in(folder)
    elif is_file(slow):
        _require_file(slow)
        tier, file = None, file_from_here(slow)
    if tier is not None:
        require(
            (
                on_paper(machine_for(tier)),
                f"--slow {slow} exists as a description only: nothing can run there",
                f"give numa:1, emulated:{slow.partition('=')[0]}, file:DIR or auto",
            ),
        )
    return Asked(small_workloads() if quick else examples(), tier, file, quick, kernel)


def _stay_near_the_fast_node() -> None:
    """From now on this process and its children run on CPUs of the fast node only: else none is near all memory."""
    from sentinel.system.affinity import bind_to
    from sentinel.system.topology import topology

    host = topology()
    node, allowed = host.node(host.fast), os.sched_getaffinity(0)
    near = allowed & set(node.cpus) if node is not None else allowed
    if near and near != allowed:
        bind_to(near)
        say(f"all runs are on the {len(near)} CPUs of node {host.fast}, of {len(allowed)} that may be used")


def _file_in(folder: Path) -> str | None:
    """A file in the folder of the results, or in what is there of its path; None where it could not overflow there."""
    while not folder.is_dir():
        folder = folder.parent
    try:
        _require_file(f"file:{folder}")
    except SentinelError as error:
        say(f"no file is tried as slow memory: {error}")
        return None
    return f"file:{folder}"


def _require_file(slow: str) -> None:
    from sentinel.tiers.file_tier import FileTier

    FileTier.asked(slow, _LEAST_FILE_BYTES)


def _require_torch() -> None:
    from importlib.util import find_spec

    from sentinel.proving.workloads import CHECKOUT

    if find_spec("torch") is None:
        raise CapabilityError("training the workloads", "torch is not installed", CHECKOUT)


def _opened(path: Path, asked: Asked, *, resume: bool) -> ProofFolder:
    """The folder, new or gone on with."""
    from sentinel.proving.host_facts import host, same_host
    from sentinel.proving.proof_folder import ProofFolder

    settings = {**asked.settings(), "on": same_host(host())}
    try:
        return (ProofFolder.resume if resume else ProofFolder.begin)(path, settings)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", "give another folder with -o") from error


def _proved(asked: Asked, folder: ProofFolder, minutes: float) -> tuple[dict[str, Any], int]:
    """The object, written already, and the exit code."""
    from sentinel.proving.cell_process import CellFailed
    from sentinel.proving.proof import Proof
    from sentinel.proving.proof_document import written
    from sentinel.reports.proof_tables import bits_differ, failures

    proof = Proof(asked, folder, minutes * 60, say)
    code, partial = OK, ""
    end_as_by_an_interrupt()
    try:
        try:
            proof.run()
        finally:
            _ignore_interrupts()  # what is there is written, which takes a second
    except KeyboardInterrupt:
        code, partial = INTERRUPTED, "it was interrupted"
    except CellFailed as error:
        code, partial = FAILED, str(error)
    partial = partial or _short_of(proof, asked)
    found = written(proof, folder, asked.settings(), partial)
    for sentence in failures(found):
        say(sentence)
    return found, code or (FAILED if bits_differ(found) or failures(found) else OK)


def _short_of(proof: Proof, asked: Asked) -> str:
    missing, every = len(proof.not_run), len(asked.cells())
    return f"{missing} of {every} cells were not run; --resume goes on with them" if missing else ""


def _ignore_interrupts() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _print_plan(asked: Asked, minutes: float) -> None:
    """The cells in their order, with the minute at which each begins, as expected on two slow cores."""
    from sentinel.proving.host_facts import fast_node_bytes, host
    from sentinel.proving.proof import ahead_s

    at, node_bytes = ahead_s(asked), fast_node_bytes(host())
    rows = [("minute", "workload", "placement"), ("0.0", "all", "host, calibration, a profiled step, predictions")]
    for cell in asked.cells():
        takes_s = cell.expected_s(asked.quick, node_bytes)
        late = "" if at + takes_s <= 60 * minutes else "  (not within --minutes)"
        again = f", round {cell.round}" if cell.round > 1 else ""
        rows.append((f"{at / 60:.1f}", cell.workload.name, f"{cell.placement}{again}{late}"))
        at += takes_s
    print_table(rows)
    print(f"slow memory: {asked.slow or 'none'}{'; ' + 'a file' if asked.file else ''}")
    print(f"about {at / 60:.0f} minutes on two slow cores, less on others; limit {minutes:g}", file=sys.stdout)
    if asked.compares:
        print("changed meanwhile, and put back: NUMA balancing, demotion, interleave weights, memory cgroups,")
        print("  processors' lists of free pages, and khugepaged, which sleeps (all as root)")
        print("pinned meanwhile: nearly all memory of the fast node, for equal fast bytes; not with --no-kernel")
    else:
        print("no setting of the kernel is changed")
