"""What `sentinel prove` found: a row for each run, and for all rounds of a placement, from sentinel-proof.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from sentinel.reports.caveats import BUSY_SHARE

Proof = Mapping[str, Any]
"""The object in sentinel-proof.json."""

CONTROL, OURS = "all-fast", "sentinel"
LAST_STEPS = 5
"""Of a kernel's placement, the last steps that nothing watched: tiering learns while a job runs."""


@dataclass(frozen=True)
class ProvedRow:
    """One workload under one placement, in one round or in all. What is unknown, was not measured or means nothing here
    is None.

    `step_ns`: median of the judged steps, `least_ns` and `most_ns` the shortest and the longest. `over_stock`,
    `over_control`: over the median step of the stock run, and of everything in fast memory under the same runtime; of
    several rounds the median of their ratios, each within its round. `ratios`: those over the control.
    `predicted`: the latter as it was predicted before the run. `same_bits`: losses and all that was trained.
    `busy_share`: what others had of the processors, or where nobody tells that (`by_waits`), what the training thread
    waited for one. `waited_share`: what it waited in any case, for threads of its own too; nothing is judged by it.
    """

    workload: str
    kind: str
    placement: str
    step_ns: float | None = None
    least_ns: int | None = None
    most_ns: int | None = None
    over_stock: float | None = None
    over_control: float | None = None
    predicted: float | None = None
    served_share: float | None = None
    moved_bytes: int | None = None
    same_bits: bool | None = None
    busy_share: float | None = None
    by_waits: bool = False
    waited_share: float | None = None
    said: str = ""
    ratios: tuple[float, ...] = ()

    @property
    def error(self) -> float | None:
        """Predicted over measured, less one."""
        if self.predicted is None or self.over_control is None:
            return None
        return self.predicted / self.over_control - 1


def rows(proof: Proof) -> list[ProvedRow]:
    """What each placement did in all its rounds, in the order of the workloads; those of the kernel too."""
    by_placement: dict[tuple[str, str, str], list[ProvedRow]] = {}
    for run in runs(proof):
        by_placement.setdefault((run.workload, run.kind, run.placement), []).append(run)
    return [_joined(rounds) for rounds in by_placement.values()]


def runs(proof: Proof) -> list[ProvedRow]:
    """All that ran, one by one, in the order of the workloads; those of the kernel's placements too."""
    cells = {(cell["workload"], cell["kind"], cell["placement"], cell.get("round", 1)): cell for cell in proof["cells"]}
    found = []
    for name in proof["settings"]["workloads"]:
        own = {key: cell for key, cell in cells.items() if key[0] == name and "placements" not in cell}
        trained = next((cell for key, cell in own.items() if key[1] == "stock" and "losses" in cell), None)
        for (*_, number), cell in own.items():
            stock, control = (own.get((name, *key, number)) for key in (("stock", "stock"), ("policy", CONTROL)))
            found.append(_row(cell, stock, control, trained, proof))
        found += list(_kernel_rows(name, proof))
    return found


def _joined(rounds: list[ProvedRow]) -> ProvedRow:
    """One row of several rounds of a placement; of those that failed only where none ended."""
    ended = [row for row in rounds if row.step_ns is not None or row.same_bits is not None] or rounds[:1]
    bits = {row.same_bits for row in ended}
    ratios = tuple(row.over_control for row in ended if row.over_control is not None)
    return replace(
        ended[0],
        step_ns=_middle([row.step_ns for row in ended]),
        least_ns=min((row.least_ns for row in ended if row.least_ns is not None), default=None),
        most_ns=max((row.most_ns for row in ended if row.most_ns is not None), default=None),
        over_stock=_middle([row.over_stock for row in ended]),
        over_control=_middle(ratios),
        ratios=ratios,
        predicted=ended[0].predicted if all(row.predicted is not None for row in ended) else None,
        same_bits=False if False in bits else True if True in bits else None,
        said="; ".join(dict.fromkeys(row.said for row in ended if row.said)),
    )


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _row(cell: Mapping[str, Any], stock: Any, control: Any, trained: Any, proof: Proof) -> ProvedRow:
    """`stock`, `control`: of its round. `trained`: the stock run whose bits are those of all."""
    said = cell.get("refused") or cell.get("failed") or ""
    head = (cell["workload"], cell["kind"], cell["placement"])
    if said:
        word = "refused" if "refused" in cell else "failed"
        return ProvedRow(*head, said=f"{word}: {said}")
    times = [] if proof["emulated_machine"] else cell["steps_ns"]
    step = median(times) if times else None
    planned = cell["kind"] == "policy" and bool(cell.get("as_planned"))
    prediction = proof["predictions"].get(cell["workload"], {}).get("of", {}).get(cell["placement"], {})
    bits = None
    if trained and cell is not trained:
        bits = all(cell[part] == trained[part] for part in ("losses", "n_losses", "parameters"))
    quiet = max((each.get("busy_share") or 0 for each in (cell, stock or {}, control or {})), default=0) <= BUSY_SHARE
    return ProvedRow(
        *head,
        step_ns=step,
        least_ns=min(times, default=None),
        most_ns=max(times, default=None),
        over_stock=_over(step, stock) if quiet else None,
        over_control=_over(step, control) if quiet and cell["kind"] == "policy" else None,
        predicted=prediction.get("ratio") if planned else None,
        served_share=cell.get("fast_served_fraction"),
        moved_bytes=cell.get("migrated_bytes_per_step"),
        same_bits=bits,
        **_load(cell),
        said="; ".join(cell.get("notes", ())),
    )


def _over(step: float | None, other: Any) -> float | None:
    return step / median(other["steps_ns"]) if step is not None and other and other.get("steps_ns") else None


def _load(told: Mapping[str, Any]) -> dict[str, Any]:
    """Objects of before `judged_by` were judged by waits."""
    by_waits = told.get("busy_share") is not None and told.get("judged_by", "waits") == "waits"
    return {"busy_share": told.get("busy_share"), "by_waits": by_waits, "waited_share": told.get("waited_share")}


def _kernel_rows(workload: str, proof: Proof) -> Iterator[ProvedRow]:
    """Of the comparison at equal fast bytes; its own all-fast run, of stock PyTorch, is what the others are held
    against, in time and in bits."""
    told = {each["row"]["name"]: each["row"] for each in proof["kernel_placements"] if each["workload"] == workload}
    control = told.get(CONTROL)
    for name, row in told.items():
        if row["skipped"]:
            yield ProvedRow(workload, "kernel", name, said=f"skipped: {row['skipped']}")
            continue
        times = [] if proof["emulated_machine"] else row["unwatched_steps_ns"][-LAST_STEPS:]
        step = median(times) if times else None
        all_fast = control["unwatched_steps_ns"][-LAST_STEPS:] if control else []
        steps = row["measured_steps"]
        shares = [each.get("busy_share") or 0 for each in (row, control or {})]
        quiet = max(shares) <= BUSY_SHARE
        yield ProvedRow(
            workload,
            "kernel",
            name,
            step_ns=step,
            least_ns=min(times, default=None),
            most_ns=max(times, default=None),
            over_control=step / median(all_fast) if step is not None and all_fast and quiet else None,
            served_share=row["served_share"],
            moved_bytes=None,
            same_bits=None if name == CONTROL else bool(row["same_losses"] and row["same_parameters"]),
            **_load(row),
            said="" if steps else "no step was measured",
        )
