"""All policies on all traces, machines and shares of fast memory: `python benchmarks/policies.py --json`.

Speed is simulated, and told as a share of fast-only speed and as a share of the bound, which no plan of this kind
can pass, and of the looser exchange bound. The step of each plan on a worse machine and what it holds in the mean are
told too. A cell is one trace on one machine at one share. Nearly all the time goes into bounds (seconds to a minute
each on one core); they are kept in build/bounds, since they depend on trace, machine and share only, so a second run
takes minutes.
`python -m benchmarks.policies_page` writes docs/policies.md from the JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import _bench, traces
from sentinel import machines, planner
from sentinel.core.cost import base_ns
from sentinel.core.errors import PlanError, UsageError
from sentinel.core.machine import LESS, Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.units import parse_budget
from sentinel.files import digest
from sentinel.planner import POLICIES, bound, check_policies, exchange_bound, footprint_bytes, not_slower, plan
from sentinel.planner.lower_bound import Bound
from sentinel.planner.make_plan import SEARCHING
from sentinel.simulator import simulate_lawful

FAST = ("10%", "20%", "40%", "60%", "80%")
MACHINES = ("cxl-m2-priced", "cxl-m5-priced", "cxl-m2", "cxl-m5", "optane-m5", "optane-m2", "numa-m5", "numa-m2")
_AS_FAST = 1 + 1e-9
BOUNDS = Path(__file__).parents[1] / "build" / "bounds"


def main(arguments: Sequence[str] | None = None) -> None:
    """Fill the table, print it, and end with one JSON object if asked."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        _check(given)
    except UsageError as error:
        parser.error(str(error))  # now, not after minutes of bounds
    cells = list(_cells(given))
    print(_table(cells))
    if given.json:
        print(json.dumps(summary(cells)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    lists = (
        ("--machines", MACHINES, "described machines, by file stem"),
        ("--fast", FAST, "shares of the footprint"),
        ("--traces", traces.NAMES, "profiles"),
        ("--policies", tuple(POLICIES), "policies"),
    )
    for flag, default, what in lists:
        parser.add_argument(
            flag, type=lambda text: tuple(text.split(",")), default=default, help=f"{what}, with commas"
        )
    parser.add_argument("--time-limit", type=float, default=120.0, help="seconds for each bound")
    parser.add_argument("--search-limit", type=float, help="seconds for each search of autotm (default: 50 nodes)")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    return parser


def _check(given: argparse.Namespace) -> None:
    """Raises UsageError for a trace, machine, policy or share that does not exist."""
    for trace in given.traces:
        if trace not in traces.NAMES:
            raise UsageError(f"there is no trace {trace!r}", f"choose some of {', '.join(traces.NAMES)}")
    for name in given.machines:
        machines.load(name)
    check_policies(given.policies)
    for fast in given.fast:
        parse_budget(fast, 1 << 40)


def _cells(given: argparse.Namespace) -> Iterable[dict[str, Any]]:
    """One row a trace, machine and share: fractions by policy."""
    for trace in given.traces:
        profile = traces.load(trace)
        footprint = footprint_bytes(profile)
        for name in given.machines:
            least: dict[str, Any] | None = None
            best: dict[str, Plan] = {}
            for fast in sorted(given.fast, key=lambda share: parse_budget(share, footprint)):
                machine = machines.load(name).with_fast_capacity(parse_budget(fast, footprint))
                if least is None or least["loose"] or least["step_ns"] > int(_fast_ns(profile, machine) * _AS_FAST):
                    least = _bounds(trace, profile, name, machine, fast, given.time_limit)
                # else: with less fast memory the bound was that of all in fast memory, so it is with more
                plans = _plans(profile, machine, given.policies, best, given.search_limit)
                yield _cell(trace, profile, name, machine, fast, least, plans)


def _fast_ns(profile: Profile, machine: Machine) -> float:
    """Time with all in fast memory."""
    compute, traffic = base_ns(profile, machine)
    return float(np.maximum(compute, traffic).sum())


def _plans(
    profile: Profile, machine: Machine, policies: Sequence[str], best: dict[str, Plan], search_s: float | None
) -> Iterator[tuple[str, Plan | PlanError, dict[str, Any]]]:
    """(policy, its plan or why there is none, what making it took).

    `best`: of each policy the plan for the next smaller amount, which is used again where it is faster, of ours as of
    any other; what is taken here is put there.
    """
    for policy in policies:
        if policy == "all-fast":
            continue  # it is what the others are a fraction of
        begin = time.process_time()
        try:
            made = plan(profile, machine, policy, search_s=search_s if policy == SEARCHING else None)
        except PlanError as error:
            yield policy, error, {}
            continue
        told: dict[str, Any] = {"plan_cpu_s": round(time.process_time() - begin, 2)}
        if "gap" in made.details:
            told["search"] = {"gap": made.details["gap"], "limit_s": search_s}
        best[policy] = not_slower(made, best[policy]) if policy in best else made
        yield policy, best[policy], told | {"of_less": best[policy] is not made}


def _cell(
    trace: str,
    profile: Profile,
    name: str,
    machine: Machine,
    fast: str,
    least: dict[str, Any],
    plans: Iterable[tuple[str, Plan | PlanError, dict[str, Any]]],
) -> dict[str, Any]:
    fast_ns = _fast_ns(profile, machine)
    cell: dict[str, Any] = {
        "trace": trace,
        "machine": name,
        "fast": fast,
        "commit": _bench.commit(),
        "fast_only_ns": fast_ns,
        "bound_ns": least["step_ns"],
        "bound_fraction": _short(fast_ns / least["step_ns"]),
        "exchange_ns": least["exchange_ns"],
        "loose": least["loose"],
        "fraction": {},
        "of_bound": {},
        "worse_ns": {},
        "half_links_ns": {},
        "held_in_mean": {},
        "plan_cpu_s": {},
    }
    for policy, made, told in plans:
        if isinstance(made, PlanError):
            cell.setdefault("refused", {})[policy] = str(made)
            continue
        step_ns = made.predicted_step_ns
        assert step_ns is not None
        cell["plan_cpu_s"][policy] = told["plan_cpu_s"]
        cell["worse_ns"][policy] = simulate_lawful(made, profile, machine.worse()).step_ns
        cell["half_links_ns"][policy] = simulate_lawful(made, profile, machine.with_links_at(LESS)).step_ns
        held = simulate_lawful(made, profile, machine).fast_mean_bytes or 0
        cell["held_in_mean"][policy] = _short(held / machine.fast.capacity_bytes)
        cell["fraction"][policy] = _short(fast_ns / step_ns)
        cell["of_bound"][policy] = _short(least["step_ns"] / step_ns)
        if "search" in told:
            cell["search"] = {policy: told["search"]}
        if spoilt := made.details.get("spoilt"):
            cell["unforgiving_of_bound"] = _short(least["step_ns"] / min(spoilt.values()))
        if told["of_less"]:
            cell.setdefault("plans_of_less", []).append(policy)
    print(
        f"{trace} {name} {fast}: bound {cell['bound_fraction']:.3f}, of it", _shares(cell), file=sys.stderr, flush=True
    )
    return cell


def _short(share: float) -> float:
    return round(share, 5)


def _shares(cell: dict[str, Any]) -> str:
    return ", ".join(f"{policy} {share:.3f}" for policy, share in cell["of_bound"].items())


def _bounds(
    trace: str, profile: Profile, name: str, machine: Machine, fast: str, time_limit_s: float
) -> dict[str, Any]:
    """Both bounds of a cell, from the store if they are there; the exchange bound is None where it is loose."""
    told = _stored(bound, "", trace, profile, name, machine, fast, time_limit_s)
    looser = _stored(exchange_bound, "-exchange", trace, profile, name, machine, fast, time_limit_s)
    return {**told, "exchange_ns": None if looser["loose"] else looser["step_ns"]}


def _stored(
    find: Callable[..., Bound],
    kind: str,
    trace: str,
    profile: Profile,
    name: str,
    machine: Machine,
    fast: str,
    time_limit_s: float,
) -> dict[str, Any]:
    """A bound of a cell; a loose one is not stored."""
    files = ("lower_bound.py", "bound_program.py", "relaxation.py", "../core/cost.py")
    source = b"".join((Path(planner.__file__).parent / file).read_bytes() for file in files)
    # all that a bound reads
    columns = (profile.tensors, profile.extents, profile.accesses, profile.layer_ns, profile.flops)
    told_by = [*(np.ascontiguousarray(column).tobytes() for column in columns), digest(machine).encode(), source]
    mark = hashlib.sha256(b"".join(told_by)).hexdigest()[:16]
    path = BOUNDS / f"{trace}-{name}-{fast.rstrip('%')}{kind}-{mark}.json"
    if path.exists():
        return dict(json.loads(path.read_text()))
    found = find(profile, machine, time_limit_s=time_limit_s)
    told = {"step_ns": found.step_ns, "loose": found.loose}
    if not found.loose:
        BOUNDS.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(told))
    return told


def _mean(cells: list[dict[str, Any]], table: str) -> dict[str, dict[str, dict[str, float]]]:
    """machine -> policy -> share -> mean over the paper's five families (those of them that were run)."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for cell in cells:
        if cell["trace"] in traces.PAPER:
            for policy, value in cell.get(table, {}).items():
                by_fast = found.setdefault(cell["machine"], {}).setdefault(policy, {})
                by_fast.setdefault(cell["fast"], []).append(value)
    return {
        m: {p: {f: _short(sum(v) / len(v)) for f, v in by_fast.items()} for p, by_fast in by_policy.items()}
        for m, by_policy in found.items()
    }


def summary(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """What is told of all cells, and the cells."""
    worst: dict[str, dict[str, dict[str, Any]]] = {}
    behind = []
    for cell in cells:
        for policy, share in cell["of_bound"].items():
            by_fast = worst.setdefault(cell["machine"], {}).setdefault(policy, {})
            tight = not cell["loose"]  # the share of a loose bound tells nothing about the plan
            if tight and (cell["fast"] not in by_fast or share < by_fast[cell["fast"]]["share"]):
                by_fast[cell["fast"]] = {"share": share, "trace": cell["trace"]}
            ours = cell["of_bound"].get("sentinel")
            if ours is not None and share > ours * 1.005:
                behind.append(
                    {k: cell[k] for k in ("trace", "machine", "fast")} | {"rival": policy, "by": _short(share / ours)}
                )
    return {
        "when": time.strftime("%Y-%m-%d", time.gmtime()),
        "versions": _bench.versions(),
        "kind": "simulated",
        "mean_fraction": _mean(cells, "fraction"),
        "mean_of_bound": _mean(cells, "of_bound"),
        "worst_of_bound": worst,
        "mean_of_exchange_bound": _mean([_of_exchange(cell) for cell in cells], "of_exchange"),
        "mean_held": _mean(cells, "held_in_mean"),
        "sentinel_behind": behind,
        "spoilt_by_a_worse_machine": list(_spoilt(cells)),
        "cells": cells,
    }


def _of_exchange(cell: dict[str, Any]) -> dict[str, Any]:
    """A cell with shares of the exchange bound; none where that is not known."""
    looser = cell.get("exchange_ns")
    shares = cell["of_bound"].items() if looser else ()
    return {**cell, "of_exchange": {policy: share * looser / cell["bound_ns"] for policy, share in shares}}


def _spoilt(cells: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Cells in which `sentinel` is over 3 % slower than `best-static` on the worse machine or with half the links
    alone, or over 0.5 % as described."""
    for cell in cells:
        fraction = cell["fraction"]
        steps = {name: cell.get(f"{name}_ns", {}) for name in ("worse", "half_links")}
        known = {name: by for name, by in steps.items() if {"sentinel", "best-static"} <= by.keys()}
        if not known:
            continue
        behind = {name: by["sentinel"] / by["best-static"] for name, by in known.items()}
        described = fraction["best-static"] / fraction["sentinel"]
        if max(behind.values()) > 1.03 or described > 1.005:
            place = {key: cell[key] for key in ("trace", "machine", "fast")}
            shares = {name: _short(share) for name, share in behind.items()}
            yield {**place, **shares, "described": _short(described)}


def _table(cells: list[dict[str, Any]]) -> str:
    """Mean share of the bound over the five families, policies by machine and share of fast memory."""
    means, lines = _mean(cells, "of_bound"), []
    if not means:
        return "no mean: none of these traces is of the paper's families"
    for machine, by_policy in means.items():
        shares = list(dict.fromkeys(cell["fast"] for cell in cells))
        lines.append(
            f"{machine}: share of the bound, mean of the paper's families" + "".join(f"{f:>9}" for f in shares)
        )
        for policy, by_fast in by_policy.items():
            lines.append(f"  {policy:<57}" + "".join(f"{by_fast.get(f, float('nan')):9.3f}" for f in shares))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
