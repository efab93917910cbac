"""SavedReport: what the JSON form of a session's report says, read back."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentinel.core.errors import FormatError
from sentinel.files.disk import open_regular, read_exactly
from sentinel.files.documents import parse_json
from sentinel.reports.forms import FORMAT, VERSION

if TYPE_CHECKING:
    import pandas as pd

MAX_BYTES = 1 << 30


@dataclass(frozen=True)
class SavedReport:
    """`name`: of the file. `headline`: the figures. `columns`: table -> column -> one value a row, None unknown."""

    name: str
    headline: dict[str, Any]
    columns: dict[str, dict[str, list[Any]]]

    def table(self, name: str, texts: tuple[str, ...], numbers: tuple[str, ...]) -> pd.DataFrame:
        """Columns of a table, texts and then numbers; what is not there, or of another kind, is unknown."""
        import pandas as pd

        columns = self.columns.get(name, {})
        rows = max((len(values) for values in columns.values()), default=0)

        def column(wanted: str, kinds: tuple[type, ...]) -> list[Any]:
            values = columns.get(wanted) or [None] * rows
            return [
                value if isinstance(value, kinds) and not isinstance(value, bool) and _is_sound(value) else None
                for value in values
            ]

        found: dict[str, Any] = {wanted: pd.array(column(wanted, (str,)), "string") for wanted in texts}
        found |= {wanted: pd.array(column(wanted, (int, float)), "Float64") for wanted in numbers}
        return pd.DataFrame(found)


def _is_sound(value: Any) -> bool:
    """Whether it is no number, or one that tables of 64 bits hold."""
    return not isinstance(value, int | float) or abs(value) < 1 << 63


def load_report(path: str | os.PathLike[str]) -> SavedReport:
    """The report at `path`. Raises FormatError for what is not the JSON form of a session's report."""
    with open_regular(path, MAX_BYTES) as (file, nbytes):
        value = parse_json(path, read_exactly(file, nbytes, path), "file")
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        told = value.get("format") if isinstance(value, dict) else None
        what = f"is a {told}" if isinstance(told, str) else "is something else"
        raise FormatError(
            path,
            "format",
            f"{what[:60]}, and no report; write one with `sentinel run --report x.json` or `sentinel report`",
        )
    if value.get("version") != VERSION:
        raise FormatError(path, "version", f"is not {VERSION}; draw the report again with this Sentinel")
    headline, frames = value.get("headline"), value.get("frames")
    if not isinstance(headline, dict) or not isinstance(frames, dict):
        raise FormatError(path, "headline", "is missing, as in reports of training data; give reports of sessions")
    for name, columns in frames.items():
        lists = isinstance(columns, dict) and all(isinstance(values, list) for values in columns.values())
        if not lists or len({len(values) for values in columns.values()}) > 1:
            raise FormatError(path, f"frames.{name}"[:80], "is not a table; draw the report again")
    headline = {key: value if _is_sound(value) else None for key, value in headline.items()}
    return SavedReport(Path(path).name, headline, frames)
