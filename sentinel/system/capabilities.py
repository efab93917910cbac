"""What this host allows, each found out by trying it: data for `sentinel doctor`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sentinel.core.errors import NativeError, SentinelError
from sentinel.system import probes


@dataclass(frozen=True)
class Capability:
    """Something this host allows or not. `why`: what the trial showed. `remedy`: what to do where it is missing.
    `needed_for`: what Sentinel uses it for."""

    name: str
    available: bool
    why: str
    remedy: str
    needed_for: str


@dataclass(frozen=True)
class _Probe:
    name: str
    attempt: Callable[[], str]  # says what it saw; raises where it is missing
    remedy: str
    needed_for: str


_PROBES = (
    _Probe(
        "move_pages",
        probes.move_pages,
        "in a container: allow the system call move_pages (CAP_SYS_NICE, or another seccomp profile)",
        "moving tensors between NUMA nodes",
    ),
    _Probe(
        "mbind",
        probes.mbind,
        "in a container: allow the system calls mbind and get_mempolicy (CAP_SYS_NICE, or another seccomp profile)",
        "births on a chosen node, and keeping NUMA balancing away from managed memory",
    ),
    _Probe(
        "second node",
        probes.second_node,
        'use slow="emulated:cxl-asic-x8", or a host with a second NUMA node or CXL memory',
        'slow="numa:N"',
    ),
    _Probe(
        "CAP_SYS_NICE",
        probes.cap_sys_nice,
        "run as root or grant CAP_SYS_NICE; without it, pages shared with forked workers stay where they are",
        "moving pages that forked DataLoader workers share",
    ),
    _Probe(
        "no NUMA balancing",
        probes.no_numa_balancing,
        "sysctl kernel.numa_balancing=0; memory that Sentinel manages has a policy and is left alone either way",
        "steady places for memory that Sentinel does not manage",
    ),
    _Probe(
        "huge pages",
        probes.huge_pages,
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        "fewer TLB misses in planned slots",
    ),
    _Probe(
        "memfd",
        probes.memfd,
        "allow memfd_create; use --tracker ops without it",
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
        "C++ compiler",
        probes.compiler,
        "install one (Debian: apt-get install g++), or name one in CXX",
        "the torch shim, compiled once against the torch it meets",
    ),
    _Probe(
        "torch",
        probes.torch,
        "pip install 'sentinel-hm[torch]'",
        "watching and placing a training job; plans, simulations and reports work without",
    ),
)


def probe_all() -> list[Capability]:
    """All capabilities, each tried now. Never raises; takes well under two seconds."""
    return [_try(probe) for probe in _PROBES]


def _try(probe: _Probe) -> Capability:
    try:
        seen, available = probe.attempt(), True
    except probes.Missing as missing:
        seen, available = str(missing), False
    except NativeError as error:
        seen, available = str(error), False
    except (SentinelError, OSError, ValueError) as error:
        seen, available = f"{type(error).__name__}: {error}", False
    except Exception as error:  # a doctor that dies of one symptom is no doctor
        seen, available = f"unexpected {type(error).__name__}: {error}", False
    return Capability(probe.name, available, seen, probe.remedy, probe.needed_for)
