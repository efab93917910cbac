"""What tensors would have shared under stock allocation: a table by layer, and a few rows for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sentinel.core.false_sharing import FalseSharing
from sentinel.core.trace import LayerId
from sentinel.core.units import format_bytes

if TYPE_CHECKING:
    import pandas as pd

TITLE = "Page-level false sharing, had malloc placed the tensors"


def by_layer(sharing: FalseSharing, layers: Sequence[LayerId]) -> pd.DataFrame:
    """One row a layer: its falsely shared pages, and the bytes on them of tensors that the layer does not use."""
    import pandas as pd

    from sentinel.reports.frames import whole, words

    return pd.DataFrame(
        {
            "layer": whole(range(len(layers))),
            "name": words(str(layer) for layer in layers),
            "pages": whole(sharing.layer_pages),
            "cold_bytes": whole(sharing.layer_cold_bytes),
        }
    )


def rows(sharing: FalseSharing, layers: Sequence[LayerId]) -> list[tuple[str, str, str]]:
    """(what, value, remark)."""
    pages, cold = sharing.layer_pages, sharing.layer_cold_bytes
    most, coldest = max(range(len(pages)), key=pages.__getitem__), max(range(len(cold)), key=cold.__getitem__)
    found = [
        (
            "pages with tensors of unlike hotness",
            f"{format_bytes(sharing.nbytes)}, {_pages(sharing.pages)}",
            "in some layer one tensor on the page is used, another lives on unused",
        )
    ]
    if sharing.pages:
        found += [
            ("most in one layer", _pages(pages[most]), _named(most, layers)),
            ("cold bytes in hot pages, at most", format_bytes(cold[coldest]), _named(coldest, layers)),
        ]
    return [*found, ("tensors placed", f"{sharing.tensors:,}", sharing.how)]


def _pages(count: int) -> str:
    return f"{count:,} page" if count == 1 else f"{count:,} pages"


def _named(layer: int, layers: Sequence[LayerId]) -> str:
    return f"layer {layer} · {layers[layer]}"
