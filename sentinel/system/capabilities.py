"""What this host allows, each found out by trying it: data for `sentinel doctor`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sentinel.core.errors import NativeError, SentinelError
from sentinel.system import features, probes, settings, versions

COMPILER = "C++ compiler"
GROUPS = ("rights", "settings", "kernel", "memory", "software")
"""Of capabilities, as the doctor lists them."""


@dataclass(frozen=True)
class Capability:
    """Something this host allows or not. `why`: what the trial showed. `remedy`: what to do where it is missing.
    `needed_for`: what Sentinel uses it for. `group`: one of GROUPS."""

    name: str
    available: bool
    why: str
    remedy: str
    needed_for: str
    group: str = "kernel"


@dataclass(frozen=True)
class _Probe:
    name: str
    attempt: Callable[[], str]  # says what it saw; raises where it is missing
    remedy: str
    needed_for: str
    group: str = "kernel"


def _right(name: str, needed_for: str) -> _Probe:
    option = name.removeprefix("CAP_").lower()
    remedy = f"run as root; in a container --cap-add {option}; in a systemd unit AmbientCapabilities={name}"
    return _Probe(name, lambda: settings.capability(name), remedy, needed_for, "rights")


_PROBES = (
    _right("CAP_BPF", "tracker ebpf; the witness of migrations"),
    _right("CAP_PERFMON", "tracker ebpf; the witness; tracker perf whatever perf_event_paranoid says"),
    _right("CAP_SYS_NICE", "moving pages that forked DataLoader workers share"),
    _right("CAP_IPC_LOCK", "locked memory without a limit"),
    _Probe(
        "no seccomp filter",
        settings.no_seccomp_filter,
        "in a container: --security-opt seccomp=unconfined, or a profile that allows the calls listed below as missing",
        "nothing by itself: it explains what is refused below",
        "rights",
    ),
    _Probe(
        "perf_event_paranoid",
        settings.perf_event_paranoid,
        "sysctl kernel.perf_event_paranoid=2 (Debian's default is 3), or grant CAP_PERFMON",
        "tracker perf",
        "settings",
    ),
    _Probe(
        "unprivileged_userfaultfd",
        settings.unprivileged_userfaultfd,
        "sysctl vm.unprivileged_userfaultfd=1, or chmod o+rw /dev/userfaultfd (Linux 6.4)",
        "tracker uffd, and exact counts in the others, without root",
        "settings",
    ),
    _Probe(
        "unprivileged_bpf_disabled",
        settings.unprivileged_bpf,
        "grant CAP_BPF; the setting may stay: without CAP_PERFMON it would not help",
        "tracker ebpf; the witness of migrations",
        "settings",
    ),
    _Probe(
        "no NUMA balancing",
        probes.no_numa_balancing,
        "sysctl kernel.numa_balancing=0; memory that Sentinel manages has a policy and is left alone either way",
        "a stable placement of memory that Sentinel does not manage",
        "settings",
    ),
    _Probe(
        "no demotion by the kernel",
        settings.no_kernel_demotion,
        "echo 0 > /sys/kernel/mm/numa/demotion_enabled; what it moves shows in the report of who moved what",
        "a stable placement under memory pressure",
        "settings",
    ),
    _Probe(
        "huge pages",
        probes.huge_pages,
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        "fewer TLB misses in planned slots",
        "settings",
    ),
    _Probe(
        "locked memory",
        settings.locked_memory,
        "ulimit -l unlimited, or LimitMEMLOCK=infinity in a systemd unit",
        "ring buffers of tracker perf; maps of tracker ebpf before Linux 5.11",
        "settings",
    ),
    _Probe(
        "open files",
        settings.open_files,
        f"ulimit -n {settings.PERF_THREADS}",
        "tracker perf: a file a thread",
        "settings",
    ),
    _Probe(
        "address space",
        settings.address_space,
        "ulimit -v unlimited",
        "arenas as large as the job may become; smaller ones are taken without it",
        "settings",
    ),
    _Probe(
        "cpuset",
        settings.cpuset_nodes,
        "in a container: --cpuset-mems with all nodes; else write them to the cgroup's cpuset.mems",
        'slow="numa:N"',
        "settings",
    ),
    _Probe(
        "memfd",
        probes.memfd,
        "allow the system call memfd_create; use --tracker ops without it",
        "page trackers: memory whose pages can fault again with no data lost",
    ),
    _Probe(
        "userfaultfd",
        probes.userfaultfd,
        "run as root, or set vm.unprivileged_userfaultfd=1, or allow /dev/userfaultfd",
        "tracker uffd; exact page counts in the other page trackers",
    ),
    _Probe(
        "userfaultfd, user mode",
        probes.userfaultfd_user_mode,
        "needs Linux 5.11; in a container: allow the system call userfaultfd",
        "page trackers without rights; faults inside system calls then fail",
    ),
    _Probe(
        "eBPF",
        probes.ebpf,
        "run as root or grant CAP_BPF and CAP_PERFMON; or use --tracker perf, pagemap or ops",
        "tracker ebpf; the independent witness of migrations",
    ),
    _Probe(
        "perf_event_open",
        probes.perf_event_open,
        "sysctl kernel.perf_event_paranoid=2 (Debian's default is 3), or grant CAP_PERFMON",
        "tracker perf",
    ),
    _Probe(
        "pagemap",
        probes.pagemap,
        "mount /proc with /proc/self/pagemap readable",
        "tracker pagemap",
    ),
    _Probe(
        "PAGEMAP_SCAN",
        features.pagemap_scan,
        "needs Linux 6.7; nothing is lost: tracker pagemap reads /proc/self/pagemap",
        "a faster tracker pagemap, some day",
    ),
    _Probe(
        "soft-dirty bits",
        features.soft_dirty,
        "a kernel with CONFIG_MEM_SOFT_DIRTY; nothing is lost: no tracker depends on it",
        "seeing writes with no right at all, some day",
    ),
    _Probe(
        "madvise",
        features.advice,
        "in a container: allow the system call madvise",
        "giving memory back, and pages of the size that is wanted",
    ),
    _Probe(
        "move_pages",
        probes.move_pages,
        "in a container: --security-opt seccomp=unconfined, or a profile that allows the system call move_pages",
        "moving tensors between NUMA nodes",
        "memory",
    ),
    _Probe(
        "mbind",
        probes.mbind,
        "in a container: allow the system calls mbind and get_mempolicy (CAP_SYS_NICE, or another seccomp profile)",
        "allocations on a chosen node, and keeping NUMA balancing away from managed memory",
        "memory",
    ),
    _Probe(
        "later memory policies",
        features.weighted_interleave,
        "needs Linux 5.15 and 6.9; in a container: allow the system call mbind",
        "falling back to other nodes; the baseline of weighted interleaving",
        "memory",
    ),
    _Probe(
        "second node",
        probes.second_node,
        'use slow="emulated:cxl-asic-x8", or a host with a second NUMA node or CXL memory',
        'slow="numa:N"',
        "memory",
    ),
    _Probe(
        COMPILER,
        probes.compiler,
        "install one (Debian: apt-get install g++), or name one in CXX",
        "the torch shim, compiled once against the torch it meets",
        "software",
    ),
    _Probe(
        "Python",
        probes.python,
        f"use Python {versions.PYTHONS} with the GIL",
        "watching and placing a training job; plans, simulations and reports work without",
        "software",
    ),
    _Probe(
        "torch",
        probes.torch,
        f"in a checkout: pip install '.[torch]'; or set {versions.UNTESTED_TORCH}=1 to try another release",
        "watching and placing a training job; plans, simulations and reports work without",
        "software",
    ),
)


def probe_all() -> list[Capability]:
    """All capabilities, each tried now. Never raises; takes well under two seconds."""
    return [_try(probe) for probe in _PROBES]


def _try(probe: _Probe) -> Capability:
    try:
        seen, available = probe.attempt(), True
    except (probes.Missing, NativeError) as error:
        seen, available = str(error), False
    except (SentinelError, OSError, ValueError) as error:
        seen, available = f"{type(error).__name__}: {error}", False
    except Exception as error:  # a doctor that dies of one symptom is no doctor
        seen, available = f"unexpected {type(error).__name__}: {error}", False
    return Capability(probe.name, available, seen, probe.remedy, probe.needed_for, probe.group)
