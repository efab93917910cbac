"""`sentinel calibrate`: measure this host's memory, and keep what was found for plans."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from sentinel.cli.common import OK, add_json, add_verb, as_a_file, check_outputs, print_json, print_table, size
from sentinel.core.rules import holding, require
from sentinel.core.units import format_bytes, format_ns, parse_bytes

if TYPE_CHECKING:
    from sentinel.calibrate import Calibration, Figure
    from sentinel.core.machine import Machine
    from sentinel.system.topology import Topology

_EXAMPLES = """\
examples:
  sentinel calibrate
      measures all nodes; later plans for slow="auto" and "numa:N" use the figures
  sentinel calibrate --quick
      a few seconds, wider spread
  sentinel calibrate --nodes 0,1 --threads 1,4,N --size 1GiB -o machine.json
  sentinel run --machine machine.json train.py
      keeps the figures in a file of their own; plan, simulate and compare take it too
  sentinel calibrate --slow emulated:cxl-asic-x8 -o machine.json
      for hosts with one node: this host's memory as fast tier, and a declared slow tier. Without -o, only what copies
      take from compute is kept, and plans for all emulated tiers count it

Bandwidth: `read`, `write` (ordinary stores) and `mixed` (bytes read and written back in place, both counted), by
threads on the CPUs of the fast node. Latency: dependent loads in random order. Migration: pages moved as a plan moves
them. Beside compute: how much longer a fixed piece of work on all processors takes while bytes move, and for each
migration; plans count it. Each figure is the median of the rounds; ± is half the difference between the highest and the
lowest round.
Keep the host idle while it measures: other programs change the figures.
"""


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verb's arguments."""
    parser = add_verb(verbs, "calibrate", "measure bandwidth, latency and migration of this host's memory", _EXAMPLES)
    parser.add_argument(
        "--nodes", type=_numbers, metavar="0,1", help="nodes to measure besides the fast one; default: all with memory"
    )
    parser.add_argument(
        "--threads", type=_threads, metavar="1,2,N", help="numbers of threads, N for all CPUs; default: 1, 2, 4 ... N"
    )
    parser.add_argument(
        "--size",
        type=_bytes,
        metavar="AMOUNT",
        help="memory to measure on; default: 256MiB, or 4 times the last-level cache",
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds, 1 and N threads")
    parser.add_argument(
        "--slow", metavar="TIER", help="a declared slow tier instead of other nodes: emulated:PRESET or PRESET"
    )
    parser.add_argument("--cpus", metavar="CPUS", help='measure from these CPUs: "node:0", or a list such as "0-3,8"')
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write the machine to this file instead of keeping it for plans"
    )
    add_json(parser)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Measure, print, and write or keep the machine."""
    from sentinel import calibrate
    from sentinel.system.calibration import check_keeping
    from sentinel.system.processor import is_emulated
    from sentinel.system.topology import topology
    from sentinel.tiers.choice import declared_words

    both = arguments.slow is not None and arguments.nodes is not None
    require((both, "--nodes with --slow: a declared tier takes the place of other nodes", "leave one out"))
    check_outputs(arguments.output)  # before anything is measured, as the rest
    if not arguments.output and not is_emulated():
        check_keeping()
    if arguments.slow is not None:
        declared_words(arguments.slow)
    if arguments.cpus is not None:
        from sentinel.system.affinity import bind_to, cpus_named

        bind_to(cpus_named(arguments.cpus, topology()))
    host = topology()
    nodes = arguments.nodes if arguments.slow is None else []
    asked = calibrate.plan_measurements(
        host, nodes=nodes, threads=arguments.threads, nbytes=arguments.size, quick=arguments.quick
    )
    found = calibrate.calibrate(asked, _tell)
    slow = arguments.slow or (None if asked.others else _DECLARED)
    machine = calibrate.machine_of(found, host, slow)
    if slow != arguments.slow:
        machine = replace(machine, decided_by="declared")
    said = _said(found, machine, arguments.slow)
    if arguments.json:
        print_json(as_json(found, machine, said))
    else:
        _print(found, machine, said)
    print(f"sentinel: {_kept(found, machine, host, arguments)}", file=sys.stderr)
    return OK


_DECLARED = "cxl-asic-x8"
"""What slow="auto" plans for where there is no slower node."""


def _tell(part: int, parts: int, what: str) -> None:
    print(f"sentinel: calibrating {part}/{parts}: {what}", file=sys.stderr, flush=True)


def _said(found: Calibration, machine: Machine, asked_slow: str | None) -> list[str]:
    """What must be known before the figures are believed."""
    fast_rate = machine.fast.read_bytes_per_s
    declared = [tier for tier in machine.tiers if tier is not machine.fast and not tier.measured]
    return [
        *found.notes,
        *holding(
            (
                declared and asked_slow is None,
                (
                    f"this host has no other node: the machine's slow tier is {machine.slow}, declared, not measured;"
                    " another with --slow emulated:PRESET or --slow PRESET"
                ),
            ),
            *(
                (
                    slow.read_bytes_per_s >= fast_rate,
                    (
                        f"{slow.name} is declared to read {_rate(slow.read_bytes_per_s)}, this host's memory was"
                        f" measured at {_rate(fast_rate)}: such a tier would hardly be slower here"
                    ),
                )
                for slow in declared
            ),
        ),
    ]


def _kept(found: Calibration, machine: Machine, host: Topology, arguments: argparse.Namespace) -> str:
    """Writes or keeps the machine; says which."""
    from sentinel import files
    from sentinel.calibrate import copies_of
    from sentinel.system.calibration import keep, keep_copies

    if arguments.output:
        files.save(machine, arguments.output)
        return f"machine written to {arguments.output}; use it with --machine {as_a_file(arguments.output)}"
    if found.emulated:
        return "not kept for plans, since the machine is emulated; -o FILE writes it anyway"
    copies = copies_of(found, host)
    if copies is not None:
        return (
            f"kept in {keep_copies(copies, host.nodes)}: plans for emulated tiers count what copies take here from now"
            " on; speeds of a declared slow tier stay declared, and -o FILE writes this machine"
        )
    return f"kept in {keep(machine, host.nodes)}: plans for nodes of this host use it from now on"


def as_json(found: Calibration, machine: Machine, said: list[str]) -> dict[str, Any]:
    """Everything that was found; bandwidths in bytes per second."""
    return {
        "conditions": {
            "began": found.began,
            "processor": found.processor,
            "virtual": found.virtual,
            "emulated": found.emulated,
            "cpus": list(found.cpus),
            "nbytes": found.nbytes,
            "rounds": found.rounds,
        },
        "nodes": [asdict(node) for node in found.nodes],
        "moves": [asdict(move) for move in found.moves],
        "both_ways": [
            {"source": source, "target": target, "rate": asdict(figure)}
            for (source, target), figure in found.both_ways.items()
        ],
        "moving": [asdict(each) for each in found.moving],
        "machine": asdict(machine),
        "notes": said,
    }


def _print(found: Calibration, machine: Machine, said: list[str]) -> None:
    rows: list[tuple[str, ...]] = [("node", "tier", "threads", "read", "write", "mixed")]
    names = {tier.node: tier.name for tier in machine.tiers}
    for node in found.nodes:
        for threads in node.read:
            figures = (node.read[threads], node.write[threads], node.mixed[threads])
            rows.append((str(node.node), names.get(node.node, "-"), str(threads), *map(_shown, figures)))
    print_table(rows)
    print()
    rows = [("node", "latency", "loaded", "readers", "pages")]
    for node in found.nodes:
        loaded = "-" if node.loaded_ns is None else _shown(node.loaded_ns, format_ns)
        pages = "huge" if node.huge else "4 KiB"
        rows.append((str(node.node), _shown(node.latency_ns, format_ns), loaded, str(node.readers), pages))
    print_table(rows)
    if found.moves:
        print()
        _print_moves(found)
    if found.moving:
        print()
        _print_moving(found)
    print(f"\ntiers: {', '.join(tier.name for tier in machine.tiers)} (decided by: {machine.decided_by})")
    for sentence in said:
        print(f"note: {sentence}")


def _print_moves(found: Calibration) -> None:
    rows = [("from", "to", "pages", "movers", "migration")]
    for move in found.moves:
        for movers, figure in move.rates.items():
            pages = format_bytes(move.page_bytes).replace(".00", "")
            rows.append((str(move.source), str(move.target), pages, str(movers), _shown(figure)))
    for (source, target), figure in found.both_ways.items():
        rows.append((str(source), str(target), "4 KiB", "1 each way", _shown(figure)))
    print_table(rows)


def _print_moving(found: Calibration) -> None:
    rows: list[tuple[str, ...]] = [("beside compute", "moved", "lost a MiB", "lost a migration")]
    for each in found.moving:
        what = "copies" if each.node is None else f"node {each.node}"
        way = f"{what}, {'promoted' if each.to_fast else 'demoted'}"
        a_mib = _shown(each.lost_ns_per_kib, lambda ns: format_ns(1024 * ns))
        rows.append((way, _shown(each.rate), a_mib, _shown(each.lost_ns_per_move, format_ns)))
    print_table(rows)


def _rate(bytes_per_s: float) -> str:
    return f"{format_bytes(bytes_per_s)}/s"


def _shown(figure: Figure, form: Any = _rate) -> str:
    return f"{form(figure.median)} ±{figure.spread / 2:.0%}"


def _numbers(text: str) -> list[int]:
    """An argparse type: node numbers such as `0,1` or `0-3`."""
    from sentinel.system.affinity import numbers_told

    found = numbers_told(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} names no nodes; write 0,1")
    return found


def _threads(text: str) -> list[int]:
    """An argparse type: numbers of threads such as `1,2,N`; N is told as 0."""
    found = []
    for word in text.split(","):
        if word.strip().upper() == "N":
            found.append(0)
        elif word.strip().isdigit() and int(word) > 0:
            found.append(int(word))
        else:
            raise argparse.ArgumentTypeError(f"{word!r} is not a number of threads; write 1,2,N")
    return found


def _bytes(text: str) -> int:
    """An argparse type: an amount of memory."""
    return parse_bytes(size(text))
