"""Code that a page of docs shows, in the size of a test, and what a user's shell would make of it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
Smaller = Sequence[tuple[str, str]]
"""What the page says, and what stands there for it in a test: sizes, folders, addresses."""


def shown(page: str, language: str, smaller: Smaller = ()) -> list[str]:
    """The blocks of that language, smaller."""
    text = (ROOT / "docs" / page).read_text()
    for large, small in smaller:
        assert large in text, f"docs/{page} does not say {large!r}"
        text = text.replace(large, small)
    return [block for each, block in _BLOCK.findall(text) if each == language]


def commands(page: str, smaller: Smaller = (), *, but: Sequence[str] = ()) -> list[list[str]]:
    """The words of each command; not those with a word in `but`."""
    lines = [line for block in shown(page, "", smaller) for line in block.splitlines() if line.startswith("sentinel ")]
    found = [shlex.split(line, comments=True) for line in lines]
    return [words for words in found if not set(words) & set(but)]


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Of a process in `folder`. `file:auto` takes a folder there also where the only disk is that of the root file
    system."""
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "SENTINEL_SCRATCH": str(folder / "scratch")}
    return {**os.environ, **own, **more}


def python(folder: Path, *words: str, before: Sequence[str] = (), **more: str) -> subprocess.CompletedProcess[str]:
    """Python with these words, in `folder`; it must succeed. `before`: a command that becomes it. `more`: variables."""
    done = subprocess.run(
        [*before, sys.executable, *words],
        cwd=folder,
        env=environment(folder, **more),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stderr}"
    return done
