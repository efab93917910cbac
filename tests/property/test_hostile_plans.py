"""A plan file that is well-formed and hostile is refused in words, or is a plan that a report can be drawn of."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sentinel.core.errors import FormatError
from sentinel.core.laws import check
from sentinel.core.uses import block_uses
from sentinel.files import load_plan
from sentinel.files.digests import canonical, checksum, format_of
from sentinel.files.documents import render
from sentinel.reports import ReportError, build_report
from tests.builders import make_profile, param, persistent_plan

Path_ = tuple[str | int, ...]

PROFILE = make_profile([param(f"t{i}", 5000 * (i + 1), [i % 4]) for i in range(5)], 4)
_BARE = persistent_plan(PROFILE, [0, 1, 0, 1, 0], [(0, 0, 1, 0, 2), (0, 1, 0, 2, 4)])
PLAN = dataclasses.replace(_BARE, uses=block_uses(_BARE, PROFILE))
SOUND = json.loads(render(PLAN))
GONE, TWICE = object(), object()
HOSTILE = [
    *(sign * (1 << bits) + more for bits in (0, 12, 31, 47, 63, 64, 200) for sign in (-1, 1) for more in (-1, 0, 1)),
    *(1e308, -0.0, 0.5, float("inf"), float("nan"), "", "t0", "\0", None, True, [], {}, [0] * 1000, [[]] * 7),
    *(GONE, TWICE),
]


def paths(value: Any, at: Path_ = ()) -> Iterator[Path_]:
    if at:
        yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*at, key))


def changed(body: Any, at: Path_, to: Any) -> None:
    for key in at[:-1]:
        body = body[key]
    if to is GONE:
        del body[at[-1]]
    elif to is not TWICE:
        body[at[-1]] = to
    elif isinstance(body, list):
        body.append(body[at[-1]])


changes = st.tuples(st.sampled_from(list(paths(SOUND["plan"]))), st.sampled_from(HOSTILE))


def _write(path: Path, body: Any) -> None:
    """With the checksum of what is written, where it can have one: so that it is no damage that is found."""
    told = {**SOUND, "plan": body}
    del told["checksum"]
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        told["checksum"] = checksum(format_of(PLAN), canonical(body), {})
    path.write_text(json.dumps(told))


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(changes)
def test_a_hostile_field_is_refused_or_does_no_harm(tmp_path: Path, change: tuple[Path_, Any]) -> None:
    body = copy.deepcopy(SOUND["plan"])
    changed(body, *change)
    _write(tmp_path / "plan.json", body)
    try:
        plan = load_plan(tmp_path / "plan.json")
    except FormatError as error:
        assert "plan.json" in str(error)
        return
    check(plan)
    try:
        build_report(profile=PROFILE, plan=plan).text()
    except ReportError as error:
        assert "do not belong together" in str(error)


def test_the_sound_file_is_read(tmp_path: Path) -> None:
    """Control: it is the change that is refused."""
    _write(tmp_path / "plan.json", SOUND["plan"])
    assert load_plan(tmp_path / "plan.json").blocks == PLAN.blocks
