"""When a job has a new cycle of layers: told from ticks and optimizer steps alone, and never where it is disturbed."""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from sentinel.core import layer_cycle
from sentinel.core.layer_cycle import LONGEST, MOST_TICKS, ROUNDS, UNSEEN_ROUNDS, CycleChangeDetector, LayerCycle

STEP = "|"  # an optimizer steps


def cycle(written: str) -> LayerCycle:
    """A cycle of layers of one letter each."""
    boundaries = [i - n for n, i in enumerate(i for i, each in enumerate(written) if each == STEP)]
    return LayerCycle(tuple((each, "") for each in written if each != STEP), tuple(boundaries))


def follow(watch: CycleChangeDetector, rounds: Iterable[str]) -> tuple[int, LayerCycle] | None:
    """In which round there was a new cycle, and which."""
    for number, written in enumerate(rounds):
        for each in written:
            found = watch.boundary() if each == STEP else watch.hear((each, ""))
            if found is not None:
                return number, found
    return None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("abBAo|", "abcCBAo|"),  # unfrozen
        ("abcCBAo|", "abBAo|"),
        ("abBA|o", "abcCBA|o"),  # a layer is named after the optimizer's step
        ("abBAabBAo|", "abBAabBAabBAabBAo|"),  # gradients of four micro-batches in place of two
        ("abBAabBAo|", "abBAo|"),
        ("dD|gG|", "dD|dD|gG|"),  # a critic steps twice as often
        ("dD|gG|", "dD|dD|dD|dD|dD|gG|"),
        ("dD|gG|", "gG|"),
        ("abBA", "abcCBA"),  # no optimizer is known: the last layer tells
    ],
)
def test_another_cycle_for_good_is_found_and_begins_where_the_first_one_began(before: str, after: str) -> None:
    watch = CycleChangeDetector(cycle(before))
    assert follow(watch, [before] * 5) is None
    assert watch.seen
    found = follow(watch, [after] * 100)
    assert found is not None
    assert found[0] <= ROUNDS * 2
    assert found[1] == cycle(after)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("abBAo|", "abcCBAo|", r"after 21 optimizer steps .* \(7 layers a step, until then 5 layers; .* one is c\)"),
        ("abcd", "abd", r"after 21 steps .* \(3 layers a step, until then 4 layers; the first other one is d\)"),
        ("abABo|", "abAB|", r"5 layers; the last ones are missing\)"),
    ],
)
def test_what_is_other_is_told(before: str, after: str, says: str) -> None:
    watch = CycleChangeDetector(cycle(before))
    found = follow(watch, [before] * 5 + [after] * 20)
    assert found is not None
    assert re.search(says, watch.describe(found[1])), watch.describe(found[1])


def test_cycles_taking_turns_for_good_are_one_cycle() -> None:
    watch = CycleChangeDetector(cycle("abBAo|"))
    assert follow(watch, ["abBAo|"] * 5) is None
    found = follow(watch, ["baABo|", "abBAo|"] * 100)
    assert found is not None
    assert found[1] == cycle("baABo|abBAo|")


@pytest.mark.parametrize(
    "rounds",
    [
        ["abBAo|"] * 300,
        ["abBAo|", "abBAo|", "aAo|"] * 100,  # every third step leaves out a layer
        (["abBAo|"] * 9 + ["ababo", "abBAo|"]) * 30,  # a validation with gradients now and then
        (["abBAo|"] * 20 + ["aAo|"] * (ROUNDS - 1)) * 10,  # a while, and back
        (["abBAo|"] * 3 + ["abBAabBAo|"]) * 50,
    ],
)
def test_a_cycle_that_is_disturbed_stays(rounds: list[str]) -> None:
    """Negative control."""
    assert follow(CycleChangeDetector(cycle("abBAo|")), ["abBAo|", *rounds]) is None


def test_steps_that_are_never_twice_the_same_are_no_cycle() -> None:
    drawn = random.Random(3)
    rounds = ["".join(drawn.sample("abcdefgh", 8)) + "|" for _ in range(400)]
    assert follow(CycleChangeDetector(cycle("abcdefgh|")), rounds) is None


def test_a_round_of_many_like_optimizer_steps_is_not_taken_for_one_of_them() -> None:
    long = "dD|" * (LONGEST + 4) + "gG|"
    assert follow(CycleChangeDetector(cycle(long)), [long] * 40) is None


@pytest.mark.parametrize("rounds", ["aA|bB|aA|bB|", "aA|bB|cC|aA|bB|cC|", "aA|aA|bB|aA|aA|bB|"])
def test_two_rounds_that_were_profiled_as_one_step_are_the_cycle(rounds: str) -> None:
    assert follow(CycleChangeDetector(cycle(rounds)), [rounds] * 40) is None


class CountingDeque(deque[Any]):
    """Counts what is read of it, one after the other."""

    read = 0

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            CountingDeque.read += 1
            yield each


@pytest.mark.parametrize("written", ["{layers}{steps}", "{layers}{layers_and_steps}"])
def test_each_of_many_optimizers_in_a_step_costs_as_much_as_one_of_few(
    written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each parameter, which steps in backward or after it: for 1,000 it took 1.4 s of each step."""
    monkeypatch.setattr(layer_cycle, "deque", CountingDeque)
    read = []
    for optimizers in (50, 200):
        layers = [chr(ord("一") + n) for n in range(optimizers)]
        step = written.format(
            layers="".join(layers), steps=STEP * optimizers, layers_and_steps="".join(each + STEP for each in layers)
        )
        watch = CycleChangeDetector(cycle(step))
        assert follow(watch, [step] * 20) is None
        CountingDeque.read = 0
        assert follow(watch, [step] * 2) is None
        read.append(CountingDeque.read)
    assert read[1] <= 5 * read[0]


def test_a_profiled_step_that_no_other_is_like_gives_way_soon() -> None:
    """Cut short before its optimizer stepped, or with a part of it twice."""
    for odd in ("ab", "ababBAo|"):
        found = follow(CycleChangeDetector(cycle(odd)), ["abBAo|"] * 20)
        assert found is not None
        assert found[0] <= UNSEEN_ROUNDS + 1
        assert found[1] == cycle("abBAo|")


def test_no_cycle_is_new_too_early() -> None:
    found = follow(CycleChangeDetector(cycle("abBAo|"), earliest=100), ["abBAo|"] + ["aAo|"] * 200)
    assert found is not None
    assert found[0] == 99


def test_ticks_without_an_optimizer_step_are_followed_in_bounded_memory() -> None:
    watch = CycleChangeDetector(cycle("abBAo|"))
    assert follow(watch, ["ab" * MOST_TICKS]) is None
    assert len(watch._stretch) == MOST_TICKS
    assert follow(watch, ["|", *["abBAo|"] * 30]) is None
