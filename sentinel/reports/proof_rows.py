"""What `sentinel prove` found: a row for each run, with its ratios, from the object in sentinel-proof.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

Proof = Mapping[str, Any]
"""The object in sentinel-proof.json."""

CONTROL, OURS = "all-fast", "sentinel"
BUSY_SHARE = 0.1
"""Above this, a host was busy, and no ratio of times is told; as in reports."""
LAST_STEPS = 5
"""Of a kernel's placement, the last steps that nothing watched: tiering learns while a job runs."""


@dataclass(frozen=True)
class ProvedRow:
    """One workload under one placement. What is unknown, was not measured or means nothing here is None.

    `step_ns`: median of the judged steps, `least_ns` and `most_ns` the shortest and the longest. `over_stock`,
    `over_control`: over the median step of the stock run, and of everything in fast memory under the same runtime.
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

    @property
    def error(self) -> float | None:
        """Predicted over measured, less one."""
        if self.predicted is None or self.over_control is None:
            return None
        return self.predicted / self.over_control - 1


def rows(proof: Proof) -> list[ProvedRow]:
    """All that ran, in the order of the workloads; those of the kernel's placements too."""
    cells = {(cell["workload"], cell["kind"], cell["placement"]): cell for cell in proof["cells"]}
    found = []
    for name in proof["settings"]["workloads"]:
        stock, control = (cells.get((name, *key)) for key in (("stock", "stock"), ("policy", CONTROL)))
        own = [cell for key, cell in cells.items() if key[0] == name and "placements" not in cell]
        found += [_row(cell, stock, control, proof) for cell in own]
        found += list(_kernel_rows(name, proof))
    return found


def _row(cell: Mapping[str, Any], stock: Any, control: Any, proof: Proof) -> ProvedRow:
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
    if stock and "losses" in stock and cell["kind"] != "stock":
        bits = all(cell[part] == stock[part] for part in ("losses", "n_losses", "parameters"))
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
