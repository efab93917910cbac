"""Every noun survives save and load; a damaged file is a FormatError or still says the same."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sentinel.core.counters import Counters
from sentinel.core.errors import FormatError
from sentinel.core.machine import Link, Machine, TierSpec
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.run import (
    HELD_DTYPE,
    LAYER_DTYPE,
    MIGRATION_DTYPE,
    OUTCOMES,
    REASONS,
    STEP_DTYPE,
    MovedBy,
    Run,
    TrialDecision,
    Witnessed,
)
from sentinel.core.trace import EVENT_DTYPE, PAGE_RUN_DTYPE, ROLES, LayerId, Quality, TensorInfo, Trace
from sentinel.core.uses import block_uses
from sentinel.files import digest, load, save, with_origin
from tests.builders import make_profile, param, persistent_plan, profiles, ranged_profiles

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SHOWN = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=12)
"""Of a machine, whose texts are printed as they are."""
SCRATCH = settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def same(a: Any, b: Any) -> bool:
    """Whether two nouns say the same, tables compared byte for byte."""
    if type(a) is not type(b):
        return False
    for field in dataclasses.fields(a):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if isinstance(x, np.ndarray):
            if x.dtype != y.dtype or x.tobytes() != y.tobytes():
                return False
        elif x != y:
            return False
    return True


@st.composite
def described_machines(draw: st.DrawFn) -> Machine:
    speed = st.integers(1, 10**13)
    tiers = tuple(
        TierSpec(
            name=f"{i}:{draw(SHOWN)}",
            kind=draw(st.sampled_from(["node", "emulated", "file", "described"])),
            capacity_bytes=draw(st.integers(0, 1 << 50)),
            latency_ns=draw(st.floats(0, 1e9)),
            read_bytes_per_s=draw(speed),
            write_bytes_per_s=draw(speed),
            node=draw(st.none() | st.integers(0, 64)),
            addressable=i == 0 or draw(st.booleans()),
            measured=draw(st.booleans()),
            source=draw(SHOWN),
            loaded_latency_a=draw(st.floats(0, 10)),
        )
        for i in range(draw(st.integers(2, 4)))
    )
    pairs = [(0, i) for i in range(1, len(tiers))] + [(i, 0) for i in range(1, len(tiers))]
    most = {(s, t): min(tiers[s].read_bytes_per_s, tiers[t].write_bytes_per_s) for s, t in pairs}
    links = tuple(
        Link(
            *pair,
            draw(st.integers(1, rate)),
            draw(st.integers(0, 10**9)),
            draw(st.booleans()),
            *(draw(st.floats(0, 1e9) | st.just(0.0)) for _ in range(2)),
        )
        for pair, rate in most.items()
    )
    return Machine(draw(SHOWN), tiers, links, draw(st.none() | st.floats(1e6, 1e18)), draw(st.booleans()), draw(SHOWN))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Lawful plans of persistent tensors, one of them moving out and back once a step."""
    n = draw(st.integers(1, 6))
    length = draw(st.integers(2, 6))
    profile = make_profile(
        [param(f"{i}{draw(TEXTS)}", draw(st.integers(1, 20000)), [i % length]) for i in range(n)], length
    )
    tiers = [draw(st.integers(0, 1)) for _ in range(n)]
    half = length // 2
    moves = (
        [(0, tiers[0], 1 - tiers[0], 0, half), (0, 1 - tiers[0], tiers[0], half, length)] if draw(st.booleans()) else []
    )
    plan = persistent_plan(profile, tiers, moves)
    details = draw(st.dictionaries(TEXTS, JSON, max_size=3))
    predicted = draw(st.none() | st.integers(0, 1 << 50))
    return dataclasses.replace(plan, details=details, predicted_step_ns=predicted, uses=block_uses(plan, profile))


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    length, n = draw(st.integers(1, 4)), draw(st.integers(0, 4))
    infos = tuple(
        TensorInfo(
            f"{i}{draw(TEXTS)}",
            draw(st.sampled_from(ROLES)),
            draw(st.integers(0, 1 << 40)),
            draw(st.integers(0, 1 << 47)),
            draw(st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9))),
            tuple(draw(st.lists(TEXTS, max_size=2))),
            draw(st.booleans()),
            draw(TEXTS),
        )
        for i in range(n)
    )
    events = np.zeros(draw(st.integers(0, 5)) if n else 0, EVENT_DTYPE)
    for row in events:
        row["kind"], row["tensor"] = draw(st.integers(0, 3)), draw(st.integers(0, n - 1))
        row["layer"], row["nbytes"] = draw(st.integers(0, length - 1)), draw(st.integers(0, 1 << 40))
        row["op"] = draw(st.integers(-1, 0))
    pages = np.zeros(draw(st.integers(0, 3)), PAGE_RUN_DTYPE)
    for row in pages:
        row["page"], row["npages"] = draw(st.integers(0, 1 << 35)), draw(st.integers(1, 1 << 35))
        row["layer"], row["seen"] = draw(st.integers(0, length - 1)), draw(st.integers(0, 7))
    quality = Quality(draw(TEXTS), draw(TEXTS), blind_to=tuple(draw(st.lists(TEXTS, max_size=2))))
    layers = tuple(LayerId(draw(TEXTS), k, draw(st.sampled_from(["forward", ""]))) for k in range(length))
    times = np.array(draw(st.lists(st.integers(0, 1 << 60), min_size=length, max_size=length)), np.int64)
    return Trace(layers, times, infos, ("aten::add",), events, quality, pages)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    steps = np.zeros(draw(st.integers(0, 3)), STEP_DTYPE)
    layers = np.zeros(draw(st.integers(0, 5)), LAYER_DTYPE)
    moves = np.zeros(draw(st.integers(0, 5)), MIGRATION_DTYPE)
    for table in (steps, layers, moves):
        for row in table:
            for name in table.dtype.names or ():
                if name in ("source", "target", "outcome", "reason", "in_step"):
                    row[name] = draw(st.integers(0, 1))
                else:
                    row[name] = draw(st.integers(0, 1 << 20))
    moves["outcome"] %= len(OUTCOMES)
    moves["reason"] %= len(REASONS)
    names = st.sampled_from([f.name for f in dataclasses.fields(Counters) if f.name != "stayed"])
    counters = Counters(**draw(st.dictionaries(names, st.integers(0, 1 << 60), max_size=3)))
    counters.stayed = draw(st.dictionaries(TEXTS, st.integers(0, 1 << 60), max_size=3))
    events = tuple(draw(st.lists(st.tuples(st.integers(0, 99), TEXTS), max_size=2)))
    counts = [st.integers(0, 1 << 60)] * 4
    decisions = st.builds(TrialDecision, st.integers(0, 99), TEXTS, st.booleans(), st.booleans(), *counts)
    trials = tuple(draw(st.lists(st.tuples(st.integers(0, 99), decisions), max_size=2)))
    moved_by = st.builds(MovedBy, TEXTS, st.booleans(), st.integers(-1, 9), st.integers(0, 1 << 40))
    seen = st.builds(Witnessed, st.lists(moved_by, max_size=2).map(tuple), *[st.integers(0, 99)] * 3, st.booleans())
    tiers = ("fast", "middle", "slow")[: draw(st.integers(2, 3))]
    held = np.zeros(2 * len(layers) if len(tiers) == 3 else 0, HELD_DTYPE)
    held["tier"] = 1 + np.arange(len(held)) % 2
    held["nbytes"] = draw(st.integers(0, 1 << 60))
    return Run(
        "executed",
        draw(st.booleans()),
        tiers,
        1 << 30,
        steps,
        layers,
        moves,
        counters=counters,
        events=events,
        held=held,
        witnessed=draw(st.none() | seen),
        trials=trials,
    )


