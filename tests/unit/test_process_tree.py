"""Which processes belong to one, and what they took, from a `/proc` that is made and from the real one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType

from sentinel.system import process_tree
from sentinel.system.process_tree import Process, allowed, processes, ticks, tree
from tests.unit.made_proc import proc


def test_a_process_has_its_own_those_that_it_waited_for_and_all_below_it(tmp_path: Path) -> None:
    proc(tmp_path, 10, 1, (10, 5, 2, 1))
    proc(tmp_path, 30, 10, (100, 0, 0, 0))
    proc(tmp_path, 20, 10, (200, 0, 0, 0))
    proc(tmp_path, 7, 30, (1000, 0, 0, 0))  # numbers begin again
    proc(tmp_path, 11, 1, (10_000, 0, 0, 0))
    (tmp_path / "proc/12").mkdir()  # it ends as it is looked at
    (tmp_path / "proc/stat").write_text("cpu 1 2 3\n")
    found = processes(tmp_path)
    assert found[10] == Process(1, 18)
    assert tree(10, found) == [10, 20, 30, 7]
    assert ticks(10, found) == 1318
    assert (tree(12, found), ticks(12, found)) == ([], 0)
    assert processes(tmp_path / "none") == {}


def test_it_may_run_where_any_of_its_threads_may(tmp_path: Path) -> None:
    proc(tmp_path, 10, 1, (0, 0, 0, 0), "0")
    task = tmp_path / "proc/10/task/11"
    task.mkdir()
    (task / "status").write_text("Name:\tCpus_allowed_list:\t9\nCpus_allowed_list:\t2-3,8\nMems_allowed_list:\t0\n")
    assert allowed([10, 99], tmp_path) == {0, 2, 3, 8}


def test_this_process_is_found() -> None:
    found = processes()
    assert found[os.getpid()].parent == os.getppid()
    assert os.getpid() in tree(os.getpid(), found)
    assert os.sched_getaffinity(0) <= allowed([os.getpid()])


def test_an_interrupt_at_any_line_leaves_no_descriptor() -> None:
    read, lines = process_tree._read, set[int]()

    def at_a_new_line(frame: FrameType, event: str, _: object) -> object:
        if frame.f_code is not read.__code__:
            return None
        if event == "line" and frame.f_lineno not in lines:
            lines.add(frame.f_lineno)
            raise KeyboardInterrupt
        return at_a_new_line

    traced, before, interrupted = sys.gettrace(), len(os.listdir("/proc/self/fd")), True
    while interrupted:
        sys.settrace(at_a_new_line)
        try:
            interrupted = not read("/proc/1/stat")
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(traced)
        assert len(os.listdir("/proc/self/fd")) == before
    assert len(lines) > 2
