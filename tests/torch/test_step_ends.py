"""Where training steps end, by what optimizers step."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from sentinel.profiler.step_ends import LEAST_IN_A_ROW, StepEnds  # noqa: E402

pytestmark = pytest.mark.needs("torch")


class Job:
    """Optimizers by letter, of which some take steps; how often a step has ended after each of them."""

    def __init__(self) -> None:
        self.ended = 0
        self.ends = StepEnds(self._end)
        self._optimizers: dict[str, Any] = {}

    def _end(self) -> None:
        self.ended += 1

    def steps(self, letters: str) -> list[int]:
        return [self._step(letter) for letter in letters]

    def steps_elsewhere(self, letters: str) -> list[int]:
        """The same, by another thread."""
        told: list[int] = []
        thread = threading.Thread(target=lambda: told.extend(self.steps(letters)))
        thread.start()
        thread.join()
        return told

    def _step(self, letter: str) -> int:
        if letter not in self._optimizers:
            parameter = torch.nn.Parameter(torch.ones(2))
            parameter.grad = torch.ones(2)
            self._optimizers[letter] = torch.optim.SGD([parameter], lr=0.1)
        before = self.ended
        self._optimizers[letter].step()
        return self.ended - before


@pytest.fixture
def job() -> Iterator[Job]:
    found = Job()
    found.ends.watch()
    found.ends.watch()
    yield found
    found.ends.leave()


def test_one_optimizer_ends_each_step_from_the_second_on(job: Job) -> None:
    assert job.steps("aaaa") == [0, 1, 1, 1]


def test_two_that_take_turns_end_a_step_together(job: Job) -> None:
    assert job.steps("dgdgdgdg") == [0, 0, 0, 1, 0, 1, 0, 1]


def test_one_that_steps_more_often(job: Job) -> None:
    job.steps("ddgddg")  # the first two look like a step of their own
    assert job.steps("ddgddg") == [0, 1, 0, 0, 1, 0]


def test_a_hundred_optimizers_end_a_step_together(job: Job) -> None:
    letters = "".join(map(chr, range(1000, 1100)))
    assert [sum(job.steps(letters)) for _ in range(4)] == [0, 1, 1, 1]
    assert job.steps(letters)[-1] == 1


def test_another_order_is_found_anew(job: Job) -> None:
    assert job.steps("aaa") == [0, 1, 1]
    assert job.steps("bababa") == [0, 0, 0, 1, 0, 1]
    assert job.steps("bbb")[-1] == 1


def test_other_threads_and_what_comes_after_the_end_do_not_count(job: Job) -> None:
    job.steps("aa")
    thread = threading.Thread(target=job.steps, args=("aaaa",))
    thread.start()
    thread.join()
    assert job.ended == 1
    job.ends.leave()
    job.ends.leave()
    assert job.steps("aaa") == [0, 0, 0]
    job.ends.watch()
    assert job.steps("aaa") == [0, 1, 1]


def test_a_thread_that_trains_on_in_place_of_another_is_followed(job: Job) -> None:
    assert job.steps("aaa") == [0, 1, 1]
    told = job.steps_elsewhere("a" * (LEAST_IN_A_ROW + 3))
    assert told == [0] * LEAST_IN_A_ROW + [1, 1, 1]
    assert job.steps("a" * (LEAST_IN_A_ROW + 2)) == [0] * LEAST_IN_A_ROW + [1, 1]  # and back


def test_threads_that_train_side_by_side_do_not_take_turns_in_telling(job: Job) -> None:
    job.steps("dgdg")
    for _ in range(4 * LEAST_IN_A_ROW):
        assert job.steps_elsewhere("abc") == [0, 0, 0]
        assert job.steps("dg") == [0, 1]


def test_a_thread_that_begins_anew_after_the_end_is_the_one_that_trains(job: Job) -> None:
    job.steps("aa")
    job.ends.leave()
    job.ends.watch()
    assert job.steps_elsewhere("aaa") == [0, 1, 1]