ANY_NOUN = st.one_of(described_machines(), profiles(), ranged_profiles(), plans(), traces(), runs())


@SCRATCH
@given(noun=ANY_NOUN)
def test_every_noun_survives_save_and_load(noun: Any, tmp_path: Path) -> None:
    save(noun, tmp_path / "noun")
    found = load(tmp_path / "noun")
    assert same(found, noun)
    assert digest(found) == digest(noun)
    assert [p.name for p in tmp_path.iterdir()] == ["noun"], "a temporary file was left"


@SCRATCH
@given(noun=ANY_NOUN)
def test_the_same_noun_gives_the_same_bytes(noun: Any, tmp_path: Path) -> None:
    save(noun, tmp_path / "one")
    save(load(tmp_path / "one"), tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@SCRATCH
@given(noun=st.one_of(profiles(), plans(), traces(), runs()), parent=plans())
def test_an_origin_is_kept_and_is_no_part_of_the_digest(noun: Any, parent: Plan, tmp_path: Path) -> None:
    child = with_origin(noun, plan=parent, host="a")
    assert digest(child) == digest(noun)
    save(child, tmp_path / "noun")
    origin = load(tmp_path / "noun").origin  # type: ignore[union-attr]
    assert origin == {"plan": digest(parent), "host": "a"}
    assert origin["plan"] != digest(dataclasses.replace(parent, policy=parent.policy + "'"))


@SCRATCH
@given(noun=ANY_NOUN, data=st.data())
def test_flipped_bytes_are_noticed(noun: Any, data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "noun"
    save(noun, path)
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw)
    try:
        found = load(path)
    except FormatError as error:
        told = error
    else:
        assert same(found, noun)  # nothing but `written_by` or white space was hit
        return
    assert told.path == str(path)
    assert told.field
    assert ";" in told.rule, "a remedy is missing"


@SCRATCH
@given(profile=profiles(), data=st.data())
def test_a_column_of_any_content_gives_a_sound_noun_or_an_error(
    profile: Profile, data: st.DataObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checksum guards against accidents only: here it is right, and the content is hostile."""
    table = data.draw(st.sampled_from(["tensors", "accesses"]))
    rows = getattr(profile, table).copy()
    if not len(rows):
        return
    name = data.draw(st.sampled_from(rows.dtype.names))
    kind = rows.dtype[name]
    limits = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
    rows[name][data.draw(st.integers(0, len(rows) - 1))] = data.draw(st.integers(*(int(x) for x in limits)))
    forged = object.__new__(Profile)
    for field in dataclasses.fields(Profile):
        object.__setattr__(forged, field.name, rows if field.name == table else getattr(profile, field.name))
    save(forged, tmp_path / "noun")
    try:
        found = load(tmp_path / "noun")
    except FormatError:
        return
    assert same(found, forged)
    assert isinstance(found, Profile)
    found.live_bytes_by_role()


def test_a_file_cut_short_anywhere_is_an_error(tmp_path: Path) -> None:
    profile = make_profile([param("w", 5000, [0, 1])], 2)
    for noun in (profile, persistent_plan(profile, [1])):
        save(noun, tmp_path / "whole")
        raw = (tmp_path / "whole").read_bytes()
        for length in range(len(raw) - 1):  # the last byte of a JSON file is its line's end
            (tmp_path / "cut").write_bytes(raw[:length])
            with pytest.raises(FormatError):
                load(tmp_path / "cut")
