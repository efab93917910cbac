"""`sentinel doctor`: what this host is and allows, found out by trying, and how to allow more."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from sentinel.cli.common import FAILED, OK, add_json, add_verb, print_json, print_table, telling
from sentinel.core.units import format_bytes, format_ns

if TYPE_CHECKING:
    from sentinel.system.capabilities import Capability
    from sentinel.system.topology import Node, Topology

NEEDED = ("C++ compiler", "torch")
"""Without these, and tracker `ops`, no training step can be watched, and the exit code is 1."""

_EXAMPLES = f"""\
examples:
  sentinel doctor
  sentinel doctor --json | jq '.capabilities[] | select(.available | not) | .remedy'
  sentinel doctor --json | jq -r .auto.tracker

Everything is tried, not looked up, so the answer holds for this user in this container. What is missing costs only
what the table says it is for.

exit code: 0 where a training step can be watched and placed, 1 where it cannot: {" or ".join(NEEDED)} is missing, or
not even tracker ops works. A page tracker that is refused, a right or a kernel feature that is missing, and the want of
a second node change nothing in it.
"""


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verb's arguments."""
    parser = add_verb(verbs, "doctor", "say what this host allows, and how to allow more", _EXAMPLES)
    add_json(parser)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Probe, print, and judge."""
    from sentinel.cli import watch
    from sentinel.system.capabilities import GROUPS, probe_all
    from sentinel.system.topology import topology

    with telling("probing this host"):
        host, found, seen = topology(), probe_all(), watch.examine()
    missing = [capability.name for capability in found if capability.name in NEEDED and not capability.available]
    missing += [] if seen.auto else ["tracker ops"]
    if arguments.json:
        answer = {"topology": asdict(host), "capabilities": [asdict(c) for c in found], "missing": missing}
        print_json(answer | seen.as_json())
    else:
        print_table(node_rows(host))
        print(f"slow memory: {slow_memory(host)}")
        print("\n".join(seen.lines()))
        for group in GROUPS:
            print(f"\n{group}")
            for capability in found:
                if capability.group == group:
                    print(told(capability))
        print(f"\n{verdict(missing)}")
    return FAILED if missing else OK


def verdict(missing: Sequence[str]) -> str:
    """The last line."""
    if missing:
        return f"no training step can be watched here: {', '.join(missing)} is missing"
    return "a training step can be watched and placed here"


def node_rows(host: Topology) -> list[tuple[str, ...]]:
    """One row a node, under a heading. Speeds are the firmware's; `-` where it tells none."""
    heading = ("node", "cpus", "memory", "free", "read latency", "read bandwidth", "role")
    return [heading, *(_node_row(node, host) for node in host.nodes)]


def _node_row(node: Node, host: Topology) -> tuple[str, ...]:
    role = "fast" if node.number == host.fast else "slower" if node.number in host.slower else "-"
    return (
        str(node.number),
        str(len(node.cpus)),
        format_bytes(node.total_bytes),
        format_bytes(node.free_bytes),
        "-" if node.read_latency_ns is None else format_ns(node.read_latency_ns),
        "-" if node.read_bytes_per_s is None else f"{format_bytes(node.read_bytes_per_s)}/s",
        role,
    )


def slow_memory(host: Topology) -> str:
    """What `slow="auto"` means here."""
    if host.slower:
        return f"node {host.slower[0]} (decided by {host.decided_by})"
    return "none on this host; --slow emulated:cxl-asic-x8 runs with injected delays"


def told(capability: Capability) -> str:
    """One line where it is there, and the remedy and what it costs where it is not."""
    if capability.available:
        return f"yes  {capability.name}: {capability.why}"
    return (
        f"no   {capability.name}: {capability.why}\n"
        f"       for     {capability.needed_for}\n"
        f"       remedy  {capability.remedy}"
    )
