"""What a plan means in time: core.schedule, the rings of layers under it, and the engine's agenda from it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sentinel.core.ragged import positions, ring_layers
from sentinel.core.schedule import schedule
from sentinel.core.uses import with_uses
from sentinel.migration.agenda import Agenda
from sentinel.migration.residents import Residents
from tests.builders import MIB, act, make_profile, param
from tests.unit.engine_builders import transient_plan

N_LAYERS = 7
PROFILE = make_profile(
    [param("weight", MIB, [1, 5]), act("within", MIB, 2, 5, [4]), act("across", MIB, 6, 9, [1])], N_LAYERS
)
WEIGHT, WITHIN, ACROSS = range(3)
# The weight is evicted at 2 and due in fast memory before 5; `across` is born in layer 6 and evicted at once.
PLAN = transient_plan(
    PROFILE, [0, 0, 0], [(WEIGHT, 0, 1, 2, 3), (WEIGHT, 1, 0, 3, 5), (ACROSS, 0, 1, 6, 8)], fast_bytes=3 * MIB
)


def test_each_move_birth_and_death_is_at_its_layer() -> None:
    found = schedule(PLAN)
    assert [index for rows in found.starts_at for index in rows] == [0, 1, 2]
    assert [layer for layer, rows in enumerate(found.starts_at) if rows] == [2, 3, 6]
    assert {layer: rows for layer, rows in enumerate(found.due_before) if rows} == {1: (2,), 3: (0,), 5: (1,)}
    assert {layer: rows for layer, rows in enumerate(found.born_at) if rows} == {2: (WITHIN,), 6: (ACROSS,)}
    assert {layer: rows for layer, rows in enumerate(found.dead_at) if rows} == {2: (ACROSS,), 5: (WITHIN,)}


def test_the_agenda_tells_directions_and_lives_apart() -> None:
    agenda = Agenda(with_uses(PLAN, PROFILE))
    assert (agenda.before_births[2], agenda.before_births[3], agenda.after_births[3]) == ([(0,)], [(1,)], [])
    assert (agenda.before_births[6], agenda.after_births[6]) == ([], [(2,)])  # of a block born in that very layer
    assert agenda.boundaries == [5]
    assert agenda.crossing == [(2,)]
    assert agenda.born_fast_bytes == [0, 0, MIB, 0, 0, 0, MIB]
    assert [layer for layer, busy in enumerate(agenda.busy) if busy] == [1, 2, 3, 5, 6]
    # Promoted before layer 5, the weight is used again in layer 1 and then evicted. `across` is due before layer 1 of
    # the next step and used in that layer only.
    assert agenda.used_later == [False, True, False]


def test_residents_are_those_alive_as_a_step_begins() -> None:
    residents = Residents(PLAN, (None, None), lambda block: [], None, None)  # type: ignore[arg-type]
    assert (residents.lasting, residents.passing, residents.wrapping) == ([WEIGHT], [WITHIN], [ACROSS])
    assert residents.wanted[WEIGHT] == 0


@given(st.lists(st.integers(0, 5), max_size=9))
def test_positions_count_within_each_row(counts: list[int]) -> None:
    assert positions(np.array(counts, np.int64)).tolist() == [n for count in counts for n in range(count)]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 14)), max_size=6), st.integers(1, 9))
def test_ring_layers_are_those_of_a_slow_walk(ranges: list[tuple[int, int]], length: int) -> None:
    start, stop = np.array(ranges, np.int64).reshape(-1, 2).T
    layers, which = ring_layers(start, stop, length)
    slow = [(layer % length, index) for index, (low, high) in enumerate(ranges) for layer in range(low, high)]
    assert list(zip(layers.tolist(), which.tolist(), strict=True)) == slow
