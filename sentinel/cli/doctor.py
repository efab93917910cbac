"""`sentinel doctor`: what this host is and allows, found out by trying, and how to allow more."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sentinel.cli.common import FAILED, OK, add_json, add_verb, print_json, print_table, telling
from sentinel.core.errors import SentinelError
from sentinel.core.units import format_bytes, format_ns

if TYPE_CHECKING:
    from sentinel.core.machine import Machine, TierSpec
    from sentinel.system.capabilities import Capability
    from sentinel.system.nodes import Node
    from sentinel.system.topology import Topology

NEEDED = ("C++ compiler", "Python", "torch")
"""Without these, or without what tracker `ops` uses, no training step can be watched, and the exit code is 1."""

LEAST_UNTOLD_SHARE = 0.1
"""It is said where a host has 10 % more memory than its nodes tell of, or more than that."""

_EXAMPLES = f"""\
examples:
  sentinel doctor
  sentinel doctor --json | jq '.capabilities[] | select(.available | not) | .remedy'
  sentinel doctor --json | jq -r .auto.tracker
  sentinel doctor --build

doctor tries everything instead of looking it up, so the answer holds for this user in this container. A missing
capability affects only what the table says it is for.

exit code: 0 if a training step can be profiled; 1 if not: {" or ".join(NEEDED)} is missing, or
tracker ops, on which every other tracker builds, does not work. The exit code stays 0 if a page tracker, a right, a
kernel feature or a second node is missing.
"""


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verb's arguments."""
    parser = add_verb(verbs, "doctor", "say what this host allows, and how to allow more", _EXAMPLES)
    add_json(parser)
    parser.add_argument(
        "--build",
        action="store_true",
        help="only compile what the first profiled step needs, and keep it in the cache",
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Probe, print, and judge."""
    if arguments.build:
        return build(arguments.json)
    from sentinel.cli import doctor_watchers
    from sentinel.profiler.selftest import check_host
    from sentinel.system.affinity import spanning
    from sentinel.system.calibration import kept, kept_copies
    from sentinel.system.capabilities import GROUPS
    from sentinel.system.topology import topology, untold_bytes

    with telling("probing this host (the first time, the torch shim is compiled)"):
        host, found, seen = topology(), check_host(), doctor_watchers.examine()
    measured, copies, spans = kept(host.nodes, host.fast), kept_copies(host.nodes, host.fast), spanning(host)
    untold = untold_memory(host, untold_bytes(host))
    missing = [capability.name for capability in found if capability.name in NEEDED and not capability.available]
    if not missing:  # else it is what tracker ops misses too
        missing = ["tracker ops" for trial in seen.trackers if trial.tracker == "ops" and not trial.available]
    if arguments.json:
        answer = {"topology": asdict(host), "capabilities": [asdict(c) for c in found], "missing": missing}
        kept_here = {"calibration": measured, "copies": copies}
        placed: dict[str, Any] = {name: machine and asdict(machine) for name, machine in kept_here.items()}
        placed["affinity"], placed["untold_memory"] = spans or None, untold or None
        print_json(answer | placed | seen.as_json() | {"settings": settings_as_json()})
    else:
        print(f"{verdict(missing)}\n")
        print_table(node_rows(host, measured))
        if untold:
            print(f"memory: {untold}")
        print(f"slow memory: {slow_memory(host)}")
        for line in (*([f"CPUs: {spans}"] if spans else []), *speeds(host, measured), emulated_moves(copies)):
            print(line)
        print("\n".join(seen.lines()))
        print("\n".join(setting_lines()))
        for group in GROUPS:
            print(f"\n{group}")
            for capability in found:
                if capability.group == group:
                    print(told(capability))
    return FAILED if missing else OK


def build(as_json: bool) -> int:
    """Compiles ahead what is not there yet, and prints where it is. Raises CapabilityError, without torch too."""
    from sentinel.core.errors import CapabilityError
    from sentinel.system import native, probes

    try:
        probes.torch()
    except probes.Missing as error:
        raise CapabilityError(
            "compiling the torch shim", f"torch: {error}", "in a checkout: pip install '.[torch]'"
        ) from None
    from sentinel.profiler import torch_shim

    built = {"native library": str(native.path()), "torch shim": str(torch_shim.path())}
    if as_json:
        print_json({"built": built})
    else:
        print_table(list(built.items()))
    return OK


def verdict(missing: Sequence[str]) -> str:
    """The first line."""
    if missing:
        return f"no training step can be profiled here: {', '.join(missing)} is missing; its remedy is below"
    return "a training step can be profiled here"


def node_rows(host: Topology, measured: Machine | None = None) -> list[tuple[str, ...]]:
    """One row a node, under a heading. Speeds are those of the calibration, else the firmware's; `-` where neither
    tells any."""
    heading = ("node", "cpus", "memory", "free", "read latency", "read bandwidth", "told by", "role")
    tiers = {tier.node: tier for tier in measured.tiers} if measured is not None else {}
    return [heading, *(_node_row(node, host, tiers.get(node.number)) for node in host.nodes)]


def _node_row(node: Node, host: Topology, measured: TierSpec | None) -> tuple[str, ...]:
    role = "fast" if node.number == host.fast else "slower" if node.number in host.slower else "-"
    role = "forbidden by the cpuset" if node.number in host.forbidden else role
    latency_ns: float | None = node.read_latency_ns
    rate, told_by = node.read_bytes_per_s, "-" if latency_ns is None else "HMAT"
    if measured is not None:
        latency_ns, rate, told_by = measured.latency_ns, measured.read_bytes_per_s, "calibration"
    return (
        str(node.number),
        str(len(node.cpus)),
        format_bytes(node.total_bytes),
        format_bytes(node.free_bytes),
        "-" if latency_ns is None else format_ns(latency_ns),
        "-" if rate is None else f"{format_bytes(rate)}/s",
        told_by,
        role,
    )


def setting_lines() -> list[str]:
    """What is configured here and where, or why no session begins with it."""
    from sentinel.reports.text import aligned
    from sentinel.system.configuration import configuration

    try:
        found = configuration()
    except SentinelError as error:
        return [f"settings: no session begins: {error}"]
    rows = [(f"  {name}", str(setting.value), setting.source) for name, setting in found.items()]
    return ["settings, unless an argument overrides them:", *aligned(rows)] if rows else ["settings: none"]


def settings_as_json() -> dict[str, Any]:
    """By name, with `value` and `source`; or `refused` and why."""
    from sentinel.system.configuration import configuration

    try:
        return {name: asdict(setting) for name, setting in configuration().items()}
    except SentinelError as error:
        return {"refused": str(error)}


def untold_memory(host: Topology, nbytes: int) -> str:
    """What it means that the host has so much memory beyond that of its nodes; "" where it is next to nothing."""
    told = sum(node.total_bytes for node in host.nodes)
    if nbytes < LEAST_UNTOLD_SHARE * told or not nbytes:
        return ""
    return (
        f"the nodes tell of {format_bytes(told)}, and the host has {format_bytes(told + nbytes)}: this kernel gives"
        " nodes their memory as it is needed, and nothing tells which has how much. Plans place no more than nodes tell"
        " of: have the hypervisor give the nodes all of their memory before a session begins"
    )


def slow_memory(host: Topology) -> str:
    """What `slow="auto"` means here."""
    if host.slower:
        return f"node {host.slower[0]} (decided by {host.decided_by})"
    return "none on this host; --slow emulated:cxl-asic-x8 runs with injected delays"


def speeds(host: Topology, measured: Machine | None) -> list[str]:
    """Where a plan for nodes of this host has its speeds from."""
    if not host.slower:
        return []
    if measured is not None:
        return [f"speeds: {measured.tiers[0].source}"]
    from sentinel.tiers.presets import GB, MOVER_BYTES_PER_S

    most = f"{MOVER_BYTES_PER_S / GB:g} GB/s"
    return [f"speeds: not measured, so migration is planned at {most} at most; `sentinel calibrate` measures them"]


def emulated_moves(copies: Machine | None) -> str:
    """What moves take where an emulated tier is planned for, and by whom it was measured."""
    from sentinel.reports.price_of_moves import about_moves

    if copies is None:
        return "moves of emulated tiers: not measured, so they are planned as if they took nothing from compute"
    return f"moves of emulated tiers: {about_moves(copies)} {copies.fast.source}"


def told(capability: Capability) -> str:
    """One line where it is there, and the remedy and what it costs where it is not."""
    if capability.available:
        return f"yes  {capability.name}: {capability.why}"
    return (
        f"no   {capability.name}: {capability.why}\n"
        f"       for     {capability.needed_for}\n"
        f"       remedy  {capability.remedy}"
    )
