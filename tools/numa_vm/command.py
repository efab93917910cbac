"""The command line: `run [options] -- COMMAND`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.numa_vm import guest, luggage
from tools.numa_vm.compiled import compiled_libraries
from tools.numa_vm.hardware import Hardware, memory_bytes
from tools.numa_vm.image import Environment, root_image
from tools.numa_vm.initramfs import initramfs
from tools.numa_vm.packages import Missing, kernel, program

PROJECT = Path(__file__).resolve().parents[2]

_DESCRIPTION = """\
Runs COMMAND on a machine with two NUMA nodes, or with CXL memory, that QEMU emulates: no rights and no KVM needed.
The command finds the project, its .venv and every shared folder at their own paths, is root there, and its exit code
is ours. What it changes in files of the project and of shared folders comes back when it ends; deletions do not.
Computing is some hundred times slower than here. Exit 124: it took too long; 125: the machine failed.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command in a guest; returns its exit code, or 125 where the machine could not be made."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _terminated)
    try:
        hardware = Hardware(
            options.memory, cxl=options.cxl, cpus_on_both=options.cpus_on_both, removable=options.removable
        )
        return _run(hardware, options.kernel, options.share, options.timeout, options.command)
    except (Missing, ValueError) as problem:
        print(f"numa_vm: {problem}", file=sys.stderr)
        return 125
    except guest.GuestFailed as problem:
        print(f"numa_vm: {problem}", file=sys.stderr)
        return problem.exit_code
    except KeyboardInterrupt:
        return 130


def _run(hardware: Hardware, series: str, shares: Sequence[Path], timeout_s: float, command: Sequence[str]) -> int:
    here = Path.cwd().resolve()
    folders = _outermost([PROJECT, *shares])
    if not any(here.is_relative_to(folder) for folder in folders):
        raise Missing(f"{here} is neither in {PROJECT} nor shared, so it is not in the guest; add --share {here}")
    for name, package in (("qemu-system-x86_64", "qemu-system-x86"), ("mke2fs", "e2fsprogs")):
        program(name, package)  # before minutes are spent on what else is needed
    environment = Environment.of(PROJECT / ".venv")
    image = root_image(environment)
    if hardware.cxl and series == "6.1":
        raise Missing("kernel 6.1 cannot make CXL memory a node; with --cxl use --kernel 6.12")
    booted = kernel(series)
    brought = luggage.Luggage(folders, environment.prefix, compiled_libraries(PROJECT, environment))
    notes = {
        "start": luggage.start_script(command, here, {"PYTHONDONTWRITEBYTECODE": "1", **os.environ}),
        "cxl_bytes": str(hardware.memory_bytes[1]),
    }
    with tempfile.TemporaryDirectory(prefix="numa-vm-") as scratch:
        folder = Path(scratch)
        disks = guest.Disks(image, folder / "brought.tar", folder / "left.tar")
        brought.pack(disks.brought, notes)
        brought.empty_return(disks.left)
        (folder / "initramfs").write_bytes(initramfs(booted, cxl=hardware.cxl))
        console = folder / "console"
        code = guest.run(hardware.arguments(), booted.image, folder / "initramfs", disks, console, timeout_s)
        for line in console.read_text(errors="replace").splitlines():
            if line.startswith("numa_vm:"):
                print(line, file=sys.stderr)
        brought.unpack_return(disks.left)
    return code


def _outermost(folders: Sequence[Path]) -> tuple[Path, ...]:
    """The folders without those that lie in another one."""
    kept: list[Path] = []
    for folder in sorted(folders):
        if not any(folder.is_relative_to(other) for other in kept):
            kept.append(folder)
    return tuple(kept)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/numa_vm/run", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cxl", action="store_true", help="node 1 is the memory of a CXL type-3 device")
    parser.add_argument("--cpus-on-both", action="store_true", help="one CPU on each node; else node 1 has none")
    parser.add_argument(
        "--removable", action="store_true", help="node 1 is a DIMM whose memory can all be taken offline"
    )
    parser.add_argument(
        "--kernel", choices=("6.1", "6.12"), default="6.12", help="Debian's kernel series (%(default)s)"
    )
    parser.add_argument(
        "--memory", type=_two_memories, default="512M,1G", metavar="FAST,SLOW", help="per node (%(default)s)"
    )
    parser.add_argument(
        "--share", type=_folder, action="append", default=[], metavar="DIR", help="a folder to bring; repeatable"
    )
    parser.add_argument("--timeout", type=float, default=600, metavar="SECONDS", help="of the whole (%(default)s)")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="after --")
    return parser


def _two_memories(text: str) -> tuple[int, int]:
    parts = text.split(",")
    if len(parts) != 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not two amounts such as 512M,1G")
    try:
        return memory_bytes(parts[0]), memory_bytes(parts[1])
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from problem


def _folder(text: str) -> Path:
    path = Path(text).resolve()
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is not a folder")
    return path


def _terminated(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt
