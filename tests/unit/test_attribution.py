"""Lifetimes and accesses of steps whose answer is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentinel.core.attribution import attribute
from sentinel.core.errors import UsageError
from sentinel.core.extents import merge_extents
from sentinel.core.lifetimes import PREVIOUS
from sentinel.core.trace import PAGE_RUN_DTYPE, SEEN_READ, Quality
from sentinel.core.units import HUGE_PAGE_BYTES, PAGE_BYTES
from tests.traces import Tape


def row(profile, name):
    return profile.tensors[profile.names.index(name)]


def span(profile, name):
    found = row(profile, name)
    return int(found["start"]), int(found["stop"])


def arc(profile, name):
    found = row(profile, name)
    return int(found["born_event"]), int(found["died_event"])


def access(profile, name, layer):
    accesses = merge_extents(profile).accesses
    rows = accesses[(accesses["extent"] == profile.names.index(name)) & (accesses["layer"] == layer)]
    assert len(rows) <= 1
    return rows[0] if len(rows) else None


def touched_extents(profile, name):
    """(layer, first page, stop page, pages touched, pages written) of each extent of a tensor, by layer."""
    found = []
    for row in profile.accesses:
        tensor, offset, nbytes = profile.extents[row["extent"]].tolist()
        if profile.names[tensor] == name:
            pages = (offset // 4096, -(-(offset + nbytes) // 4096))
            found.append((int(row["layer"]), *pages, int(row["pages_touched"]), int(row["pages_written"])))
    return sorted(found)


def walk(n_layers, first=0, **events):
    """A tape with `events` called in stretch i, by name `at_i`."""
    tape = Tape(n_layers, first)
    for stretch in range(n_layers + 1):
        events.get(f"at_{stretch}", lambda tape: None)(tape)
        if stretch < n_layers:
            tape.tick()
    return tape


def test_nothing_happened():
    profile = attribute(walk(3).trace())
    assert (len(profile.names), len(profile.accesses), profile.n_events) == (0, 0, 1)
    assert (profile.live_peak_bytes, profile.unmanaged_peak_bytes) == (0, 0)


def test_what_is_not_one_round_of_the_ring_is_refused():
    tape = Tape(3)
    tape.tick()
    with pytest.raises(UsageError, match="1 ticks"):
        attribute(tape.trace())
    tape.tick()
    tape.layer = 0
    tape.tick()
    with pytest.raises(UsageError, match="not one round"):
        attribute(tape.trace())


def test_a_tensor_lives_from_the_layer_of_its_birth_to_that_of_its_death():
    tape = Tape(5)
    tape.tick()
    short = tape.born("short", 100)
    tape.freed(short)
    long = tape.born("long", 200)
    tape.tick()
    tape.tick()
    other = tape.born("other", 300)
    tape.freed(long)
    tape.freed(other)
    tape.tick()
    tape.tick()
    profile = attribute(tape.trace())
    assert (span(profile, "short"), span(profile, "long"), span(profile, "other")) == ((1, 2), (1, 4), (3, 4))
    assert profile.short_lived().tolist() == [True, False, True]
    assert (arc(profile, "short"), arc(profile, "long"), arc(profile, "other")) == ((0, 1), (1, 3), (2, 3))
    assert [tuple(profile.tensors[c].tolist()) for c in ("key_layer", "key_ordinal")] == [(1, 1, 3), (0, 1, 0)]
    assert profile.live_peak_bytes == 500


def test_what_was_there_before_and_after_is_persistent():
    tape = Tape(3)
    weight = tape.before("w", 4096)
    tape.born("x", 64)
    tape.tick()
    tape.read(weight)
    tape.tick()
    tape.tick()
    profile = attribute(tape.trace())
    found = row(profile, "w")
    assert found["persistent"]
    assert found["managed"]
    assert (span(profile, "w"), arc(profile, "w")) == ((0, 3), (0, 1))
    assert found["key_layer"] == found["key_ordinal"] == -1


def gradient_step(n_layers=4):
    """The gradient of before is freed in layer 1; this step's is born in layer 2."""
    tape = Tape(n_layers)
    old = tape.before("w.grad" + PREVIOUS, 512, "grad")
    tape.tick()
    tape.read(old)
    tape.freed(old)
    tape.tick()
    new = tape.born("w.grad", 512, "grad")
    tape.write(new)
    for _ in range(n_layers - 2):
        tape.tick()
    return tape


def test_a_gradient_dies_where_the_one_before_it_died():
    profile = attribute(gradient_step().trace())
    assert profile.names == ("w.grad",)
    assert span(profile, "w.grad") == (2, 6)  # through layers 2, 3, 0 and 1
    assert arc(profile, "w.grad") == (0, 1)
    assert access(profile, "w.grad", 1)["reads"] == 1
    assert access(profile, "w.grad", 2)["writes"] == 1
    assert not row(profile, "w.grad")["persistent"]


def test_survivors_without_a_like_live_a_whole_period():
    tape = Tape(3)
    tape.tick()
    tape.born("loss", 64)
    tape.tick()
    tape.tick()
    profile = attribute(tape.trace())
    assert (span(profile, "loss"), arc(profile, "loss")) == ((1, 4), (0, 1))
    assert row(profile, "loss")["managed"]


def test_unnamed_survivors_are_joined_by_size_in_the_order_of_their_lives():
    tape = Tape(4)
    first, second = tape.before("input#0", 640, "input"), tape.before("input#1", 640, "input")
    third = tape.before("input#2", 65, "input")
    tape.freed(third)
    tape.tick()
    tape.freed(second)
    tape.tick()
    tape.freed(first)
    tape.tick()
    tape.born("a", 640)
    tape.born("b", 640)
    tape.tick()
    profile = attribute(tape.trace())
    assert (span(profile, "a"), span(profile, "b")) == ((3, 6), (3, 7))
    # the one of another size stays by itself; nothing tells where it will be born
    assert span(profile, "input#2") == (0, 1)
    assert not row(profile, "input#2")["managed"]


def test_what_dies_after_its_like_is_born_lives_a_whole_period_at_most():
    """Double buffering: the next batch is made before the last one goes."""
    tape = Tape(2)
    old = tape.before("batch", 640, "input")
    tape.born("next", 640)
    tape.freed(old)
    tape.tick()
    tape.tick()
    profile = attribute(tape.trace())
    assert (span(profile, "next"), arc(profile, "next")) == ((0, 2), (0, 1))


def test_the_stretch_after_the_last_tick_belongs_to_layer_0():
    tape = Tape(3)
    head = tape.born("head", 10)
    tape.write(head)
    weight = tape.before("w", 4096)
    tape.read(weight, 100)
    for _ in range(3):
        tape.tick()
    tail = tape.born("tail", 20)
    tape.write(tail)
    tape.freed(tail)
    tape.read(weight, 100)
    tape.freed(head)
    profile = attribute(tape.trace())
    assert (span(profile, "tail"), span(profile, "head")) == ((0, 1), (0, 3))
    # births are counted from the start of layer 0: the tail's comes first
    assert (arc(profile, "tail"), arc(profile, "head")) == ((0, 1), (1, 2 + 1))
    shared = access(profile, "w", 0)
    assert (shared["reads"], shared["read_bytes"], shared["touched_bytes"]) == (2, 200, 100)


def test_a_recording_may_begin_anywhere_in_the_ring():
    shifted = Tape(4, first=1)
    old = shifted.before("z", 99, "input")
    a = shifted.born("a", 10)
    shifted.freed(old)
    shifted.tick()
    shifted.tick()
    shifted.freed(a)
    shifted.tick()
    shifted.born("z", 99)
    shifted.tick()
    profile = attribute(shifted.trace())
    assert (span(profile, "a"), span(profile, "z")) == ((1, 4), (0, 2))
    assert (arc(profile, "z"), arc(profile, "a")) == ((0, 2), (1, 2))


def test_distinct_bytes_are_the_union_of_the_operands():
    tape = Tape(1)
    x = tape.before("x", 1000)
    for offset, nbytes in ((0, 100), (50, 100), (500, 100), (520, 10), (990, 10)):
        tape.read(x, nbytes, offset)
    tape.write(x, 5, 0)
    tape.tick()
    found = access(attribute(tape.trace()), "x", 0)
    assert (found["touched_bytes"], found["read_bytes"], found["written_bytes"]) == (260, 320, 5)
    assert (found["reads"], found["writes"]) == (5, 1)
    assert found["pages_touched"] == found["pages_written"] == -1


def test_operations_are_summed_by_layer_and_unknown_ones_said_so():
    tape = Tape(4)
    tape.operator(7)
    tape.operator(-1)
    tape.tick()
    tape.operator(-1)
    tape.tick()
    tape.tick()
    tape.tick()
    tape.operator(6)
    assert attribute(tape.trace()).flops.tolist() == [13, -1, 0, 0]
    assert attribute(walk(2).trace()).flops.tolist() == [-1, -1]


def test_the_trackers_time_is_taken_off_where_it_was_spent():
    tape = Tape(2)
    for _ in range(3):
        tape.operator(1)
    tape.tick()
    tape.operator(1)
    tape.tick()
    quality = Quality(tracker="ops", counts="operator accesses", overhead_ns=400)
    profile = attribute(tape.trace(1000, quality))
    assert profile.layer_ns.tolist() == [700, 900]
    assert (profile.step_ns_profiled, profile.step_ns_plain, profile.step_ns_is_measured) == (2000, 1600, False)
    told = replace(quality, layer_overhead_ns=(100, 300))
    assert attribute(tape.trace(1000, told)).layer_ns.tolist() == [900, 700]
    measured = attribute(tape.trace(1000, quality), step_ns_plain=1500)
    assert (measured.step_ns_plain, measured.step_ns_is_measured) == (1500, True)


def test_optimizer_state_born_in_the_step_stays_and_makes_the_profile_provisional():
    tape = Tape(2)
    tape.tick()
    tape.born("w.exp_avg", 512, "optimizer")
    tape.tick()
    profile = attribute(tape.trace())
    assert profile.provisional
    assert row(profile, "w.exp_avg")["persistent"]
    assert not attribute(gradient_step().trace()).provisional


def test_accesses_of_no_known_tensor_are_counted():
    tape = Tape(1)
    tape._event(0 + 2, -1, 10)  # a READ of nothing
    tape.tick()
    assert "1 operator accesses" in attribute(tape.trace()).notes[0]


def test_unmanaged_bytes_are_shown_beside_the_managed_ones():
    tape = Tape(2)
    tape.before("numpy", 700, "input", managed=False)
    small = tape.born("small", 30, managed=False)
    tape.born("x", 5000)
    tape.freed(small)
    tape.tick()
    tape.tick()
    profile = attribute(tape.trace())
    assert (profile.live_peak_bytes, profile.unmanaged_peak_bytes) == (5000, 730)


class TestPages:
    def tape(self):
        """Two tensors of two pages, and a large one of 100."""
        tape = Tape(2)
        tape.before("a", 8192, address=4096 * 10)
        tape.before("b", 5000, address=4096 * 12)
        tape.before("large", 4096 * 100, address=4096 * 100)
        return tape

    def test_pages_are_their_tensors(self):
        tape = self.tape()
        for page, reads, writes in ((10, 1, 0), (11, 1, 1), (12, 0, 1), (99, 1, 0)):
            tape.touch(page, reads, writes)
        tape.read(0)
        tape.tick()
        tape.touch(12, -1, -1)
        tape.tick()
        profile = attribute(tape.trace())
        assert (access(profile, "a", 0)["pages_touched"], access(profile, "a", 0)["pages_written"]) == (2, 1)
        assert access(profile, "a", 0)["reads"] == 1
        only_pages = access(profile, "b", 0)  # no operator named it
        assert (only_pages["pages_touched"], only_pages["pages_written"], only_pages["reads"]) == (1, 1, -1)
        assert (only_pages["touched_bytes"], only_pages["written_bytes"], only_pages["read_bytes"]) == (4096, 4096, 0)
        assert access(profile, "b", 1)["pages_written"] == -1
        assert access(profile, "a", 1) is None
        assert "1 of 5 page touches" in profile.notes[0]

    def test_ranges_of_large_tensors_are_told_apart(self):
        """A hot head, a sprinkled middle and a cold tail, in two layers; the ranges are the same in both."""
        tape = self.tape()
        for page in (*range(100, 132), *range(133, 164, 4)):
            tape.touch(page)
        tape.tick()
        for page in range(100, 132):
            tape.touch(page, 0, page % 2)
        tape.tick()
        profile = attribute(tape.trace())
        assert touched_extents(profile, "large") == [(0, 0, 32, 32, 0), (0, 32, 64, 8, 0), (1, 0, 32, 32, 16)]
        assert profile.extents["offset"][profile.extents["tensor"] == profile.names.index("large")].tolist() == [
            0,
            32 * 4096,
            64 * 4096,
        ]
        assert access(profile, "large", 0)["pages_touched"] == 40

    def test_what_is_touched_evenly_is_not_cut(self):
        tape = self.tape()
        for page in range(100, 200, 3):
            tape.touch(page)
        tape.tick()
        for page in range(100, 200):
            tape.touch(page)
        tape.tick()
        assert not attribute(tape.trace()).is_cut

    def test_a_write_that_the_tracker_cannot_tell_is_unknown_in_its_range_only(self):
        tape = self.tape()
        for page in range(100, 132):
            tape.touch(page, -1, -1)
        tape.touch(190, 1, 1)
        tape.tick()
        tape.tick()
        assert touched_extents(attribute(tape.trace()), "large") == [(0, 0, 32, 32, -1), (0, 32, 100, 1, 1)]

    def granules(self, touched):
        """Of a table of granules, `touched` whole or not at all."""
        tape = Tape(1)
        tape.before("table", len(touched) * HUGE_PAGE_BYTES, address=HUGE_PAGE_BYTES)
        tape.tick()
        quality = Quality("ebpf", "touched layers", granularity_bytes=4096, large_granularity_bytes=HUGE_PAGE_BYTES)
        runs = np.zeros(int(touched.sum()), PAGE_RUN_DTYPE)
        runs["npages"], runs["seen"] = HUGE_PAGE_BYTES // PAGE_BYTES, SEEN_READ
        runs["page"] = (1 + np.flatnonzero(touched)) * runs["npages"]
        return attribute(replace(tape.trace(quality=quality), pages=runs))

    def test_a_granule_is_one_observation(self):
        even = [self.granules(np.random.default_rng(seed).random(4096) < 0.3) for seed in range(40)]
        assert sum(profile.is_cut for profile in even) <= 1, "taken for single pages, chance looks like structure"

    def test_granules_that_are_always_touched_are_told_from_those_that_seldom_are(self):
        chance = np.where(np.arange(4096) < 1024, 1.0, 0.1)
        profile = self.granules(np.random.default_rng(0).random(4096) < chance)
        assert profile.extents["offset"].tolist() == [0, 1024 * HUGE_PAGE_BYTES]

    def test_smaller_tensors_beside_them_are_watched_by_pages(self):
        tape = self.tape()
        for page in range(100, 132):
            tape.touch(page)
        tape.tick()
        tape.tick()
        quality = Quality("ebpf", "touched layers", granularity_bytes=4096, large_granularity_bytes=HUGE_PAGE_BYTES)
        assert touched_extents(attribute(tape.trace(quality=quality)), "large") == [(0, 0, 32, 32, 0)]

    def test_which_pages_were_touched_is_not_known_where_no_tracker_watches(self):
        tape = self.tape()
        outside = tape.before("outside", 8192, address=4096 * 500, managed=False)
        tape.read(outside)
        tape.read(0)
        tape.touch(12)
        tape.tick()
        tape.tick()
        profile = attribute(tape.trace())
        found = access(profile, "outside", 0)
        assert (found["reads"], found["pages_touched"], found["pages_written"]) == (1, -1, -1)
        assert access(profile, "a", 0)["pages_touched"] == 0

    @pytest.mark.parametrize(("lost", "counted"), [(0, 3 * 4096), (1, 100 * 4096)])
    def test_an_operator_that_spans_a_table_counts_for_the_pages_it_touched(self, lost, counted):
        tape = self.tape()
        for _ in range(2):
            tape.read(2)
        tape.write(2)
        tape.read(1, 100)
        for page, written in ((100, 0), (150, 1), (199, 1), (12, 0)):
            tape.touch(page, 1, written)
        tape.tick()
        tape.tick()
        quality = Quality("ebpf", "touched layers", lost=lost)
        found = access(attribute(tape.trace(quality=quality)), "large", 0)
        assert (found["reads"], found["writes"], found["touched_bytes"]) == (2, 1, counted)
        assert found["read_bytes"] == 2 * counted
        assert found["written_bytes"] == (2 * 4096 if not lost else counted)
        less_than_a_page = access(attribute(tape.trace(quality=quality)), "b", 0)
        assert (less_than_a_page["touched_bytes"], less_than_a_page["read_bytes"]) == (100, 100)

    def test_without_pages_an_operator_counts_for_what_it_spans(self):
        tape = self.tape()
        tape.read(2)
        tape.tick()
        tape.tick()
        assert access(attribute(tape.trace()), "large", 0)["read_bytes"] == 100 * 4096

    def test_tenants_of_one_address_are_told_by_their_layers_and_operators(self):
        tape = Tape(2)
        one = tape.born("one", 4096, address=4096 * 7)
        tape.freed(one)
        two = tape.born("two", 4096, address=4096 * 7)
        tape.read(two)
        tape.touch(7)
        tape.freed(two)
        tape.tick()
        three = tape.born("three", 4096, address=4096 * 7)
        tape.touch(7)
        tape.freed(three)
        tape.tick()
        profile = attribute(tape.trace())
        assert access(profile, "two", 0)["pages_touched"] == 1
        assert access(profile, "one", 0) is None
        assert access(profile, "three", 1)["pages_touched"] == 1
        assert "1 of 2 page touches could be" in profile.notes[0]

    def passed_on(self, ends_in_the_layer):
        """A page that was read, freed, and then written for a tensor that was born on it in the same layer."""
        tape = Tape(2)
        tape.before("first", 4096, address=4096 * 7)
        tape.read(0)
        tape.touch(7)
        tape.freed(0)
        second = tape.born("second", 4096, address=4096 * 7)
        tape.write(second)
        if ends_in_the_layer:
            tape.freed(second)
        tape.tick()
        if not ends_in_the_layer:
            tape.touch(7)
            tape.freed(second)
        tape.tick()
        return attribute(tape.trace())

    def test_a_touch_is_the_first_tenants_and_what_the_next_one_touched_is_not_known(self):
        profile = self.passed_on(ends_in_the_layer=True)
        assert access(profile, "first", 0)["pages_touched"] == 1
        second = access(profile, "second", 0)
        assert (second["pages_touched"], second["pages_written"], second["writes"]) == (-1, -1, 1)
        assert profile.notes[0].startswith("1 of 1 page touches were of pages that went on to tensors born and freed")

    def test_a_next_tenant_that_lives_on_is_told_as_one_whose_touches_may_be_missing(self):
        profile = self.passed_on(ends_in_the_layer=False)
        assert access(profile, "first", 0)["pages_touched"] == 1
        assert access(profile, "second", 0)["pages_touched"] == -1
        assert access(profile, "second", 1)["pages_touched"] == 1
        assert profile.notes == ("1 of 2 page touches could be of several tensors that shared a page in that layer",)


def test_names_that_occur_twice_are_told_apart():
    tape = Tape(1)
    tape.before("w", 10)
    tape.before("w", 20)
    tape.tick()
    profile = attribute(tape.trace())
    assert profile.names == ("w", "w~2")
    assert np.array_equal(profile.tensors["nbytes"], [10, 20])
