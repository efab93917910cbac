"""One job under several placements, executed: the table as text and as an object for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sentinel.core.units import PAGE_BYTES, format_bytes
from sentinel.reports.html.tables import of_share
from sentinel.reports.text import aligned, or_dash

WITHIN_A_NODE = "compaction"
"""The one reason for which the kernel moves pages without taking them to another node."""

EMULATED = "emulated machine (QEMU, software): shares, pages and bits are real, times are not, and none is shown"


@dataclass(frozen=True)
class Ours:
    """What only a planned placement has. Bytes and pages.

    `residency_share`: of the managed bytes present after each layer of the audited steps, the share that the kernel
    has where the plan allows it. `moving_share`: of them, in blocks under way between tiers, where either side is
    right. `managed_fast_peak_bytes`: most managed bytes that the kernel had on the fast node after a layer.
    `claimed_pages`: that the engine says it moved; `witness_pages`: that the witness saw it move, None without one.
    """

    budget_bytes: int
    footprint_bytes: int
    residency_share: float | None
    moving_share: float | None
    managed_fast_peak_bytes: int | None
    claimed_pages: int
    witness_pages: int | None
    tracker: str | None
    counters: Mapping[str, int] = field(default_factory=dict)
    """Of the engine's run, such as how many promotions came late."""
    elsewhere: tuple[tuple[str, str, int], ...] = ()
    """(layer, block, bytes) of the largest blocks found where they were not planned."""
    planned_bytes: int | None = None
    """That the plan moves in a step."""


