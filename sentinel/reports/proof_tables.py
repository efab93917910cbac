"""What `sentinel prove` found, for people: tables, sentences, and the row of docs/real-hardware.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from sentinel.core.rules import holding
from sentinel.core.units import format_bytes, format_ns
from sentinel.reports.caveats import BUSY_SHARE
from sentinel.reports.html.tables import of_share
from sentinel.reports.proof_rows import CONTROL, OURS, Proof, ProvedRow, rows, runs
from sentinel.reports.text import aligned, or_dash

HEADS = (
    "workload",
    "placement",
    "step",
    "from … to",
    "over stock",
    "over all-fast",
    "predicted",
    "error",
    "served fast",
    "moved a step",
    "bits as stock",
)


def cells_of(row: ProvedRow) -> tuple[str, ...]:
    """What the table shows, a cell for each of HEADS."""
    name = f"{row.placement} (compared)" if row.kind == "kernel" else row.placement
    if row.said and row.step_ns is None and row.same_bits is None:
        return (row.workload, name, row.said.partition(":")[0], *("-",) * (len(HEADS) - 3))
    return (
        row.workload,
        name,
        or_dash(row.step_ns, format_ns),
        _spread(row),
        or_dash(row.over_stock, _ratio),
        or_dash(row.over_control, lambda value: _ratio(value) + _of_rounds(row.ratios)),
        or_dash(row.predicted, _ratio),
        or_dash(row.error, lambda value: f"{value:+.1%}"),
        or_dash(row.served_share, of_share),
        or_dash(row.moved_bytes, format_bytes),
        {True: "same", False: "DIFFER", None: "-"}[row.same_bits],
    )


def _of_rounds(ratios: Sequence[float]) -> str:
    """The least and the most of several rounds."""
    return f" ({_ratio(min(ratios))} … {_ratio(max(ratios))})" if len(ratios) > 1 else ""


def _spread(row: ProvedRow) -> str:
    if row.least_ns is None or row.most_ns is None:
        return "-"
    return f"{format_ns(row.least_ns)} … {format_ns(row.most_ns)}"


def bits_differ(proof: Proof) -> bool:
    """Whether anything was trained otherwise than stock."""
    return any(row.same_bits is False for row in runs(proof))


def failures(proof: Proof) -> list[str]:
    """A sentence for each cell that failed."""
    return [f"{row.workload}, {row.placement}: {row.said}" for row in runs(proof) if row.said.startswith("failed")]


def notes(proof: Proof) -> list[str]:
    """What to know before reading the numbers."""
    found = holding(
        (proof["partial"], f"partial: {proof['partial']}"),
        (
            proof["emulated_machine"],
            "emulated machine (QEMU, software): bits, pages and shares are real, times are not: none is shown",
        ),
        (
            proof["injected_delays"],
            (
                f"slow memory is {proof['settings']['slow']}: ordinary memory of this host with injected delays, no"
                " slower memory. Times of a placement say how its transfers are scheduled, not what a device does"
            ),
        ),
        (
            True,
            (
                "predicted: written, with a digest, before the first run that judges it; a ratio to all-fast, which is"
                " everything in fast memory under the same runtime"
            ),
        ),
        (
            any(len(row.ratios) > 1 for row in rows(proof)),
            (
                "of several rounds: the median of their ratios, each to stock or all-fast of the same round, and in"
                " brackets the least and the most"
            ),
        ),
        (
            proof["settings"]["file"],
            "file: tensors in half of the footprint of memory, the rest in a file; nothing is predicted there",
        ),
        (
            _clock_set_back(proof),
            (
                "the clock was set back meanwhile: by the clock a prediction is later than its run. Their numbers say"
                " that it was written first, and each run names the digest of its prediction"
            ),
        ),
    )
    found += _of_load([row for row in runs(proof) if row.busy_share is not None])
    found += _of_links(proof)
    found += dict.fromkeys(f"{row.workload}, {row.placement}: {row.said}" for row in runs(proof) if row.said)
    found += [f"not run: {name}: {why}" for name, why in proof["not_run"].items()]
    found += [f"put back: {sentence}" for sentence in proof["put_back"]]
    return found


def _of_load(told: Sequence[ProvedRow]) -> Iterator[str]:
    """How busy the host was, of the runs that tell it."""
    loud = [row for row in told if row.busy_share is not None and row.busy_share > BUSY_SHARE]
    for by_waits in (False, True):
        shares = [row.busy_share or 0 for row in loud if row.by_waits == by_waits]
        why = (
            "the training thread waited for a processor, or a hypervisor took it (what others had is not known there)"
            if by_waits
            else "others had the processors"
        )
        if shares:
            yield (
                f"the host was busy in {len(shares)} of {len(told)} runs: {why}, for up to {max(shares):.0%} of the"
                " time. Ratios with these runs are not shown"
            )
    waited = [row.waited_share for row in told if row not in loud and (row.waited_share or 0) > BUSY_SHARE]
    if waited:
        yield (
            f"in {len(waited)} of {len(told)} runs the training thread waited for a processor for up to"
            f" {max(share or 0 for share in waited):.0%} of the time, and others did not have it: threads of the job"
            " itself did, or a limit of the container was used up. That is part of what a step takes there"
        )


def _of_links(proof: Proof) -> Iterator[str]:
    """How many runs were below the rates of emulated links, and how far. On an emulated machine times mean nothing."""
    told = [cell["links"] for cell in proof["cells"] if cell.get("links") and not proof["emulated_machine"]]
    shares = [min(link["copied_bytes_per_s"] / link["asked_bytes_per_s"] for link in links) for links in told]
    behind = sum(not all(link["kept_up"] for link in links) for links in told)
    if behind:
        yield (
            f"in {behind} of the {len(told)} runs that moved enough to tell, this host copied more slowly beside the"
            " job than an emulated link was to carry, and transfers took that long: the slowest link of each run"
            f" reached {min(shares):.0%} to {max(shares):.0%} of its rate, {median(shares):.0%} in the median. All"
            " rates are in the JSON file (cells[].links)"
        )


def _clock_set_back(proof: Proof) -> bool:
    written = {name: told["written"] for name, told in proof["predictions"].items()}
    return any(
        cell.get("began", "") < written.get(cell["workload"], "") for cell in proof["cells"] if cell["prediction"]
    )


def summary(proof: Proof) -> list[tuple[str, str]]:
    """(what, answer): the answer in short."""
    found = rows(proof)
    judged = [row for row in runs(proof) if row.same_bits is not None]
    same = sum(row.same_bits is True for row in judged)
    errors = [row.error for row in found if row.error is not None and row.placement != CONTROL]
    moving = [row.error for row in found if row.error is not None and row.moved_bytes]
    return [
        ("bits", f"{same} of {len(judged)} runs trained the same losses and parameters as stock PyTorch"),
        ("prediction", _errors(errors)),
        ("of those that move", _errors(moving)),
        *(
            (name if kind == "policy" else f"{name} (compared)", _mean_over_control(found, kind, name))
            for kind, name in _COMPARED
            if any((row.kind, row.placement) == (kind, name) for row in found)
        ),
    ]


_COMPARED = (
    ("policy", OURS),
    ("policy", "best-static"),
    ("policy", "first-touch"),
    ("policy", "all-slow"),
    ("kernel", OURS),
    ("kernel", "kernel-tiering"),
    ("kernel", "first-touch"),
)


def _errors(errors: Sequence[float]) -> str:
    if not errors:
        return "nothing to judge"
    sizes = [abs(error) for error in errors]
    return (
        f"of {len(errors)} ratios the mean error is {fmean(sizes):.1%}, the worst {max(sizes):.1%},"
        f" the mean with its sign {fmean(errors):+.1%}"
    )


def _mean_over_control(found: Sequence[ProvedRow], kind: str, name: str) -> str:
    ratios = [row.over_control for row in found if (row.kind, row.placement) == (kind, name) and row.over_control]
    if not ratios:
        return "not measured"
    return f"a step takes {fmean(ratios):.3f} of all-fast in the mean of {len(ratios)}, {max(ratios):.3f} at most"


_RATIOS = (
    ("policy", OURS),
    ("policy", "best-static"),
    ("policy", "all-slow"),
    ("kernel", OURS),
    ("kernel", "kernel-tiering"),
)
"""(kind, placement) of the columns between bits and errors."""


def table_row(proof: Proof) -> str:
    """The row of docs/real-hardware.md, as Markdown: ratios are means over the workloads, each with their number."""
    found, every, host = rows(proof), runs(proof), proof["host"]
    judged = [row for row in every if row.same_bits is not None]
    errors = [abs(row.error) for row in found if row.error is not None and row.placement != CONTROL]
    nodes = f"{len(host.get('nodes', ())) or 1} nodes".replace("1 nodes", "1 node")
    refused = sum(row.said.startswith("refused: ") for row in every)
    ran = sum(not row.said.startswith(("failed", "skipped")) for row in every) - refused
    told = (
        f"{_processor(host)}, {host.get('cpus')} CPUs, Linux {host.get('kernel')}, {nodes}",
        _slow(proof),
        f"{sum(row.same_bits is True for row in judged)} of {len(judged)}",
        *(_mean(found, *key) for key in _RATIOS),
        f"{fmean(errors):.1%}, worst {max(errors):.1%}" if errors else "-",
        f"{proof['ended'][:10]}, {ran} run, {f'{refused} refused, ' if refused else ''}{len(proof['not_run'])} not",
    )
    return f"| {' | '.join(told)} |"


def _processor(host: Mapping[str, Any]) -> str:
    return str(host.get("processor") or host.get("architecture"))


def _slow(proof: Proof) -> str:
    settings = proof["settings"]
    if settings["slow"] is None:
        return "a file"
    ran = any(cell["kind"] == "file" and "steps_ns" in cell for cell in proof["cells"])
    beside = ", and a file" if ran else ""
    label = " (**injected delays**, no slower memory)" if proof["injected_delays"] else ""
    label = " (**emulated machine**, no times)" if proof["emulated_machine"] else label
    return f"{settings['slow']}{label}{beside}"


def _mean(found: Sequence[ProvedRow], kind: str, name: str) -> str:
    ratios = [row.over_control for row in found if (row.kind, row.placement) == (kind, name) and row.over_control]
    return f"{fmean(ratios):.3f} (of {len(ratios)})" if ratios else "-"


def contents(proof: Proof) -> list[str]:
    """Every name in the object, `[]` for the members of a list, `*` for names that differ; each once, in order."""
    return list(dict.fromkeys(_names(proof, "")))


_OF_MANY = ("predictions", "of", "not_run", "distances", "migrated_pages", "counters")
"""Objects whose names are workloads, placements or the like."""


def _names(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        many = path.rpartition(".")[2] in _OF_MANY
        for name, each in value.items():
            yield from _names(each, f"{path}.{'*' if many else name}".removeprefix("."))
    elif isinstance(value, list) and any(isinstance(each, Mapping | list) for each in value):
        for each in value:
            yield from _names(each, f"{path}[]")
    else:
        yield path


def text(proof: Proof) -> str:
    """What a terminal shows."""
    lines = aligned([HEADS, *(cells_of(row) for row in rows(proof))])
    short = aligned(summary(proof))
    said = [f"- {note}" for note in notes(proof)]
    missing = [f"- {sentence}" for sentence in needs(proof)]
    wanted = ["What would need rights or packages:", *missing] if missing else []
    return "\n\n".join("\n".join(part) for part in ([title(proof)], short, lines, said, wanted) if part)


def title(proof: Proof) -> str:
    """What was proved where, in a line."""
    host = proof["host"]
    where = f"{_processor(host)}, Linux {host.get('kernel')}"
    return f"sentinel prove{' (partial)' if proof['partial'] else ''}: {_slow(proof).replace('**', '')}, on {where}"


def needs(proof: Proof) -> list[str]:
    """What was not there, for what, and how to allow it."""
    doctor = proof["doctor"] or {}
    missing = [*doctor.get("missing", ()), *doctor.get("trackers_missing", ())]
    return [f"{each['name']}, for {each['needed_for']}: {each['remedy']}" for each in missing]


def _ratio(value: float) -> str:
    return f"{value:.3f}"
