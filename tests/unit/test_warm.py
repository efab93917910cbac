"""Programs in processes that have torch already: each finds what a new process would, and ends as one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

SAYS = """
import atexit, os, sys, threading
atexit.register(print, "at exit")
there = [name in sys.modules for name in ("sentinel", "torch")]
print(__name__, sys.argv, os.getcwd(), os.environ.get("WORD"), sys.path[0], *there)
threading.Thread(target=print, args=("a thread",)).start()
"""


def test_a_program_finds_its_own_words_folder_environment_and_main_module(tmp_path: Path) -> None:
    environment = {**os.environ, "WORD": "said", "PYTHONPATH": str(tmp_path / "elsewhere")}
    (tmp_path / "program.py").write_text(SAYS)
    for words, first in ((["program.py", "one"], str(tmp_path)), (["-m", "program", "one"], str(tmp_path))):
        done = warm.run([sys.executable, *words], cwd=tmp_path, env=environment)
        argv = [*words[:-1], "one"] if words[0] != "-m" else [str(tmp_path / "program.py"), "one"]
        assert done.stdout.splitlines() == [
            f"__main__ {argv} {tmp_path} said {first} False True",
            "a thread",
            "at exit",
        ]
        assert (done.stderr, done.returncode) == ("", 0)
    done = warm.run([sys.executable, "-c", "import sys; print(sys.argv, sys.path[:2])", "x"], env=environment)
    assert done.stdout == f"{['-c', 'x']} {['', str(tmp_path / 'elsewhere')]}\n"


def test_it_ends_as_it_would(tmp_path: Path) -> None:
    done = warm.run([sys.executable, "-c", "import sys; print(1, file=sys.stderr); sys.exit(7)"])
    assert (done.stdout, done.stderr, done.returncode) == ("", "1\n", 7)
    done = warm.run([sys.executable, "-c", "raise ValueError('of its own')"])
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("ValueError: of its own\n")
    done = warm.run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    assert done.returncode == -9
    with pytest.raises(subprocess.CalledProcessError):
        warm.run([sys.executable, "-c", "raise SystemExit(3)"], check=True)


def test_one_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    program = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    with pytest.raises(subprocess.TimeoutExpired):
        warm.run([sys.executable, "-c", program], timeout=5)
    pid = int((tmp_path / "pid").read_text())
    warm.run([sys.executable, "-c", ""])  # by now the server has been told of its end
    assert not Path(f"/proc/{pid}").exists()
