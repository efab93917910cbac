"""A process that ends with its parent, also where that is gone before it asks."""

from __future__ import annotations

import os
import select
import signal

import pytest

from sentinel.system.parent_end import end_with_parent
from tests.processes import LONGEST_S


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_whose_parent_is_gone_already_ends_at_once(number: signal.Signals) -> None:
    child = os.fork()
    if not child:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            end_with_parent(1 << 30, number)
        finally:
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -number


def test_whose_parent_is_killed_ends() -> None:
    reading, writing = os.pipe()
    parent = os.fork()
    if not parent:
        try:
            us = os.getpid()
            if not os.fork():
                signal.alarm(2 * int(LONGEST_S))  # at the latest
                end_with_parent(us, signal.SIGKILL)
                os.write(writing, b"1")
            signal.pause()
        finally:
            os._exit(7)
    os.close(writing)
    assert os.read(reading, 1) == b"1"
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert select.select([reading], [], [], LONGEST_S)[0]  # nobody is left who could write
    assert os.read(reading, 1) == b""
    os.close(reading)
