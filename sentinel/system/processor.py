"""The processor of this host: its name, its last cache, and whether software only pretends that it is there."""

from __future__ import annotations

from pathlib import Path

from sentinel.core.errors import UsageError
from sentinel.core.units import parse_bytes
from sentinel.system.sysfs import entries, field, text

_CPUINFO = "proc/cpuinfo"
_PARAVIRTUAL_CLOCKS = ("kvm-clock", "hyperv_clocksource", "xen")
"""Clocks that only a hypervisor with hardware support gives."""


def model(root: Path = Path("/")) -> str:
    """Its name as /proc/cpuinfo tells, "" where it tells none."""
    return field(root / _CPUINFO, "model name")


def is_virtual(root: Path = Path("/")) -> bool:
    """Whether a hypervisor is underneath: others may use the same memory."""
    return "hypervisor" in field(root / _CPUINFO, "flags").split()


def is_emulated(root: Path = Path("/")) -> bool:
    """Whether QEMU computes each instruction in software: times mean nothing then.

    QEMU's own models name themselves (on Arm by implementer 0 in MIDR, target/arm/tcg/cpu64.c); any other on x86 is
    believed to be emulated where the firmware is QEMU's and no hypervisor offers its clock. Arm has no such clock.
    """
    name = model(root)
    if "TCG" in name or field(root / _CPUINFO, "CPU implementer") == "0x00":
        return True
    if not field(root / _CPUINFO, "flags"):
        return False
    vendor = text(root / "sys/class/dmi/id/sys_vendor").strip()
    clocks = text(root / "sys/devices/system/clocksource/clocksource0/available_clocksource").split()
    return ("QEMU" in name or vendor == "QEMU") and not any(clock in clocks for clock in _PARAVIRTUAL_CLOCKS)


def last_cache_bytes(root: Path = Path("/")) -> int:
    """Size of the largest cache that CPU 0 uses, 0 where the kernel tells none."""
    found = [0]
    for index in entries(root / "sys/devices/system/cpu/cpu0/cache"):
        said = text(index / "size").strip()  # such as 32768K
        try:
            found.append(parse_bytes(said[:-1] + {"K": "KiB", "M": "MiB"}.get(said[-1:], said[-1:])))
        except UsageError:
            continue
    return max(found)
