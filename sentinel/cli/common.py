"""What the verbs share: arguments, progress, tables and JSON."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from sentinel import planner
from sentinel.core.errors import Infeasible, SentinelError, UsageError
from sentinel.core.units import format_ns, parse_budget, parse_bytes, parse_fast
from sentinel.system.progress import telling as telling

if TYPE_CHECKING:
    from sentinel.core.machine import Machine
    from sentinel.core.pins import Pins

OK, FAILED, USAGE, INFEASIBLE, INTERRUPTED = 0, 1, 2, 3, 130
POLICIES = ", ".join(planner.POLICIES).replace(",", " (default),", 1)
"""Their names, for the help."""
MACHINES = """\
described machines: {slow-,}{cxl,numa,optane}-m{2,5,10,link}, such as cxl-m5: 24 cores and CXL memory, migration at
5 GB/s. m2, m5, m10, mlink: migration at 2, 5, 10 GB/s or at link speed. slow-: 0.5 instead of 1.5 TFLOP/s.
cxl-m{2,5}-priced: migration also takes time from compute. Others: a file made by `sentinel calibrate -o`.
"""
PRESETS = """\
presets of slow memory: cxl-asic-x8, cxl-fpga, cxl-fpga-remote, cxl-worst, optane-6dimm, nvme-gen4, numa-remote-clx,
numa-remote-icx, numa-remote-spr, dram-local-clx, dram-local-icx, dram-local-spr.
"""


def code_of(error: SentinelError) -> int:
    """The exit code that stands for `error`."""
    if isinstance(error, Infeasible):
        return INFEASIBLE
    return USAGE if isinstance(error, UsageError) else FAILED


def add_verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str, examples: str
) -> argparse.ArgumentParser:
    """A sub-parser whose help ends with `examples`."""
    return verbs.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json` beside a table."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _checked(parse: Callable[[str], object]) -> Callable[[str], str]:
    """An argparse type: what `parse` takes, passed on as it is."""

    def checked(text: str) -> str:
        try:
            parse(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return text

    return checked


amount = _checked(partial(parse_budget, footprint_bytes=1))
"""An argparse type: an amount of memory such as `20%`, `8GiB` or bytes."""
fast_amount = _checked(parse_fast)
"""An argparse type: as `amount`, or an amount for all processes of a node together, such as `8GiB/node`."""
size = _checked(parse_bytes)
"""An argparse type: an amount of bytes such as `256MiB`."""


def add_pins(parser: argparse._ActionsContainer) -> None:
    """Tensors whose tier is fixed."""
    for tier in ("fast", "slow"):
        parser.add_argument(
            f"--keep-{tier}",
            action="append",
            metavar="PATTERN",
            help=f'parameters, buffers or optimizer state of these names stay in {tier} memory: "embed.*"',
        )
    parser.add_argument(
        "--smallest",
        type=amount,
        metavar="SIZE",
        help="parameters, buffers and optimizer state smaller than this stay in fast memory",
    )


def pins_in(arguments: argparse.Namespace) -> Pins:
    """What the arguments of `add_pins` say."""
    from sentinel.core.pins import Pins, patterns_in, smallest_in

    return Pins(
        patterns_in(arguments.keep_fast, "--keep-fast"),
        patterns_in(arguments.keep_slow, "--keep-slow"),
        smallest_in(arguments.smallest),
    )


def whole_number(text: str, least: int = 1) -> int:
    """An argparse type: a number of at least `least`."""
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least {least}")
    return int(text)


def above_0(text: str, of: str, below: float | None = None) -> float:
    """An argparse type: a number above 0, and less than `below` if there is such a limit. `of`: of what, and what is
    allowed, for the error."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0 or (below is not None and value >= below):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of {of}")
    return value


