"""Trials of what a host allows. Each returns what it saw, or raises Missing (or an error of what it tried)."""

from __future__ import annotations

import ctypes
import fcntl
import importlib.metadata
import mmap
import os
import platform
import re
import struct
import subprocess
from pathlib import Path

from sentinel.core.units import PAGE_BYTES
from sentinel.system import numa, versions
from sentinel.system.compiler import found_compiler
from sentinel.system.kernel import system_call
from sentinel.system.numa import Page
from sentinel.system.topology import topology as read_topology

_UFFD_USER_MODE_ONLY = 1
_UFFDIO_API = 0xC018AA3F
_UFFD_API = 0xAA
_UFFD_FEATURES = {
    "write-protect": 1 << 0,
    "missing shmem": 1 << 5,
    "minor shmem": 1 << 10,
    "shmem write-protect": 1 << 12,
}
_BPF_PROG_LOAD, _BPF_PROG_TYPE_TRACEPOINT = 5, 5
_PERF_TYPE_SOFTWARE, _PERF_COUNT_SW_PAGE_FAULTS = 1, 2
_PERF_DISABLED, _PERF_EXCLUDE_KERNEL = 1 << 0, 1 << 5


class Missing(Exception):
    """The trial went through, and showed that it is not there."""


def move_pages() -> str:
    """A fresh page is found, and asked to move to where it is."""
    with Page() as address:
        node = int(numa.residency(address, PAGE_BYTES)[0])
        if node < 0:
            raise Missing(f"a touched page is nowhere: {os.strerror(-node)}")
        if numa.move(address, PAGE_BYTES, node) != 1:
            raise Missing(f"a page on node {node} did not stay there when asked to")
    return f"a page was found on node {node}, and moved there"


def mbind() -> str:
    """A fresh page is given a policy, which is read back."""
    with Page() as address:
        node = numa.node_of_fresh_page()
        numa.bind(address, PAGE_BYTES, node)
        mode, nodes = numa.policy(address)
        if (mode, nodes) != (numa.MPOL_PREFERRED, (node,)):
            raise Missing(f"asked for node {node}, the policy reads mode {mode}, nodes {nodes}")
    return f"a page took the policy to prefer node {node}"


def second_node() -> str:
    """The topology has a slower node."""
    host = read_topology()
    if not host.slower:
        raise Missing(f"nodes with memory: {[node.number for node in host.nodes if node.total_bytes]}, none slower")
    return f"slower than node {host.fast}: {', '.join(map(str, host.slower))} (decided by {host.decided_by})"


def no_numa_balancing() -> str:
    """The sysctl; where there is none, the kernel has no such thing."""
    path = Path("/proc/sys/kernel/numa_balancing")
    value = path.read_text().strip() if path.exists() else ""
    if value not in ("", "0"):
        raise Missing(f"kernel.numa_balancing={value}: the kernel moves pages by itself")
    return f"kernel.numa_balancing={value}" if value else "this kernel has no NUMA balancing"


def huge_pages() -> str:
    """The setting of transparent huge pages."""
    text = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    chosen = re.search(r"\[(\w+)\]", text)
    if chosen is None or chosen.group(1) == "never":
        raise Missing(f"transparent_hugepage/enabled: {text.strip()}")
    return f"transparent_hugepage/enabled: {chosen.group(1)}"


def memfd() -> str:
    """Data of a shared mapping survives when its pages are dropped from the page table."""
    fd = os.memfd_create("sentinel-probe")
    try:
        os.ftruncate(fd, PAGE_BYTES)
        with mmap.mmap(fd, PAGE_BYTES) as page:
            page[0] = 7
            page.madvise(mmap.MADV_DONTNEED)
            if page[0] != 7:
                raise Missing("MADV_DONTNEED lost the data of a memfd page")
    finally:
        os.close(fd)
    return "a dropped page came back with its data"


def userfaultfd() -> str:
    """Opened for faults inside system calls too."""
    return _userfaultfd(0)


def userfaultfd_user_mode() -> str:
    """Opened for faults of user code only."""
    return _userfaultfd(_UFFD_USER_MODE_ONLY)


def ebpf() -> str:
    """A program of two instructions is loaded for a tracepoint."""
    program = ctypes.create_string_buffer(struct.pack("<BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0))  # r0 = 0; exit
    licence = ctypes.create_string_buffer(b"Dual BSD/GPL")
    head = struct.pack("=IIQQ", _BPF_PROG_TYPE_TRACEPOINT, 2, ctypes.addressof(program), ctypes.addressof(licence))
    attributes = ctypes.create_string_buffer(head, 128)
    os.close(system_call("bpf", _BPF_PROG_LOAD, ctypes.byref(attributes), 128))
    return "a program for a tracepoint was loaded"


def perf_event_open() -> str:
    """The page-fault event of this process is opened."""
    flags = _PERF_DISABLED | _PERF_EXCLUDE_KERNEL
    head = struct.pack("=IIQQQQQ", _PERF_TYPE_SOFTWARE, 128, _PERF_COUNT_SW_PAGE_FAULTS, 1, 0, 0, flags)
    attributes = ctypes.create_string_buffer(head, 128)
    os.close(system_call("perf_event_open", ctypes.byref(attributes), 0, -1, -1, 0))
    return "the page-fault event was opened"


def pagemap() -> str:
    """A touched page is marked present."""
    with Page() as address, open("/proc/self/pagemap", "rb", buffering=0) as file:
        file.seek(address // PAGE_BYTES * 8)
        (entry,) = struct.unpack("=Q", file.read(8))
    if not entry >> 63:
        raise Missing("a touched page is not marked present")
    return "a touched page is marked present"


def compiler() -> str:
    """A line of C++ is checked by the compiler that would be used."""
    path = found_compiler()
    if path is None:
        raise Missing("none of $CXX, c++, g++, clang++ was found")
    command = [path, "-std=c++20", "-x", "c++", "-fsyntax-only", "-"]
    done = subprocess.run(command, input=b"int f();", capture_output=True, timeout=1, check=False)
    if done.returncode:
        said = " ".join(done.stderr.decode(errors="replace").split())
        raise Missing(f"{path} does not take C++20: {said[:200]}")
    return path


def torch() -> str:
    """The installed release, by its metadata: importing it would take seconds."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError as error:
        raise Missing("it is not installed") from error
    why = versions.why_not_torch(version)
    if why and not versions.untested_torch_is_allowed():
        raise Missing(f"{version} is installed, and {why}")
    return f"{version}, though {why}" if why else version


def python() -> str:
    """This interpreter, where sessions were tested on it."""
    if why := versions.why_not_python():
        raise Missing(why)
    return platform.python_version()


def _userfaultfd(flags: int) -> str:
    fd = system_call("userfaultfd", os.O_CLOEXEC | os.O_NONBLOCK | flags)
    try:
        answer = fcntl.ioctl(fd, _UFFDIO_API, struct.pack("=QQQ", _UFFD_API, 0, 0))
    finally:
        os.close(fd)
    features = struct.unpack("=QQQ", answer)[1]
    return f"opened, with {', '.join(name for name, bit in _UFFD_FEATURES.items() if features & bit) or 'no features'}"
