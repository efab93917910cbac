"""Configuration: what the environment, or a file of this folder, says where no argument does."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentinel.core.errors import FormatError, UsageError
from sentinel.system.progress import say

PINS = ("keep_fast", "keep_slow", "smallest")
"""Tensors whose tier is fixed."""
WORDS = ("fast", "slow", "tracker", "policy", "machine", "plan", "rate_limit", "cap", "overlap_optimizer")
"""All else that a session is asked for."""
NAMES = (*WORDS, *PINS, "report")
"""Of the settings: the words of `start_profile`, and the path of the report."""

SWITCHES = ("overlap_optimizer",)
"""Settings that are on or off."""

_SWITCHED = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}

PREFIX = "SENTINEL_"
"""SENTINEL_FAST sets `fast`, and so on."""

FILES = (("sentinel.toml", ()), ("pyproject.toml", ("tool", "sentinel")))
"""File of this folder, and which of its tables has settings. The first one that has any counts alone."""

_MISSPELT = 0.85
"""A variable that is so like one of ours was meant to be it, as is one of the same letters. Others may have our prefix
and be no error: Kubernetes names variables after services."""


@dataclass(frozen=True)
class Setting:
    """`source`: the variable, or the file and its table."""

    value: str | int | bool
    source: str


def configuration(environment: Mapping[str, str] | None = None) -> dict[str, Setting]:
    """The settings by name; the environment wins over the file.

    Raises UsageError for a variable that is misspelt, FormatError for a file of ours that is not valid TOML, a name in
    it that is none of NAMES, and a value of another kind than the argument takes.
    """
    found = _in_file()
    for variable, value in (os.environ if environment is None else environment).items():
        name = variable.removeprefix(PREFIX).lower()
        if name == variable.lower() or not value:
            continue
        if name in NAMES:
            found[name] = Setting(_switched(variable, value) if name in SWITCHES else value, variable)
        elif meant := next((each for each in NAMES if sorted(each) == sorted(name)), "") or _nearest(name, _MISSPELT):
            raise UsageError(f"{variable} is not a setting", f"write {PREFIX}{meant.upper()}, or unset it")
    return found


def _in_file() -> dict[str, Setting]:
    for path, keys in FILES:
        table = _table(path, keys)
        if table:
            source = " ".join([path, *([f"[{'.'.join(keys)}]"] if keys else [])])
            for name, value in table.items():
                _check(source, name, value)
            return {name: Setting(_one(value), source) for name, value in table.items()}
    return {}


def _table(path: str, keys: tuple[str, ...]) -> dict[str, Any]:
    """Empty where there is none."""
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, ValueError) as error:
        if keys or not os.path.exists(path):  # somebody else's file, or none: this folder may be private
            return {}
        raise FormatError(path, "settings of Sentinel", f"cannot be read: {error}") from None
    import tomllib  # here, for it takes a while, and who asks for help needs none

    try:
        table: Any = tomllib.loads(text)
    except ValueError as error:
        if keys and not _may_have(text, keys):
            say(f"{path} is not valid TOML ({error}): its settings are ignored", wrong=True)
            return {}
        raise FormatError(path, "settings of Sentinel", f"cannot be read: {error}") from None
    for key in keys:
        table = table.get(key, {}) if isinstance(table, dict) else {}
    return table if isinstance(table, dict) else {}


def _may_have(text: str, keys: tuple[str, ...]) -> bool:
    """Whether a file that cannot be read names the table at `keys`, as a heading or with dots."""
    return re.search(r"\s*\.\s*".join(rf"[\"']?{re.escape(key)}[\"']?" for key in keys), text) is not None


def _switched(variable: str, value: str) -> bool:
    if value.lower() not in _SWITCHED:
        raise UsageError(f"{variable}={value!r} is neither on nor off", "write 1 or 0")
    return _SWITCHED[value.lower()]


def _check(source: str, name: str, value: object) -> None:
    if name not in NAMES:
        raise FormatError(source, name, f"is not a setting; {_nearest(name)} is the nearest one of {', '.join(NAMES)}")
    if name in SWITCHES:
        if not isinstance(value, bool):
            raise FormatError(source, name, f"{value!r} is a value of type {type(value).__name__}; write true or false")
        return
    amounts = ("fast", "cap", "smallest")
    kinds = (str, int) if name in amounts else (str,)
    if name in ("keep_fast", "keep_slow") and isinstance(value, list) and all(isinstance(x, str) for x in value):
        return
    if not isinstance(value, kinds) or isinstance(value, bool):
        remedy = 'write "20%", "8GiB" or bytes' if name in amounts else "write a text, in quotes"
        raise FormatError(source, name, f"{value!r} is a value of type {type(value).__name__}; {remedy}")


def _one(value: Any) -> str | int:
    """A list of patterns as the environment has it: with commas."""
    return ",".join(value) if isinstance(value, list) else value


def _nearest(name: str, least: float = 0.0) -> str:
    """The setting that is most like `name`; "" where none is so like it."""
    import difflib

    return next(iter(difflib.get_close_matches(name, NAMES, 1, least)), "")
