"""Files that `load` has to refuse, with a path and a remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sentinel.core.errors import FormatError
from sentinel.files import load


def refused(path: Path | str, content: bytes | str | dict[str, Any] | None = None) -> FormatError:
    """The error of loading `path`, after writing `content` there."""
    if content is not None:
        raw = json.dumps(content) if isinstance(content, dict) else content
        Path(path).write_bytes(raw.encode() if isinstance(raw, str) else raw)
    with pytest.raises(FormatError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert ";" in caught.value.rule, f"no remedy: {caught.value}"
    return caught.value
