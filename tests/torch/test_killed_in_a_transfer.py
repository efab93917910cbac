"""A session that is killed, interrupted or replaced within a transfer, and two in one directory: no file is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from tests import warm
from tests.processes import started

pytestmark = [pytest.mark.needs("torch", "compiler", "native"), pytest.mark.slow]
ROOT = Path(__file__).parents[2]
HERE = {**os.environ, "PYTHONPATH": str(ROOT)}


def command_of(case: str, folder: Path, library: Path) -> list[str]:
    return [sys.executable, "-m", "tests.torch.unlucky_training", case, str(folder), str(library)]


def run(case: str, folder: Path, library: Path) -> subprocess.CompletedProcess[str]:
    return warm.run(command_of(case, folder, library), cwd=ROOT, env=HERE)


@pytest.mark.parametrize("case", ["plain", "with_a_name"])
def test_two_processes_share_a_directory(case: str, scratch: Path, unlucky_library: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT, "env": HERE}
    with ExitStack() as both:
        running = [both.enter_context(started(command_of(case, scratch, unlucky_library), **pipes)) for _ in range(2)]
        for each in running:
            assert each.stdout.readline() == "ready\n"
        assert not os.listdir(scratch)
        for each in running:
            each.stdin.write("\n")
            each.stdin.flush()
        for each in running:
            told = json.loads(each.communicate(timeout=600)[0])
            assert told["same"]
            assert told["written"] > 0


def test_a_process_that_is_killed_as_it_writes_leaves_no_file(scratch: Path, unlucky_library: Path) -> None:
    done = run("killed", scratch, unlucky_library)
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_a_name_that_a_killed_process_has_left_is_taken_away_by_the_next(scratch: Path, unlucky_library: Path) -> None:
    """On a file system that gives each file a name, for some microseconds."""
    done = run("killed_without_a_nameless_file", scratch, unlucky_library)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [name[:15] for name in os.listdir(scratch)] == [".sentinel-away-"]
    done = run("with_a_name", scratch, unlucky_library)
    assert json.loads(done.stdout.splitlines()[-1])["same"]


def test_ctrl_c_within_a_transfer_leaves_nothing(scratch: Path, unlucky_library: Path) -> None:
    done = run("interrupted", scratch, unlucky_library)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"came": True, "left": 0, "same": True}


def test_a_program_that_takes_the_place_of_a_session_has_nothing_of_it(scratch: Path, unlucky_library: Path) -> None:
    done = run("replaced", scratch, unlucky_library)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