@dataclass(frozen=True)
class Row:
    """One placement. What is unknown, and all of a placement that was `skipped`, is None.

    `served_share`: of the bytes touched in the measured steps, the share on the fast node when they were touched.
    `touched_bytes`, a step, are on nodes; `absent_bytes` of operands are on none: they were never written.
    `migrated_pages`: by reason, by the witness, until the script ended; `migrated_pages_by_step`: the same in each
    whole step, from the first on in which a plan is applied. `mean_tensor_bytes`, `most_...`: bytes of tensors on the
    fast node at the end of each layer of the second measured step. `fast_taken_bytes`: most of the fast node that the
    job took from its start on, tensors or not. `left_bytes`, `ballast_bytes`: what the ballast left at the beginning,
    and was. `least_left_bytes`, `mean_...`, `most_...`: what the job had of the node while it ran, held or free; None
    where the ballast could not be fitted to that. `others_demoted_pages`: not the job's, demoted meanwhile.
    `same_losses`, `same_parameters`: bit by bit, as in all-fast stock training. `unwatched_steps_ns`: what steps of the
    warm-up took, in order, which nothing slows but the ballast being kept; they mean nothing in an emulated machine.
    `busy_share`, `waited_share`, `judged_by`: how busy the host was in these steps; see HostLoad.
    """

    name: str
    how: str
    served_share: float | None = None
    touched_bytes: int | None = None
    absent_bytes: int | None = None
    measured_steps: int = 0
    migrated_pages: Mapping[str, int] | None = None
    others_demoted_pages: int | None = None
    no_witness: str = ""
    mean_tensor_bytes: int | None = None
    most_tensor_bytes: int | None = None
    fast_taken_bytes: int | None = None
    left_bytes: int | None = None
    least_left_bytes: int | None = None
    mean_left_bytes: int | None = None
    most_left_bytes: int | None = None
    ballast_bytes: int | None = None
    same_losses: bool | None = None
    same_parameters: bool | None = None
    ours: Ours | None = None
    skipped: str = ""
    unwatched_steps_ns: tuple[int, ...] = ()
    busy_share: float | None = None
    waited_share: float | None = None
    judged_by: str | None = None
    migrated_pages_by_step: tuple[Mapping[str, int], ...] = ()

    @property
    def migrated_bytes(self) -> int | None:
        """Bytes of all pages that moved, for whatever reason."""
        return None if self.migrated_pages is None else sum(self.migrated_pages.values()) * PAGE_BYTES

    @property
    def later_migrated_bytes(self) -> float | None:
        """Bytes that moved between nodes in a step, in the mean of the second half of the whole steps: until then
        memory is filled for the first time, and the kernel learns."""
        steps = self.migrated_pages_by_step
        later = steps[len(steps) // 2 :]
        if self.migrated_pages is None or not later:
            return None
        pages = sum(n for step in later for reason, n in step.items() if reason != WITHIN_A_NODE)
        return pages * PAGE_BYTES / len(later)


@dataclass(frozen=True)
class PlacementComparison:
    """All of it. `fast_bytes`: of every limited placement; `beside_bytes`: what the ballast leaves beside them, for
    what is no tensor. `where`: kernel, versions, nodes. `emulated`: in a machine whose times mean nothing."""

    script: str
    fast: str
    slow: str
    fast_bytes: int | None
    beside_bytes: int | None
    emulated: bool
    where: Mapping[str, str] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()


def as_object(found: PlacementComparison) -> dict[str, Any]:
    """JSON values only; what is unknown is null."""
    rows = [
        {**asdict(row), "migrated_bytes": row.migrated_bytes, "later_migrated_bytes": row.later_migrated_bytes}
        for row in found.rows
    ]
    return {**asdict(found), "kind": "executed", "rows": rows}


def title(found: PlacementComparison) -> str:
    """What was run, in a line."""
    return f"executed: {found.script}, fast={found.fast}, slow={found.slow}"


def notes(found: PlacementComparison) -> list[str]:
    """What to know before reading the numbers."""
    said = [EMULATED] if found.emulated else []
    said.append(
        "served fast: of the bytes touched in the measured steps (lines of 64, each once a layer and tensor),"
        " the share that was on the fast node when an operator touched them, asked from the kernel"
    )
    said.append(
        "tensors there: bytes of tensors on the fast node at the ends of the layers of the second measured step, in the"
        " mean, asked from the kernel; memory of dead tensors counts while malloc keeps it: the next tensor gets it"
    )
    said.append(
        "moved: from the job's start to its end, the first filling of fast memory included; a later step: moved between"
        " the nodes in a step, in the mean of the second half of the steps"
    )
    if found.fast_bytes is not None and found.beside_bytes is not None:
        said.append(
            f"equal fast bytes: pinned ballast on the fast node leaves {format_bytes(found.fast_bytes)} (our budget)"
            f" and {format_bytes(found.beside_bytes)} for what is no tensor (what all-fast took beyond its tensors);"
            " it grows and shrinks as others free and take memory there while the job runs; ours keeps to its budget"
            " by its plan, without ballast"
        )
    said += [f"{row.name}: skipped: {row.skipped}" for row in found.rows if row.skipped]
    said += [f"{row.name}: page migrations not all counted: {row.no_witness}" for row in found.rows if row.no_witness]
    said += [
        f"{row.name}: the kernel demoted {row.others_demoted_pages:,} pages that are not the job's"
        f" ({format_bytes(row.others_demoted_pages * PAGE_BYTES)}), so this row had more room than the others"
        for row in found.rows
        if row.others_demoted_pages and row.most_left_bytes is None
    ]
    said += [line for row in found.rows if row.ours is not None for line in _proofs(row.ours)]
    return said


def _proofs(ours: Ours) -> list[str]:
    seen = "no witness" if ours.witness_pages is None else f"{ours.witness_pages:,} by the witness"
    lines = [f"ours: pages moved: {ours.claimed_pages:,} by the engine, {seen}"]
    if ours.residency_share is not None and ours.managed_fast_peak_bytes is not None:
        lines.append(
            f"ours: {ours.residency_share:.2%} of managed bytes were where the plan has them after each layer"
            f" ({ours.moving_share or 0:.2%} under way, where either node is right); at most"
            f" {format_bytes(ours.managed_fast_peak_bytes)} on the fast node, budget {format_bytes(ours.budget_bytes)}"
        )
    lines += [f"ours: elsewhere after {layer}: {format_bytes(n)} of {block}" for layer, block, n in ours.elsewhere]
    return lines


HEADS = (
    "placement",
    "served fast",
    "tensors there",
    "moved",
    "a later step",
    "why",
    "node taken",
    "left by ballast",
    "bits as all-fast",
)


def cells(row: Row) -> tuple[str, ...]:
    """What the table shows of `row`, a cell for each of HEADS."""
    if row.skipped:
        return (row.name, "skipped", *("-",) * 7)
    return (
        row.name,
        or_dash(row.served_share, of_share),
        or_dash(row.mean_tensor_bytes, format_bytes),
        or_dash(row.migrated_bytes, format_bytes),
        or_dash(row.later_migrated_bytes, lambda nbytes: format_bytes(round(nbytes))),
        ", ".join(f"{reason} {n:,}" for reason, n in (row.migrated_pages or {}).items()) or "-",
        or_dash(row.fast_taken_bytes, format_bytes),
        _left(row),
        {True: "same", False: "DIFFER", None: "-"}[row.same_losses and row.same_parameters],
    )


def text(found: PlacementComparison) -> str:
    """What a terminal shows."""
    lines = aligned([HEADS, *(cells(row) for row in found.rows)])
    where = ", ".join(f"{what} {value}" for what, value in found.where.items())
    return "\n".join([title(found), where, "", *lines, "", *(f"- {note}" for note in notes(found))])


def _left(row: Row) -> str:
    if row.left_bytes is None:
        return "no ballast"
    if row.least_left_bytes is None or row.mean_left_bytes is None or row.most_left_bytes is None:
        return f"{format_bytes(row.left_bytes)} at the beginning"
    around = f"{format_bytes(row.least_left_bytes)} to {format_bytes(row.most_left_bytes)}"
    return f"{format_bytes(row.mean_left_bytes)} ({around})"
