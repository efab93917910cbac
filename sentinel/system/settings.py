"""Trials of rights, limits and kernel settings: what this process may do, and what the kernel does by itself."""

from __future__ import annotations

import mmap
import re
import resource
from pathlib import Path

from sentinel.core.units import format_bytes
from sentinel.system import limits
from sentinel.system.probes import Missing
from sentinel.system.sysfs import numbers

PERF_THREADS = 1024
"""The perf tracker opens a file a thread of the step."""

_CAPABILITIES = {"CAP_IPC_LOCK": 14, "CAP_SYS_ADMIN": 21, "CAP_SYS_NICE": 23, "CAP_PERFMON": 38, "CAP_BPF": 39}
_UNLIMITED = 1 << 60


def holds(name: str) -> bool:
    """Whether capability `name` is effective, or CAP_SYS_ADMIN for what was once part of it; in any user namespace."""
    bits = int(_status("CapEff") or "0", 16)
    names = (name, "CAP_SYS_ADMIN") if name in ("CAP_BPF", "CAP_PERFMON") else (name,)
    return any(bits >> _CAPABILITIES[each] & 1 for each in names)


def capability(name: str) -> str:
    """It is among the effective capabilities of this process."""
    if not holds(name):
        raise Missing("not among this process's capabilities")
    if not in_first_namespace():
        raise Missing("held in a user namespace only, where it does not count for the whole kernel")
    return "this process has it"


def in_first_namespace() -> bool:
    """Whether user ids are the kernel's own: all of them, each for itself."""
    path = Path("/proc/self/uid_map")
    return not path.exists() or path.read_text().split() == ["0", "0", "4294967295"]


def _counts(name: str) -> bool:
    return holds(name) and in_first_namespace()


def no_seccomp_filter() -> str:
    """No filter stands between this process and the kernel."""
    if _status("Seccomp") not in ("", "0"):
        raise Missing("a seccomp filter is in place, as in containers: system calls may be refused")
    return "no filter is in place"


def perf_event_paranoid() -> str:
    """Page faults of user code may be counted: at most 2, or CAP_PERFMON; those of system calls too at most 1."""
    value = _sysctl("kernel/perf_event_paranoid")
    if value is None:
        raise Missing("this kernel has no perf events")
    if int(value) > 2 and not _counts("CAP_PERFMON"):
        raise Missing(f"kernel.perf_event_paranoid={value}, without CAP_PERFMON")
    if int(value) > 1 and not _counts("CAP_PERFMON"):
        return f"kernel.perf_event_paranoid={value}: faults of user code, none inside system calls"
    return f"kernel.perf_event_paranoid={value}" + (", and CAP_PERFMON" if _counts("CAP_PERFMON") else "")


def unprivileged_bpf() -> str:
    """bpf() may be called: the setting is 0, or CAP_BPF."""
    value = _sysctl("kernel/unprivileged_bpf_disabled")
    if value not in (None, "0") and not _counts("CAP_BPF"):
        raise Missing(f"kernel.unprivileged_bpf_disabled={value}, without CAP_BPF")
    return f"kernel.unprivileged_bpf_disabled={value or 'absent'}" + (", with CAP_BPF" if _counts("CAP_BPF") else "")


def unprivileged_userfaultfd() -> str:
    """userfaultfd() sees faults inside system calls too: the setting is 1, or CAP_SYS_PTRACE as root has it."""
    value = _sysctl("vm/unprivileged_userfaultfd")
    device = Path("/dev/userfaultfd")
    try:
        device.open("rb", buffering=0).close()
        return "/dev/userfaultfd may be opened"
    except OSError:
        pass
    if value == "1":
        return "vm.unprivileged_userfaultfd=1"
    raise Missing(f"vm.unprivileged_userfaultfd={value or 'absent'}, and {device} cannot be opened")


def locked_memory() -> str:
    """Ring buffers of perf and, before Linux 5.11, maps of eBPF are locked memory."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if _counts("CAP_IPC_LOCK"):
        return "CAP_IPC_LOCK: no limit"
    if soft != resource.RLIM_INFINITY and soft < 8 << 20:
        raise Missing(f"ulimit -l is {format_bytes(soft)}")
    return f"ulimit -l is {_limit(soft)}"


def open_files() -> str:
    """One for each thread that the perf tracker watches."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < PERF_THREADS:
        raise Missing(f"ulimit -n is {soft}, up to {hard} may be asked for")
    return f"ulimit -n is {soft}"


def address_space() -> str:
    """As many addresses are reserved as a session asks for an arena of this host, with no memory behind."""
    nbytes = limits.arena_bytes()
    try:
        mmap.mmap(-1, nbytes, prot=0, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000).close()
    except OSError as error:
        raise Missing(f"{format_bytes(nbytes)} of addresses: {error.strerror}") from error
    return f"{format_bytes(nbytes)} of addresses were reserved"


def no_kernel_demotion() -> str:
    """The kernel does not demote by itself under pressure."""
    path = Path("/sys/kernel/mm/numa/demotion_enabled")
    value = path.read_text().strip() if path.exists() else ""
    if value.lower() in ("1", "true"):
        raise Missing(f"numa/demotion_enabled={value}: under pressure the kernel demotes pages by itself")
    return f"numa/demotion_enabled={value}" if value else "this kernel does not demote pages by itself"


def cpuset_nodes() -> str:
    """The cgroup allows memory of every node that has some."""
    listed = _status("Mems_allowed_list")
    if not listed:
        return "this kernel has no cpusets"
    allowed = set(numbers(listed))
    nodes = set(numbers(Path("/sys/devices/system/node/has_memory").read_text()))
    if nodes - allowed:
        raise Missing(f"nodes {sorted(nodes - allowed)} have memory that this process's cpuset does not allow")
    return f"memory of nodes {sorted(nodes & allowed)} is allowed"


def _status(field: str) -> str:
    """A field of /proc/self/status, "" where the kernel has none of that name."""
    try:
        text = Path("/proc/self/status").read_text()
    except OSError as error:
        raise Missing(f"/proc/self/status cannot be read ({error.strerror}): is /proc mounted?") from error
    found = re.search(rf"^{field}:\s*(\S+)", text, re.MULTILINE)
    return found.group(1) if found else ""


def _sysctl(name: str) -> str | None:
    path = Path("/proc/sys") / name
    return path.read_text().strip() if path.exists() else None


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY or value > _UNLIMITED else format_bytes(value)