def check_outputs(*paths: str | None, read: Sequence[str | None] = ()) -> None:
    """Raises FormatError where a file that is asked for cannot be written: before the work, not after it. UsageError
    where it is one of those that are `read`, which it would replace, or another of `paths`."""
    from sentinel.files.disk import check_writable

    own = {os.path.realpath(path) for path in read if path is not None}
    others: dict[str, str] = {}
    for path in paths:
        if path is not None:
            place = os.path.realpath(path)
            if place in own:
                raise UsageError(f"{path} is read, and would be replaced by what is written", "give another file")
            if place in others:
                same = f" ({others[place]})" if others[place] != path else ""
                raise UsageError(f"two outputs would be written to {path}{same}", "give each a file of its own")
            others[place] = path
            check_writable(path)


@contextmanager
def saving(path: str | None, save: Callable[[str], object]) -> Iterator[bool]:
    """`save(path)`, where one is given, before what is within prints: a pipe that nobody reads any more costs no file.
    Yields whether it was saved. An error of saving is raised at the end, and so costs none of what is printed."""
    failed: SentinelError | None = None
    if path:
        try:
            save(path)
        except SentinelError as error:
            failed = error
    yield bool(path) and failed is None
    if failed is not None:
        raise failed


HERE = "this host, where a calibration of it is kept"
"""What is meant where no machine is named, for the help."""


def machine_named(text: str | None) -> Machine:
    """The described machine of that name, the one in the file at that path, or this host as it was calibrated.

    Raises UsageError where none is named and no calibration is kept, FormatError for a file that is none of a machine.
    """
    if text is None:
        return _machine_here()
    if as_a_file(text) == text:
        from sentinel.files import load_machine

        return load_machine(text)
    from sentinel import machines

    return machines.load(text)


def as_a_file(path: str) -> str:
    """The path in words that `--machine` takes for a file and not for the name of a described machine."""
    return path if os.sep in path or os.path.splitext(path)[1] else os.path.join(os.curdir, path)


def _machine_here() -> Machine:
    from sentinel.system.calibration import kept
    from sentinel.system.topology import topology
    from sentinel.tiers import machine_for

    host = topology()
    if not host.slower or kept(host.nodes, host.fast) is None:
        raise UsageError(
            "no machine is named, and this host's slower memory is not calibrated",
            "give --machine, such as --machine cxl-m5, or run `sentinel calibrate` on a host with slower memory",
        )
    return machine_for("auto")


def about_compute(machine: Machine, all_fast_ns: int | None, recorded_ns: int | None) -> str:
    """Why times on a described machine differ from those of the run; "" for a machine that computes as this host."""
    if machine.flops_per_s is None or not all_fast_ns:
        return ""
    here = f", {format_ns(recorded_ns)} where it was recorded" if recorded_ns else ""
    return (
        f"{machine.name} computes {machine.flops_per_s / 1e12:g} TFLOP/s: a step with everything in fast memory takes"
        f" {format_ns(all_fast_ns)} there{here}. The faster a machine computes, the more its slow memory costs."
    )


def print_json(value: Any) -> None:
    """`value` on stdout as indented JSON; what is unknown is null, and what the locale cannot print is escaped."""
    if sys.stdout is None:  # it was closed before Python began
        return
    readable = sys.stdout.encoding.lower().replace("-", "") == "utf8"
    print(json.dumps(value, indent=2, ensure_ascii=not readable, allow_nan=False))


def known_rows(*rows: tuple[str, Any, Callable[[Any], str], str]) -> list[tuple[str, str, str]]:
    """(what, value as it is shown, remark) of each (what, value, how it is shown, remark) whose value is known."""
    return [(what, show(value), remark) for what, value, show, remark in rows if value is not None]


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Columns on stdout, as wide as they need to be."""
    from sentinel.reports.text import aligned

    for line in aligned(rows):
        print(line)


def end_as_by_an_interrupt() -> None:
    """SIGTERM, and the end of the terminal unless nohup has it ignored, end this process as Ctrl-C does: what was
    changed of the kernel's settings is put back."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
