"""Who looks on is told in order, until removed; one that raises costs a sentence, and a forked child tells nobody."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

import sentinel
from sentinel.runtime import RUNTIME, Observer, observing, tell, tell_of_layer


class Listed(Observer):
    """Lists what it is told; raises at layer `fails_at`."""

    def __init__(self, fails_at: int = -1) -> None:
        self.told: list[str] = []
        self._fails_at = fails_at

    def step_began(self) -> None:
        self.told.append("began")

    def layer_began(self, layer: int) -> None:
        if layer == self._fails_at:
            raise ValueError("no more")
        self.told.append(str(layer))

    def step_ended(self) -> None:
        self.told.append("ended")


class Sink:
    """Takes ticks."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def tick(self, name: str, phase: str, source: str) -> None:
        self.names.append(name)

    def step_boundary(self) -> None:
        pass


@pytest.fixture(autouse=True)
def nobody() -> Iterator[None]:
    assert RUNTIME.watches == []
    yield
    assert RUNTIME.watches == []


def test_a_step_begins_with_its_first_layer_and_ends_before_the_next() -> None:
    with sentinel.observe(listed := Listed()):
        for layer, ended in ((0, False), (1, True), (2, True), (0, True), (1, True), (1, False), (2, True)):
            tell_of_layer(layer, ended=ended)
    assert listed.told == ["began", "0", "1", "2", "ended", "began", "0", "1", "began", "1", "2"]


def test_what_an_observer_does_not_name_it_is_not_told() -> None:
    with sentinel.observe(listed := Listed()):
        tell(lambda each: each.session_started((), ()))
        tell(lambda each: each.session_ended())
    assert listed.told == []


def test_each_call_is_undone_by_itself() -> None:
    listed = Listed()
    first, second = sentinel.observe(listed), sentinel.observe(listed)
    tell_of_layer(1, ended=True)
    first.remove()
    first.remove()
    tell_of_layer(2, ended=True)
    second.remove()
    tell_of_layer(3, ended=True)
    assert listed.told == ["1", "1", "2"]


def test_one_that_comes_while_another_goes_stays() -> None:
    """As from another thread, or from a signal's handler: at each line of `remove`."""
    going, come = sentinel.observe(Listed()), []

    def at_each_line(frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and frame.f_code.co_filename == observing.__file__:
            sys.settrace(None)
            come.append(sentinel.observe(Listed()))
            sys.settrace(at_each_line)
        return at_each_line

    before = sys.gettrace()
    sys.settrace(at_each_line)
    try:
        going.remove()
    finally:
        sys.settrace(before)
    assert come
    assert RUNTIME.watches == come
    for watch in come:
        watch.remove()


def test_one_that_raises_is_told_no_more_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    failing, other = Listed(fails_at=1), Listed()
    with sentinel.observe(failing) as watch, sentinel.observe(other):
        for layer in (1, 2):
            tell_of_layer(layer, ended=True)
        assert RUNTIME.watches[0].observer is other
    assert isinstance(watch.raised, ValueError)
    assert (failing.told, other.told) == ([], ["1", "2"])
    said = capsys.readouterr().err
    assert said == "sentinel: Listed gets no more calls in this session, training goes on: ValueError: no more\n"


def test_an_interrupt_is_not_held_back() -> None:
    class Interrupted(Observer):
        def step_ended(self) -> None:
            raise KeyboardInterrupt

    with sentinel.observe(Interrupted()) as watch, pytest.raises(KeyboardInterrupt):
        tell(lambda each: each.step_ended())
    assert watch.raised is None


def test_a_forked_child_has_no_session_no_memory_and_no_observer(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Sink()
    monkeypatch.setattr(RUNTIME, "sink", sink)
    monkeypatch.setattr(RUNTIME, "memory", object())

    class Held:
        left = False

        def forked(self) -> None:
            self.left = True

    held = Held()
    RUNTIME.not_inherited.add(held)
    with sentinel.observe(Listed()):
        child = os.fork()
        if not child:
            there = RUNTIME.sink is None and RUNTIME.memory is None and not RUNTIME.watches and held.left
            sentinel.add_layer("child")
            os._exit(0 if there and not sink.names else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(RUNTIME.watches) == 1
    assert RUNTIME.sink is sink
    assert not held.left
    sentinel.add_layer("parent")
    assert sink.names == ["parent"]
