"""Attribution of any step: nothing is lost, nothing is counted twice, and the profile keeps its own rules."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.core import page_runs
from sentinel.core.attribution import attribute
from sentinel.core.lifetimes import Circle, Entity, entities
from sentinel.core.page_runs import pages_of_runs
from sentinel.core.page_touches import PageTouches
from sentinel.core.profile import Profile
from sentinel.core.trace import (
    BORN,
    FREED,
    PAGE_RUN_DTYPE,
    READ,
    SEEN_READ,
    SEEN_UNKNOWN,
    SEEN_WRITE,
    WRITE,
    Trace,
)
from sentinel.core.units import PAGE_BYTES
from tests import page_by_page
from tests.page_rows import by_page, runs_of_pages
from tests.traces import QUALITY, Tape, stretches, tapes


@given(tapes())
@settings(max_examples=150, deadline=None)
def test_any_step_is_attributed(tape: Tape) -> None:
    """One step for all that holds of each: to draw and attribute it takes longer than to look."""
    profile = attribute(tape.trace())  # checks the profile's own rules
    _every_access_is_attributed(tape, profile)
    _bytes_born_are_freed_or_alive(tape, profile)
    _what_lived_and_died_in_the_step_keeps_its_layers(tape, profile)
    _page_touches_are_attributed_or_counted_as_unknown(tape, profile)


def _every_access_is_attributed(tape: Tape, profile: Profile) -> None:
    seen = profile.accesses[profile.accesses["reads"] >= 0]
    for kind, count, nbytes in ((READ, "reads", "read_bytes"), (WRITE, "writes", "written_bytes")):
        rows = [row for row in tape.rows if row[0] == kind]
        assert int(seen[count].sum()) == len(rows)
        assert int(seen[nbytes].sum()) == sum(row[4] for row in rows)
    assert (seen["touched_bytes"] <= seen["read_bytes"] + seen["written_bytes"]).all()
    assert not any("operator accesses" in note for note in profile.notes)


def _bytes_born_are_freed_or_alive(tape: Tape, profile: Profile) -> None:
    """Each birth of the step is that of one tensor of the profile; tensors of before are one, or joined."""
    nbytes = [t.nbytes for t in tape.tensors]
    born = {row[2] for row in tape.rows if row[0] == BORN}
    freed = {row[2] for row in tape.rows if row[0] == FREED}
    alive_after = (set(range(len(nbytes))) - freed) | (born - freed)
    total = sum(nbytes)
    assert total == sum(nbytes[i] for i in freed) + sum(nbytes[i] for i in alive_after)
    joined = total - int(profile.tensors["nbytes"].sum())
    ended = [nbytes[i] for i in freed - born]
    begun = [nbytes[i] for i in born - freed]
    assert 0 <= joined <= min(sum(ended), sum(begun))
    names = set(profile.names)
    assert all(tape.tensors[i].name in names for i in born)


def _what_lived_and_died_in_the_step_keeps_its_layers(tape: Tape, profile: Profile) -> None:
    when: dict[int, dict[int, int]] = defaultdict(dict)
    for stretch, row in stretches(tape):
        if row[0] in (BORN, FREED):
            when[row[2]][row[0]] = stretch
    first = tape.rows[next(i for i, row in enumerate(tape.rows) if row[0] == 5)][1]
    for index, found in when.items():
        if len(found) == 2:
            row = profile.tensors[profile.names.index(tape.tensors[index].name)]
            assert row["start"] == (first + found[BORN]) % tape.n_layers
            assert row["stop"] - row["start"] == min(found[FREED] - found[BORN] + 1, tape.n_layers)


def _page_touches_are_attributed_or_counted_as_unknown(tape: Tape, profile: Profile) -> None:
    trace = tape.trace()
    if not len(trace.pages):
        assert (profile.accesses["pages_touched"] == -1).all()
        return
    unknown = [int(note.split()[0]) for note in profile.notes if "page touches belong" in note]
    known = profile.accesses["pages_touched"][profile.accesses["pages_touched"] > 0]  # -1: of pages told as another's
    assert int(known.sum()) + sum(unknown) == int(trace.pages["npages"].sum())


@given(tapes())
@settings(max_examples=100, deadline=None)
def test_each_touch_is_its_first_tenants_or_that_of_the_first_that_operators_used(tape: Tape) -> None:
    """Against a slow oracle that asks every page for its tenants, one by one."""
    trace = _crowded(tape.trace())
    found = entities(trace, Circle.of(trace))
    length = len(trace.layers)
    used = {(index, layer) for index in range(len(found)) for layer in range(length) if (index + layer) % 3 == 0}
    pages = PageTouches(trace, found, np.array(sorted(used), np.int64).reshape(-1, 2))
    told = [
        (part.layer, page, owner)
        for part in pages.owned()
        for of, places in by_page(part.runs)
        for page, owner in zip(places.tolist(), part.owner[of].tolist(), strict=True)
    ]
    touches = pages.summed()
    assert len(told) == touches.total == len(pages_of_runs(trace.pages))
    shared = passed_on = 0
    for layer, page, owner in told:
        tenants = sorted(_tenants(trace, found, layer, page))
        named = [tenant for tenant in tenants if (tenant[1], layer) in used]
        assert owner == (named or tenants or [(0, -1)])[0][1]
        if len(tenants) > 1:
            unclear = any(lives_on for _, _, lives_on in tenants[1:]) or owner != tenants[0][1]
            shared, passed_on = shared + unclear, passed_on + (not unclear)
    assert (touches.shared, touches.passed_on) == (shared, passed_on)


def _crowded(trace: Trace) -> Trace:
    """The same with all tensors, each of which had 64 pages to itself, on the pages of three."""
    pages = pages_of_runs(trace.pages)
    pages["page"] = (1 + pages["page"] // 64 % 3) * 64 + pages["page"] % 64
    pages = runs_of_pages(pages)
    tensors = [
        replace(tensor, address=PAGE_BYTES * 64 * (1 + tensor.address // PAGE_BYTES // 64 % 3))
        for tensor in trace.tensors
    ]
    return replace(trace, tensors=tuple(tensors), pages=pages)


def _tenants(trace: Trace, found: list[Entity], layer: int, page: int) -> list[tuple[int, int, bool]]:
    """When each came there in the layer (-1: before it), which it is, and whether it outlives the layer."""
    tenants = []
    for index, entity in enumerate(found):
        for member in entity.members:
            first = trace.tensors[member].address // PAGE_BYTES
            stop = -(-(trace.tensors[member].address + trace.tensors[member].nbytes) // PAGE_BYTES)
            for at in range(entity.start, entity.stop):
                if trace.tensors[member].address and at % len(trace.layers) == layer and first <= page < stop:
                    came = entity.born if at == entity.start else -1
                    tenants.append((came, index, entity.stop - entity.start > 1))
    return tenants


@given(tapes(), st.data())
@settings(max_examples=50, deadline=None)
def test_where_the_recording_began_does_not_matter(tape: Tape, data: st.DataObject) -> None:
    """Steps in which nothing crosses the ends: turning the recording by some layers gives the same profile."""
    n = tape.n_layers
    plain, turned = Tape(n, 0), Tape(n, data.draw(st.integers(0, n - 1)))
    weight = plain.before("w", 640), turned.before("w", 640)
    births = data.draw(st.lists(st.integers(1, 9), min_size=n, max_size=n))
    for on, index in ((plain, weight[0]), (turned, weight[1])):
        for _ in range(n):
            for k in range(births[on.layer]):
                tensor = on.born(f"{on.layer}.{k}", 64 * (k + 1))
                on.read(index, 10 * k)
                on.write(tensor)
                on.freed(tensor)
            on.tick()
    one, other = attribute(plain.trace()), attribute(turned.trace())
    order = np.argsort(one.names), np.argsort(other.names)
    assert sorted(one.names) == sorted(other.names)
    assert np.array_equal(one.tensors[order[0]], other.tensors[order[1]])
    assert one.accesses["read_bytes"].sum() == other.accesses["read_bytes"].sum()


@st.composite
def watched(draw: st.DrawFn) -> Trace:
    """Any step with a large table, runs of touched pages on it and around it, and tensors that share pages or not."""
    tape = draw(tapes())
    base = 64 * (len(tape.tensors) + 2)
    n_pages = draw(st.integers(1, 300))
    tape.before("table", n_pages * PAGE_BYTES - draw(st.integers(0, 99)), address=base * PAGE_BYTES)
    seen = st.sampled_from([SEEN_READ, SEEN_WRITE, SEEN_READ | SEEN_WRITE, SEEN_UNKNOWN])
    run = st.tuples(st.integers(0, base + n_pages), st.integers(1, 200), st.integers(0, tape.n_layers - 1), seen)
    runs = np.array(draw(st.lists(run, max_size=12)), PAGE_RUN_DTYPE)
    quality = replace(QUALITY, counts=draw(st.sampled_from(["touched layers", "samples"])))
    small, large = (PAGE_BYTES * draw(st.sampled_from(pages)) for pages in ([1, 16], [0, 32]))
    quality = replace(quality, granularity_bytes=small, large_granularity_bytes=large)
    trace = tape.trace(quality=quality)
    trace = _crowded(trace) if draw(st.booleans()) else trace
    pages = np.concatenate([trace.pages, runs])
    return replace(trace, pages=pages[draw(st.permutations(range(len(pages))))] if len(pages) else pages)


@given(watched(), st.sampled_from([1, 2, 7, 1 << 18]))
@settings(max_examples=100, deadline=None)
def test_runs_say_what_single_pages_say(trace: Trace, chunk: int) -> None:
    """The profile of a step is, to the byte, that of a slow oracle that looks at each page by itself."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(page_runs, "CHUNK_RUNS", chunk)
        found = attribute(trace)
    expected = page_by_page.attribute(trace) if len(trace.pages) else found
    for name in ("layer_ns", "tensors", "extents", "accesses"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    assert found.notes == expected.notes
    assert found.step_ns_plain == expected.step_ns_plain
