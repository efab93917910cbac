"""Runs QEMU: streams what the guest says, and makes sure that nothing of it stays."""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.numa_vm.packages import INSTALL, Missing, program

_PORTS = ("output", "errors", "verdict")
_BUS = "bus=pcie.0"  # else a device may land on the CXL bridge, which takes none
# memory that comes later than the kernel, of a DIMM or a CXL device, is for what can move, so that it can go again
_COMMAND_LINE = "console=ttyS0 quiet panic=-1 mitigations=off no5lvl memhp_default_state=online_movable rdinit=/init"


class GuestFailed(Exception):
    """The guest ended without a verdict, or took too long."""

    def __init__(self, why: str, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__(why)


@dataclass(frozen=True)
class Disks:
    """Raw images: the root as persistent memory, which takes no page cache from a node; two disks."""

    root: Path
    brought: Path
    left: Path

    def arguments(self) -> list[str]:
        memory = f"memory-backend-file,id=root,size={self.root.stat().st_size},share=off,mem-path={_quoted(self.root)}"
        words = ["-object", memory, "-device", f"virtio-pmem-pci,{_BUS},memdev=root"]
        for name, path, writable in (("brought", self.brought, False), ("left", self.left, True)):
            access = "" if writable else ",readonly=on"
            words += ["-drive", f"if=none,id={name},format=raw,cache=unsafe{access},file={_quoted(path)}"]
            words += ["-device", f"virtio-blk-pci,{_BUS},drive={name}"]
        return words


def run(hardware: Sequence[str], kernel: Path, initrd: Path, disks: Disks, console: Path, timeout_s: float) -> int:
    """Boots a guest, copies its output to ours as it comes, and returns the command's exit code.

    Raises:
        GuestFailed: no verdict came.
        Missing: QEMU is not there, or too old for this hardware.
    """
    reading, writing = _pipes()
    command = [
        program("qemu-system-x86_64", "qemu-system-x86"),
        *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
        *hardware,
        *("-kernel", str(kernel), "-initrd", str(initrd), "-append", _COMMAND_LINE),
        *disks.arguments(),
        *("-serial", f"file:{_quoted(console)}"),
        *("-device", f"virtio-serial-pci,{_BUS}"),
    ]
    for number, name in enumerate(_PORTS, start=1):
        command += ["-chardev", f"file,id={name},path=/dev/fd/{writing[name]}"]
        command += ["-device", f"virtserialport,nr={number},chardev={name}"]
    with _process(command, list(writing.values())) as qemu:
        for descriptor in writing.values():
            os.close(descriptor)
        verdict = _stream(reading, time.monotonic() + timeout_s)
        if verdict is None:
            why = f"the guest did not end within {timeout_s:g} s, and --timeout gives it longer; {_tail(console)}"
            raise GuestFailed(why, 124)
        said = qemu.communicate()[1].decode(errors="replace").strip()
    word, _, code = verdict.strip().partition(" ")
    if "volatile-memdev" in said:
        raise Missing(f"this QEMU has no volatile CXL memory, which came with 8.1; on Debian 12: {INSTALL}")
    if word != "exit":
        raise GuestFailed(f"the guest ended without a verdict{': ' + said if said else ''}; {_tail(console)}", 125)
    return int(code)


def _pipes() -> tuple[dict[str, int], dict[str, int]]:
    reading, writing = {}, {}
    for name in _PORTS:
        reading[name], writing[name] = os.pipe()
    return reading, writing


def _stream(reading: dict[str, int], deadline: float) -> str | None:
    """Copies until all three pipes end; the third one's text, or None at the deadline."""
    verdict = b""
    with selectors.DefaultSelector() as selector:
        for name, descriptor in reading.items():
            selector.register(descriptor, selectors.EVENT_READ, name)
        while selector.get_map():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return None
            for key, _ in selector.select(left_s):
                chunk = os.read(key.fd, 1 << 16)
                if not chunk:
                    selector.unregister(key.fd)
                    os.close(key.fd)
                elif key.data == "verdict":
                    verdict += chunk
                else:
                    stream = sys.stdout if key.data == "output" else sys.stderr
                    stream.buffer.write(chunk)
                    stream.buffer.flush()
    return verdict.decode()


@contextlib.contextmanager
def _process(command: Sequence[str], descriptors: Sequence[int]) -> Iterator[subprocess.Popen[bytes]]:
    """QEMU, which ends with us however we end."""
    libc = ctypes.CDLL(None)
    parent_death_signal = 1  # PR_SET_PDEATHSIG
    qemu = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=descriptors,
        start_new_session=True,  # Ctrl-C is ours to handle
        preexec_fn=lambda: libc.prctl(parent_death_signal, signal.SIGKILL),
    )
    try:
        yield qemu
    finally:
        qemu.kill()
        qemu.wait()


def _tail(console: Path) -> str:
    lines = console.read_text(errors="replace").splitlines() if console.exists() else []
    return "its console's last lines:\n" + "\n".join(lines[-80:]) if lines else "its console is empty"


def _quoted(path: Path) -> str:
    return str(path).replace(",", ",,")  # QEMU's own escape
