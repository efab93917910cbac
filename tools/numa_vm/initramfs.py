"""The first file system of the guest: busybox, the modules that the root needs, and `init`."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from tools.numa_vm.packages import Kernel, busybox

_MODULES = ("virtio_pci", "virtio_pmem", "nd_pmem", "virtio_blk", "virtio_console", "overlay")
_CXL_MODULES = ("cxl_acpi", "cxl_pci", "cxl_mem", "cxl_port", "device_dax", "dax_cxl", "kmem")


def initramfs(kernel: Kernel, *, cxl: bool) -> bytes:
    """A cpio archive, uncompressed: an emulated processor would take longer to unpack than to read it."""
    here = Path(__file__).parent
    modules = kernel.modules(_MODULES)
    late = [(name, elf) for name, elf in kernel.modules(_CXL_MODULES) if (name, elf) not in modules] if cxl else []
    entries: list[tuple[str, int, bytes]] = [
        *((folder, stat.S_IFDIR | 0o755, b"") for folder in ("bin", "dev", "proc", "sys", "modules", "cxl", "mnt")),
        ("bin/busybox", stat.S_IFREG | 0o755, busybox().read_bytes()),
        ("bin/sh", stat.S_IFLNK | 0o777, b"busybox"),
        ("init", stat.S_IFREG | 0o755, (here / "init.sh").read_bytes()),
        ("cxl.sh", stat.S_IFREG | 0o755, (here / "cxl.sh").read_bytes()),
        *((f"modules/{i:02}-{name}.ko", stat.S_IFREG | 0o644, elf) for i, (name, elf) in enumerate(modules)),
        *((f"cxl/{i:02}-{name}.ko", stat.S_IFREG | 0o644, elf) for i, (name, elf) in enumerate(late)),
    ]
    return b"".join(_newc(entries))


def _newc(entries: list[tuple[str, int, bytes]]) -> Iterator[bytes]:
    """The `newc` format of cpio: kernel's Documentation/driver-api/early-userspace/buffer-format.rst."""
    for number, (name, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], start=1):
        path = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
        yield _padded(b"070701" + b"".join(b"%08X" % field for field in fields) + path)
        yield _padded(content)


def _padded(content: bytes) -> bytes:
    return content + b"\0" * (-len(content) % 4)
