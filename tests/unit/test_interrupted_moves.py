"""Ctrl-C at any point of a tick that moves blocks, or learns what became of them: the books are what the movers did."""

from __future__ import annotations

import ctypes
import errno
import re
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from sentinel import migration
from sentinel.core.uses import with_uses
from sentinel.migration.block_mover import BlockMover
from sentinel.migration.engine import Engine
from sentinel.migration.job_memory import JobMemory
from sentinel.migration.mover import NativeMover
from sentinel.migration.moves import Moves
from sentinel.system import progress
from sentinel.tiers.emulated import EmulatedTier
from tests.builders import MIB, make_profile, param, persistent_plan
from tests.unit.engine_builders import INSTANT, applied, emulated_machine

pytestmark = pytest.mark.needs("native")

# Both leave fast memory in layer 1, in one submission, and come back in layer 3.
PROFILE = make_profile([param("a", MIB, [0]), param("b", MIB, [0])], 4)
PLAN = persistent_plan(
    PROFILE, [0, 0], [(0, 0, 1, 1, 2), (1, 0, 1, 1, 2), (0, 1, 0, 3, 4), (1, 1, 0, 3, 4)], fast_bytes=2 * MIB
)
MACHINE = emulated_machine(2 * MIB, promote=INSTANT, demote=INSTANT)
OURS = Path(migration.__path__[0])
SUBMISSION = (Moves._submit.__code__, NativeMover.submit_all.__code__)
COLLECTION = tuple(
    call.__code__ for call in (BlockMover.collect, Moves.collect, Moves.forget, Moves._strike, NativeMover.results_from)
)


class Interrupter:
    """Raises a KeyboardInterrupt at the `at`-th point of a tick. A point is where a line of ours begins; in
    `by_bytecode` each bytecode is one."""

    def __init__(self, at: int, by_bytecode: tuple[CodeType, ...]) -> None:
        self._left, self._by_bytecode = at, by_bytecode

    def __call__(self, frame: FrameType, event: str, _: Any) -> Interrupter | None:
        if event == "call":
            if OURS not in Path(frame.f_code.co_filename).parents:
                return None  # callbacks of weak references come at any time, and swallow what they raise
            frame.f_trace_opcodes = frame.f_code in self._by_bytecode
            frame.f_trace_lines = not frame.f_trace_opcodes
        elif event in ("line", "opcode"):
            self._left -= 1
            if not self._left:
                raise KeyboardInterrupt
        return self


def came(interrupter: Interrupter, layer: int, *, refused: bool = False) -> bool:
    """Whether `interrupter` raised in the tick that begins `layer`; accounts and books are right either way.

    `refused`: there is no memory for the first submission, so that each block is submitted alone.
    """
    with applied(PLAN, PROFILE, MACHINE) as running:
        engine, mover = running.engine, running.engine._mover
        if refused:
            submit, answers = mover._submit_call, [-errno.ENOMEM]
            mover._submit_call = lambda *given: answers.pop() if answers else submit(*given)
        running.tick(*range(1, layer))
        running.let_land()
        before, interrupted = sys.gettrace(), False
        sys.settrace(interrupter)
        try:
            running.tick(layer)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            sys.settrace(before)
        # Python 3.12 and 3.13 go on handling what a handler handled that a trace function interrupts.
        ctypes.pythonapi.PyErr_SetHandledException(ctypes.py_object(None))
        engine._block_mover.finish()
        check(engine, mover)
        assert layer == 1 or engine._table.tier == [1, 1]
        running.tick(0)  # the step is cut short; blocks that have left are sent back
        running.step()
        engine.end_run()
        check(engine, mover)
        assert engine._table.tier == [0, 0]
        return interrupted


def check(engine: Engine, mover: NativeMover) -> None:
    """Nothing is under way, and each tier holds what the table says of its blocks."""
    held = mover.held()
    assert (engine._moves.all(), list(engine._moves.blocks)) == ([], [])
    assert mover.ended() == engine._moves._ended
    assert (mover.ended(), held.in_flight_bytes) == (mover.submitted(), 0)
    assert tuple(sum(nbytes) for nbytes in engine._table.bytes_in) == held.bytes_in[:2]


@pytest.mark.parametrize("refused", [False, True])
def test_where_a_submission_is_interrupted_what_was_submitted_is_booked(refused: bool) -> None:
    at = 1
    while came(Interrupter(at, () if refused else SUBMISSION), 1, refused=refused):
        at += 1
    assert at > 100, "points of such a tick are many"


def test_where_a_collection_is_interrupted_what_has_ended_is_noted() -> None:
    at = 1
    while came(Interrupter(at, COLLECTION), 2):
        at += 1
    assert at > 100, "points of such a tick are many"


def slowly_placed(blocks: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Engine, list[str]]:
    """An engine that is to start with so many blocks in slow memory, which each take 0.1 s to go there; what it said.
    As where the tier is a node, they are in fast memory before."""
    monkeypatch.setattr(EmulatedTier, "takes_unplanned_births", False)
    tensors = [param(str(number), MIB, [0]) for number in range(blocks)]
    profile, said = make_profile(tensors, 4), list[str]()
    plan = persistent_plan(profile, [1] * blocks, fast_bytes=blocks * MIB)
    machine = emulated_machine(blocks * MIB, promote=INSTANT, demote=10 * MIB)
    return Engine(with_uses(plan, profile), machine, JobMemory(lambda block: [], said.append)), said


def test_what_the_first_placing_had_not_begun_to_move_stays_when_an_interrupt_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, said = slowly_placed(31, monkeypatch)
    mover, wait = engine._mover, engine._mover.wait

    def interrupted(job: int) -> bool:
        mover.wait = wait  # type: ignore[method-assign]
        wait(job)
        raise KeyboardInterrupt

    mover.wait = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        engine.start()
    assert engine._moves.all(), "the interrupt came after all of it"
    engine.end_run()
    check(engine, mover)
    moved = engine._table.tier.count(1)
    engine.restore()
    assert engine._table.tier == [0] * 31
    counters = engine.end_run().counters
    assert 1 <= moved < 31
    assert (counters.done, counters.skipped) == (2 * moved, 31 - moved)
    assert (counters.failed, counters.partial, counters.steps, counters.migrated_bytes) == (0, 0, 0, 2 * moved * MIB)
    assert said == []


def test_a_first_placing_that_lasts_says_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(progress, "AGAIN_SECONDS", 0.05)
    engine, _ = slowly_placed(7, monkeypatch)
    engine.start()
    told = capsys.readouterr()
    engine.end_run()
    engine.restore()
    assert told.out == ""
    far = [float(each) for each in re.findall(r"placing tensors .* \((\S+) \w+ of 7.00 MiB\), \d s so far\n", told.err)]
    assert far == sorted(far)
    assert far[0] < far[-1] <= 7
