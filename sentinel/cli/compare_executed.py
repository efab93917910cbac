"""`sentinel compare --executed`: the same script under every placement in this machine, and what the kernel says."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from functools import partial
from typing import TYPE_CHECKING

from sentinel.cli.common import FAILED, OK, end_as_by_an_interrupt, print_json, saving, telling, whole_number
from sentinel.core.errors import CapabilityError, UsageError
from sentinel.core.rules import require

if TYPE_CHECKING:
    from sentinel.core.machine import Machine
    from sentinel.executed.child import ComparedJob
    from sentinel.reports.placement_comparison import PlacementComparison, Row

DEFAULT_SLOW, DEFAULT_FAST, DEFAULT_WARM_UP, DEFAULT_MEASURE = "numa:1", "20%", 4, 2


def add_to(parser: argparse.ArgumentParser) -> None:
    """The arguments that only an executed comparison takes."""
    group = parser.add_argument_group("with --executed SCRIPT ARGUMENTS…", "Sentinel's options come before --executed")
    group.add_argument(
        "--executed",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT",
        help="run this training script once per placement on the NUMA nodes of this host",
    )
    group.add_argument("--slow", metavar="numa:N", help=f"the slow node (default {DEFAULT_SLOW})")
    group.add_argument("--tracker", help="tracker of our run: auto (default), ops, ebpf, perf, pagemap, uffd")
    group.add_argument("--plan", metavar="FILE", help="our run applies this saved plan, without profiling")
    group.add_argument(
        "--warm-up",
        type=whole_number,
        metavar="STEPS",
        help=f"steps before those measured (default {DEFAULT_WARM_UP})",
    )
    group.add_argument(
        "--measure", type=whole_number, metavar="STEPS", help=f"steps measured (default {DEFAULT_MEASURE})"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Run every placement, write the page, print the table or the object; FAILED if bits differ anywhere."""
    from sentinel import need_torch
    from sentinel.reports.placement_comparison import as_object, text

    arguments.slow = DEFAULT_SLOW if arguments.slow is None else arguments.slow
    arguments.fast = arguments.fast or (DEFAULT_FAST,)
    names, slow = _checked(arguments)
    need_torch()
    end_as_by_an_interrupt()
    with telling("importing torch"):
        job = _job(arguments, slow)
    found = _compared(job, names, arguments)
    with saving(arguments.html, partial(_write_page, found)):
        if arguments.json:
            print_json(as_object(found))
        else:
            print(text(found))
    return FAILED if any(row.same_losses is False or row.same_parameters is False for row in found.rows) else OK


def _write_page(found: PlacementComparison, path: str) -> None:
    from sentinel.files.disk import write_whole
    from sentinel.reports.html.placement_comparison_page import executed_page

    write_whole(path, executed_page(found).encode(errors="backslashreplace"))


def _checked(arguments: argparse.Namespace) -> tuple[tuple[str, ...], Machine]:
    """The placements and the two nodes that are asked for. Whatever is wrong is raised here, before torch is there."""
    from sentinel.executed.placements import NAMES
    from sentinel.system.topology import topology
    from sentinel.tiers import machine_for

    names: tuple[str, ...] = arguments.policies or NAMES
    unknown = next((name for name in names if name not in NAMES), None)
    script = "".join(arguments.executed[:1])
    require(
        (unknown is not None, f"there is no placement {unknown!r}", f"choose of {', '.join(NAMES)}"),
        (not arguments.executed, "--executed: no script is given", "name it last, with its own arguments after it"),
        (not os.path.isfile(script), f"there is no script {script}", "give the path of a training script"),
        (
            len(arguments.fast) != 1,
            "--executed measures one amount of fast memory",
            "give one, such as --fast 20%",
        ),
    )
    elsewhere = "run it on a host, or in a virtual machine, with two nodes"
    try:
        machine = machine_for(arguments.slow)
    except CapabilityError as error:
        if sum(node.total_bytes > 0 for node in topology().nodes) > 1:
            raise
        raise CapabilityError(f"--slow {arguments.slow}", error.why, elsewhere) from None
    if any(tier.kind != "node" or tier.node is None for tier in machine.tiers):
        raise UsageError(f"--slow {arguments.slow} is not a NUMA node, as --executed needs", elsewhere)
    return names, machine


def _job(arguments: argparse.Namespace, machine: Machine) -> ComparedJob:
    from sentinel.executed.child import compared_job
    from sentinel.executed.observer import Window
    from sentinel.session import Request

    script, *own = arguments.executed
    if taken := [word for word in own if word.split("=")[0] in ("--policies", "--html", "--warm-up", "--measure")]:
        print(
            f"sentinel: {' '.join(taken)} is passed to {script}; put Sentinel's options before --executed",
            file=sys.stderr,
        )
    words = {name: getattr(arguments, name) for name in ("slow", "tracker", "machine", "plan")}
    said = {"fast": arguments.fast[0], **{name: word for name, word in words.items() if word is not None}}
    Request(**said).check()
    window = Window(arguments.warm_up or DEFAULT_WARM_UP, arguments.measure or DEFAULT_MEASURE)
    return compared_job(script, own, machine, said, window)


def _compared(job: ComparedJob, names: tuple[str, ...], arguments: argparse.Namespace) -> PlacementComparison:
    from sentinel.executed import comparing
    from sentinel.reports.placement_comparison import PlacementComparison, cells
    from sentinel.system.processor import is_emulated

    found: list[Row] = []
    room: tuple[int, int] | None = None
    for row, equal in comparing.rows(job, names, telling):
        found.append(row)
        room = equal
        print(f"sentinel: {': '.join(cells(row)[:2])}", file=sys.stderr, flush=True)
    return PlacementComparison(
        script=" ".join((job.script, *job.arguments)),
        fast=arguments.fast[0],
        slow=arguments.slow,
        fast_bytes=room[0] if room else None,
        beside_bytes=room[1] if room else None,
        emulated=is_emulated(),
        where=_where(arguments),
        rows=tuple(found),
    )


def _where(arguments: argparse.Namespace) -> dict[str, str]:
    from importlib.metadata import version

    from sentinel import __version__

    return {
        "kernel": platform.release(),
        "torch": version("torch"),
        "sentinel": __version__,
        "machine": arguments.machine or "this host's own numbers",
    }
