"""What tensors would have shared under stock allocation: a table by layer, and a few rows for people."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from sentinel.core.false_sharing import FalseSharing
from sentinel.core.trace import LayerId
from sentinel.core.units import counted, format_bytes
from sentinel.reports.facts import Facts
from sentinel.reports.frame_columns import whole, words
from sentinel.reports.html.tables import text_as_pairs
from sentinel.reports.section import NO_TEXT, Document, Section, TextTable

TITLE = "Page-level false sharing, if malloc placed the tensors"


def _frame(facts: Facts) -> pd.DataFrame | None:
    """One row a layer: its falsely shared pages, and the bytes on them of tensors that the layer does not use."""
    sharing = facts.profile.sharing if facts.profile else None
    if sharing is None:
        return None
    return pd.DataFrame(
        {
            "layer": whole(range(len(facts.layers))),
            "name": words(str(layer) for layer in facts.layers),
            "pages": whole(sharing.layer_pages),
            "cold_bytes": whole(sharing.layer_cold_bytes),
        }
    )


def _rows(sharing: FalseSharing, layers: Sequence[LayerId]) -> list[tuple[str, str, str]]:
    """(what, value, remark)."""
    pages, cold = sharing.layer_pages, sharing.layer_cold_bytes
    most, coldest = max(range(len(pages)), key=pages.__getitem__), max(range(len(cold)), key=cold.__getitem__)
    found = [
        (
            "pages with tensors of unlike hotness",
            f"{format_bytes(sharing.nbytes)}, {counted(sharing.pages, 'page')}",
            "in some layer one tensor on the page is used and another is not",
        )
    ]
    if sharing.pages:
        found += [
            ("most in one layer", counted(pages[most], "page"), _named(most, layers)),
            ("cold bytes in hot pages, at most", format_bytes(cold[coldest]), _named(coldest, layers)),
        ]
    return [*found, ("tensors placed", f"{sharing.tensors:,}", sharing.how)]


def _named(layer: int, layers: Sequence[LayerId]) -> str:
    return f"layer {layer} · {layers[layer]}"


def _text(report: Document[Facts]) -> TextTable:
    sharing = report.facts.profile.sharing if report.facts.profile else None
    return TextTable(TITLE, _rows(sharing, report.facts.layers)) if sharing is not None else NO_TEXT


FALSE_SHARING = Section[Facts](TITLE, "false_sharing", _frame, _text, text_as_pairs(_text, TITLE))
