"""FEED_SECTIONS: the parts of the report of a loader."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

from sentinel.core.units import PAGE_BYTES, format_bytes, format_ns
from sentinel.data.feed_facts import FeedFacts
from sentinel.reports.html.tables import text_as_pairs
from sentinel.reports.section import NO_TEXT, Document, Section, TextTable
from sentinel.samples import NEIGHBOURS

if TYPE_CHECKING:  # pandas takes half a second to import: only who asks for tables pays
    import pandas as pd

Rows = list[tuple[str, ...]]

_REQUESTS = "Where the samples came from"
_COUNTS = "What was done, and what the plan said"
_DIRECT = "Samples that were read alone, and why"
_NEIGHBOURS = f"{NEIGHBOURS} samples, or all of a row group or compressed shard"
_MIXING = f"How well the order of the epoch mixes neighbours ({_NEIGHBOURS})"
_NODES = "Memory for samples, by node, as the kernel says"
_WHY = {
    "late": "the reader had made no progress for too long",
    "lost": "their chunk could not be read, or a peer did not bring them",
    "ended": "the reader had ended",
    "gone": "another job had them in memory, and has let them go or has ended",
    "apart": "the job that reads for this one was at another place of the epoch",
    "again": "a worker that was killed had taken them",
    "damaged": "the bytes in memory were not those that were read",
}


class _From(NamedTuple):
    """Where samples came from. `tier`: of a hit in this machine's memory, "" of others."""

    name: str
    tier: str
    samples: int
    nbytes: int


def _places(report: FeedFacts) -> list[_From]:
    served, hits = report.all_epochs.served, "hits: in memory for an earlier read"
    by_tier = [_From(hits, report.tiers.get(place, ""), *count) for place, count in sorted(served.by_place.items())]
    return [
        *(by_tier or [_From(hits, "", 0, 0)]),
        _From("hits in the memory of peers", "", served.remote_hits, served.remote_bytes),
        _From("source: brought by a read of their chunk", "", served.brought, served.brought_bytes),
        _From("source: read alone", "", served.direct_reads, served.alone_bytes),
    ]


def _requests_frame(report: FeedFacts) -> pd.DataFrame:
    import pandas as pd

    rows = _places(report)
    return pd.DataFrame(
        {
            "from": [row.name for row in rows],
            "tier": pd.array([row.tier or None for row in rows], "string"),
            "samples": [row.samples for row in rows],
            "nbytes": [row.nbytes for row in rows],
        }
    )


def _requests_text(document: Document[FeedFacts]) -> TextTable:
    fed = document.facts.all_epochs
    rows: Rows = [("", "samples", "", "bytes")]
    for row in _places(document.facts):
        share = row.samples / max(fed.served.samples, 1)
        name = f"{row.name} ({row.tier})" if row.tier else row.name
        rows.append((name, f"{row.samples:,}", f"{share:.1%}", format_bytes(row.nbytes)))
    rows.append(("all samples requested", f"{fed.requested:,}", "", format_bytes(fed.requested_bytes)))
    return TextTable(_REQUESTS, rows)


def _columns(report: FeedFacts) -> dict[str, dict[str, float]]:
    """Column -> name -> count."""
    found = {"all_epochs": report.all_epochs.headline, "epoch": report.last.headline}
    if report.predicted is not None:
        predicted = report.predicted.headline
        unknown = {"wait_ns"} if predicted["read_ns"] else {"wait_ns", "read_ns"}
        found["predicted"] = {name: value for name, value in predicted.items() if name not in unknown}
    return found


def _counts_frame(report: FeedFacts) -> pd.DataFrame:
    import pandas as pd

    columns = _columns(report)
    names = list(columns["all_epochs"])
    values = {column: pd.array([counts.get(name) for name in names], "Float64") for column, counts in columns.items()}
    return pd.DataFrame({"name": names, **values})


def _counts_text(document: Document[FeedFacts]) -> TextTable:
    columns = _columns(document.facts)
    heads = {"all_epochs": "all epochs", "epoch": f"epoch {document.facts.number}", "predicted": "predicted for it"}
    rows: Rows = [("", *(heads[column] for column in columns))]
    for name in columns["all_epochs"]:
        cells = (_shown(name, counts[name]) if name in counts else "" for counts in columns.values())
        rows.append((name, *cells))
    return TextTable(_COUNTS, rows)


def _shown(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith("_ns"):
        return format_ns(value)
    if name.endswith(("_ratio", "_saved")):
        return f"{value:.1%}"
    return f"{value:.2f}" if name == "reads_per_chunk" else f"{value:,.0f}"


def _reasons(report: FeedFacts) -> dict[str, int]:
    """Why -> samples that were read alone."""
    served = report.all_epochs.served
    unplanned = {why: int(getattr(served, name)) for name, why in _WHY.items()}
    planned = "the plan has no room for them" if report.all_epochs.feed.n_chunks else "nothing is staged here"
    return {planned: served.direct_reads - sum(unplanned.values()), **unplanned}


def _direct_frame(report: FeedFacts) -> pd.DataFrame:
    import pandas as pd

    reasons = _reasons(report)
    return pd.DataFrame({"why": list(reasons), "samples": list(reasons.values())})


def _direct_text(document: Document[FeedFacts]) -> TextTable:
    rows: Rows = [(f"{samples:,}", why) for why, samples in _reasons(document.facts).items() if samples]
    return TextTable(_DIRECT, rows)


def _mixing_frame(report: FeedFacts) -> pd.DataFrame | None:
    import pandas as pd

    return None if report.mixing is None else pd.DataFrame([asdict(report.mixing)])


def _mixing_text(document: Document[FeedFacts]) -> TextTable:
    mixing = document.facts.mixing
    if mixing is None:
        return NO_TEXT
    rows: Rows = [
        ("distinct chunks in a batch", f"{mixing.chunks_per_batch:.0f}"),
        ("share of the epoch between the first and the last sample of a chunk", f"{mixing.span:.2f}"),
    ]
    return TextTable(_MIXING, rows)


def _nodes_frame(report: FeedFacts) -> pd.DataFrame | None:
    import pandas as pd

    if not report.node_pages:
        return None
    nodes = [node if node >= 0 else None for node in report.node_pages]
    return pd.DataFrame(
        {
            "node": pd.array(nodes, "Int64"),
            "nbytes": [PAGE_BYTES * pages for pages in report.node_pages.values()],
        }
    )


def _nodes_text(document: Document[FeedFacts]) -> TextTable:
    pages = document.facts.node_pages
    if not pages:
        return NO_TEXT
    rows: Rows = [
        (f"node {node}" if node >= 0 else "not touched yet", format_bytes(PAGE_BYTES * count))
        for node, count in pages.items()
    ]
    return TextTable(_NODES, rows)


FEED_SECTIONS: tuple[Section[FeedFacts], ...] = (
    Section(_REQUESTS, "requests", _requests_frame, _requests_text, text_as_pairs(_requests_text, _REQUESTS)),
    Section(_COUNTS, "counts", _counts_frame, _counts_text, text_as_pairs(_counts_text, _COUNTS)),
    Section(_DIRECT, "direct_reads", _direct_frame, _direct_text, text_as_pairs(_direct_text, _DIRECT)),
    Section(_MIXING, "mixing", _mixing_frame, _mixing_text, text_as_pairs(_mixing_text, _MIXING)),
    Section(_NODES, "nodes", _nodes_frame, _nodes_text, text_as_pairs(_nodes_text, _NODES)),
)
