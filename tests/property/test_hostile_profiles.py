"""A profile or trace file that is well-formed and hostile is refused in words, or is read, planned and reported."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sentinel import planner
from sentinel.core.attribution import attribute
from sentinel.core.errors import FormatError, SentinelError
from sentinel.core.extents import RANGE_DTYPE, cut_extents
from sentinel.core.laws import check
from sentinel.core.profile import Profile
from sentinel.core.trace import (
    BORN,
    EVENT_DTYPE,
    FREED,
    OP,
    PAGE_RUN_DTYPE,
    READ,
    TICK,
    WRITE,
    Quality,
    TensorInfo,
    Trace,
)
from sentinel.files import digest, load, load_profile, load_trace, save
from sentinel.files.codec import encode
from sentinel.files.digests import Noun, canonical, checksum, columns_of, format_of
from sentinel.files.formats import Format
from sentinel.reports import build_report
from sentinel.simulator import simulate
from tests.builders import act, make_machine, make_profile, param, profile_of_version_2
from tests.property.test_hostile_plans import GONE, HOSTILE, TWICE, changed, paths

ROOM_BYTES = 4 << 30
"""More address space than this is more than a file of some kilobytes may take."""
# The same ones in each run: what one finds is a matter of the code, not of the run.
many = settings(
    max_examples=75,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
Columns = dict[str, NDArray[Any]]


RANGES = np.array([(0, 0, 0, 5, 3, 1), (0, 0, 7, 9, 2, -1), (2, 2, 1, 20, 11, 0)], RANGE_DTYPE)


def _whole() -> Profile:
    found = make_profile(
        [
            *(param(f"t{i}", 50_000 * (i + 1), [i % 4]) for i in range(3)),
            act("a", 9000, 1, 3, [2]),
            act("b", 70, 3, 6, [0]),
        ],
        4,
    )
    return dataclasses.replace(found, origin={"host": "x"}, notes=("said",))


def _trace() -> Trace:
    profile = WHOLE
    infos = (
        TensorInfo("w", "param", 8192, 1 << 30),
        TensorInfo("x", "activation", 5000, 1 << 31, (0, 0), ("y",)),
    )
    events = [
        (BORN, 0, 1, -1, 5000, 0, 5),
        (OP, 0, -1, 0, 700, 0, 6),
        (READ, 0, 0, 0, 8192, 0, 7),
        (WRITE, 0, 1, 0, 5000, 0, 7),
        (TICK, 0, -1, -1, 0, 0, 10),
        (READ, 1, 1, 0, 300, 50, 15),
        (FREED, 1, 1, -1, 5000, 0, 17),
        (TICK, 1, -1, -1, 0, 0, 20),
    ]
    pages = np.array([((1 << 30) // 4096, 2, 0, 1), ((1 << 31) // 4096, 2, 1, 3)], PAGE_RUN_DTYPE)
    times = np.array([10, 10], np.int64)
    return Trace(
        profile.layers[:2], times, infos, ("add",), np.array(events, EVENT_DTYPE), Quality("ops", "pages"), pages
    )


WHOLE = _whole()
PROFILE, TRACE = cut_extents(WHOLE, RANGES), _trace()
EARLIER = profile_of_version_2(WHOLE, RANGES)
MACHINE = make_machine(128 << 10, slow_bytes=1 << 32)


@st.composite
def _hostile_files(draw: st.DrawFn, form: Format, header: dict[str, Any], columns: Columns) -> bytes:
    """A file with something in its header, columns or index changed, and the checksum of what it says."""
    columns = {name: np.array(column) for name, column in columns.items()}
    where = draw(st.sampled_from(["header", "cells", "rows", "index"]))
    if where == "header":
        header = copy.deepcopy(header)
        changed(header, draw(st.sampled_from(list(paths(header)))), draw(st.sampled_from(HOSTILE)))
    elif where == "cells":
        for _ in range(draw(st.integers(1, 2))):
            column = columns[draw(st.sampled_from(sorted(columns)))]
            kind = column.dtype
            limits = (0, 255) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
            fitting = [n for n in HOSTILE if type(n) is int and limits[0] <= n <= limits[1]]
            cells = column.view(np.uint8) if kind.kind == "b" else column
            cells[draw(st.integers(0, len(cells) - 1))] = draw(st.sampled_from([*fitting, *limits]))
    elif where == "rows":
        table = draw(st.sampled_from(sorted(form.tables)))
        times = draw(st.sampled_from([0, 2]))
        for name in columns:
            if name.split(".")[0] == table:
                columns[name] = np.repeat(columns[name], times)
    return _file(form, header, columns, index=draw(_edits) if where == "index" else None)


def _written(noun: Noun) -> tuple[Format, dict[str, Any], Columns]:
    form = format_of(noun)
    return form, encode(noun, leave_out=form.tables), columns_of(noun, form)


_edits = st.tuples(
    st.sampled_from(["shape", "data_offsets", "dtype"]),
    st.integers(0, 99),
    st.sampled_from([h for h in HOSTILE if h is not TWICE]),
)


def _file(form: Format, header: Any, columns: Columns, *, index: tuple[str, int, Any] | None = None) -> bytes:
    described = {"format": form.name, "version": form.version, "header": header, "written_by": "a stranger"}
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        described["checksum"] = checksum(form, canonical(header), columns)
    whole = {name: np.ascontiguousarray(column) for name, column in columns.items()}
    data: bytes = safetensors.numpy.save(whole, {"sentinel": json.dumps(described)})
    if index is None:
        return data
    length = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8 : 8 + length])
    key, at, value = index
    entry = entries[sorted(set(entries) - {"__metadata__"})[at % (len(entries) - 1)]]
    if value is GONE:
        del entry[key]
    elif isinstance(entry[key], list) and isinstance(value, int):
        entry[key][-1] = value
    else:
        entry[key] = value
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


@pytest.fixture(autouse=True, scope="module")
def _little_memory() -> Iterator[None]:
    """What asks for much more memory than the file has bytes gets a MemoryError, which is no FormatError."""
    had = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM_BYTES, had[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, had)


def _told_well(error: FormatError, name: str) -> None:
    assert name in str(error)
    assert error.field
    assert ";" in error.rule, "a remedy is missing"


@pytest.mark.slow
@many
@given(data=_hostile_files(*_written(PROFILE)) | _hostile_files(*EARLIER))
def test_a_hostile_profile_is_refused_or_does_no_harm(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "p.safetensors").write_bytes(data)
    try:
        profile = load_profile(tmp_path / "p.safetensors")
    except FormatError as error:
        _told_well(error, "p.safetensors")
        return
    _kept(profile, tmp_path)
    if planner.footprint_bytes(profile) > sum(tier.capacity_bytes for tier in MACHINE.tiers):
        return  # planning takes memory by the page
    try:
        plan = planner.plan(profile, MACHINE)
        check(plan)
        run = simulate(plan, profile, MACHINE, steps=3)
        assert build_report(profile=profile, plan=plan, simulated=run).text()
    except SentinelError as error:
        assert str(error)


@many
@given(data=_hostile_files(*_written(TRACE)))
def test_a_hostile_trace_is_refused_or_does_no_harm(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "t.safetensors").write_bytes(data)
    try:
        trace = load_trace(tmp_path / "t.safetensors")
    except FormatError as error:
        _told_well(error, "t.safetensors")
        return
    _kept(trace, tmp_path)
    with contextlib.suppress(SentinelError):
        attribute(trace)


def _kept(noun: Noun, folder: Path) -> None:
    """What was read is what is written again."""
    save(noun, folder / "again")
    assert digest(load(folder / "again")) == digest(noun)


def test_the_sound_files_are_read_planned_and_reported(tmp_path: Path) -> None:
    """Control: it is the change that is refused."""
    for noun in (PROFILE, TRACE):
        (tmp_path / "sound").write_bytes(_file(*_written(noun)))
        assert digest(load(tmp_path / "sound")) == digest(noun)
    (tmp_path / "earlier").write_bytes(_file(*EARLIER))
    assert digest(load(tmp_path / "earlier")) == digest(PROFILE)
    plan = planner.plan(PROFILE, MACHINE)
    assert build_report(profile=PROFILE, plan=plan, simulated=simulate(plan, PROFILE, MACHINE, steps=3)).text()
    assert attribute(TRACE).n_layers == 2
