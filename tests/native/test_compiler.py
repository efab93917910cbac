"""Compiling once: one build for the same contents wherever they lie, and nothing left of a build that is cut short."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from sentinel.core.errors import CapabilityError
from sentinel.system import compiler, progress
from sentinel.system.compiler import Library, cache_folder, compile_into, compile_once, made_ahead
from tests.processes import LONGEST_S, until

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.needs("compiler")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(compiler.tempfile, "tempdir", None)
    compiler._version.cache_clear()
    return tmp_path / "cache" / "sentinel"


def _library(folder: Path, *, answer: int = 7, made_for: str = "") -> Library:
    (folder / "include").mkdir(parents=True, exist_ok=True)
    (folder / "include" / "answer.h").write_text(f"#define ANSWER {answer}\n")
    (folder / "answer.cpp").write_text('#include "answer.h"\nextern "C" int answer() { return ANSWER; }\n')
    return Library(
        "answer",
        (folder / "answer.cpp",),
        (folder / "include" / "answer.h",),
        ("-fPIC",),
        compile_paths=(f"-I{folder / 'include'}",),
        made_for=made_for,
    )


def _compiler_at(path: Path, body: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo "c++ (scripted) 1.0"; exit; fi\n{body}\n')
    path.chmod(0o700)
    return str(path)


def _real() -> str:
    return compiler._compiler("answer")


def test_the_same_contents_elsewhere_are_the_same_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = _real()
    monkeypatch.setenv("CXX", _compiler_at(tmp_path / "a" / "c++", f'exec {real} "$@"'))
    first = compile_once(_library(tmp_path / "one"))
    assert ctypes.CDLL(str(first)).answer() == 7
    monkeypatch.setenv("CXX", _compiler_at(tmp_path / "b" / "clang++", "exit 1"))  # it is not asked to compile
    assert compile_once(_library(tmp_path / "two")) == first


def test_other_contents_are_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = [compile_once(_library(tmp_path / "one"))]
    built.append(compile_once(_library(tmp_path / "one", answer=8)))
    built.append(compile_once(_library(tmp_path / "one", answer=8, made_for="other headers")))
    monkeypatch.setenv("CXX", _compiler_at(tmp_path / "bin" / "c++", f'exec {_real()} "$@"'))  # of another version
    built.append(compile_once(_library(tmp_path / "one", answer=8, made_for="other headers")))
    assert len(set(built)) == 4
    assert [ctypes.CDLL(str(path)).answer() for path in built] == [7, 8, 8, 8]


def test_what_an_installation_brings_is_taken_where_it_is_of_the_same_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "AHEAD", tmp_path / "ahead")
    assert made_ahead(_library(tmp_path / "one")) is None
    brought = compile_into(_library(tmp_path / "one"), tmp_path / "ahead")
    monkeypatch.setenv("CXX", "none")
    monkeypatch.setenv("PATH", str(tmp_path))  # no compiler
    assert made_ahead(_library(tmp_path / "two")) == brought
    assert ctypes.CDLL(str(brought)).answer() == 7
    assert made_ahead(_library(tmp_path / "one", made_for="other headers")) is None
    assert made_ahead(_library(tmp_path / "one", answer=8)) is None
    assert [path.name for path in (tmp_path / "ahead").iterdir()] == [brought.name]


def test_what_a_killed_build_left_is_swept(tmp_path: Path, cache: Path) -> None:
    library = _library(tmp_path / "one")
    left = cache / compiler._folder_name(library, _real()) / f"{compiler._SCRATCH}left"
    left.mkdir(parents=True)
    (left / "answer.o").write_text("half")
    built = compile_once(library)
    assert sorted(path.name for path in built.parent.iterdir()) == ["answer.so", "lock"]


BUILD_AT_ONCE = """
import sys
from pathlib import Path
from sentinel.system.compiler import Library, compile_once
print(compile_once(Library("answer", (Path(sys.argv[1]),), (), ("-fPIC",))))
"""


def test_two_processes_may_compile_at_once(tmp_path: Path, cache: Path) -> None:
    """The second waits for the first, of which the compiler waits until both have asked; it compiles nothing."""
    source, runs, go = tmp_path / "a.cpp", tmp_path / "runs", tmp_path / "go"
    source.write_text('extern "C" int answer() { return 7; }')
    slow = f'echo "$*" >> {runs}; until [ -e {go} ]; do sleep 0.01; done; exec {_real()} "$@"'
    environment = {**os.environ, "CXX": _compiler_at(tmp_path / "c++", slow), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", BUILD_AT_ONCE, str(source)]
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    until(lambda: all(_has_opened_a_lock(process.pid) for process in both))
    go.touch()
    built = {process.communicate(timeout=LONGEST_S)[0].strip() for process in both}
    assert built == set(map(str, cache.glob("answer-*/answer.so")))
    assert len(runs.read_text().splitlines()) == 2  # one compiles, one links


def _has_opened_a_lock(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError):  # what is closed meanwhile
        return any(os.readlink(each).endswith("/lock") for each in Path(f"/proc/{pid}/fd").iterdir())
    return False


STUCK = """echo $$ >> "$PIDS"; sleep 100000 & echo $! >> "$PIDS"; : > "$OUT.begun"; wait"""
BUILD = """
import sys
from pathlib import Path
from sentinel.system.compiler import Library, compile_once
try:
    compile_once(Library("answer", (Path(sys.argv[1]), Path(sys.argv[2])), (), ()))
except KeyboardInterrupt:
    sys.exit(42)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_build_that_is_cut_short_leaves_nothing_that_runs_nor_files(
    tmp_path: Path, cache: Path, number: signal.Signals
) -> None:
    sources = [tmp_path / "a.cpp", tmp_path / "b.cpp"]
    for source in sources:
        source.write_text("int f();")
    pids, begun = tmp_path / "pids", tmp_path / "out"
    environment = {
        **os.environ,
        "CXX": _compiler_at(tmp_path / "c++", STUCK),
        "PIDS": str(pids),
        "OUT": str(begun),
        "PYTHONPATH": str(ROOT),
    }
    building = subprocess.Popen([sys.executable, "-c", BUILD, *map(str, sources)], env=environment)
    until(lambda: pids.exists() and len(pids.read_text().split()) == 4)
    compilers = [int(pid) for pid in pids.read_text().split()]
    assert all(_runs(pid) for pid in compilers)
    building.send_signal(number)
    assert building.wait(LONGEST_S) == (42 if number == signal.SIGINT else -number)
    until(lambda: not any(_runs(pid) for pid in compilers))
    until(lambda: not list(cache.glob(f"*/{compiler._SCRATCH}*")))


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def test_a_full_cache_is_compiled_around(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    full = f'case "$*" in *{cache}*) echo "No space left on device" >&2; exit 1;; esac; exec {_real()} "$@"'
    monkeypatch.setenv("CXX", _compiler_at(tmp_path / "c++", full))
    built = compile_once(_library(tmp_path / "one"))
    assert cache not in built.parents
    assert ctypes.CDLL(str(built)).answer() == 7
    said = capfd.readouterr().err
    assert "for this process alone" in said
    assert "No space left on device" in said
    assert not list(cache.rglob("*.so"))


def test_where_nothing_can_be_written_the_remedy_names_both_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = 'echo "cc1plus: error: No space left on device" >&2; exit 1'
    monkeypatch.setenv("CXX", _compiler_at(tmp_path / "c++", full))
    with pytest.raises(CapabilityError, match="No space left") as caught:
        compile_once(_library(tmp_path / "one"))
    assert "XDG_CACHE_HOME" in caught.value.remedy
    assert "TMPDIR" in caught.value.remedy


def test_sources_that_do_not_compile_leave_no_scratch(tmp_path: Path, cache: Path) -> None:
    library = _library(tmp_path / "one")
    library.sources[0].write_text("int f() { return nothing; }")
    with pytest.raises(CapabilityError, match="nothing"):
        compile_once(library)
    assert [path.name for path in cache_folder().glob("*/*")] == ["lock"]


def test_the_folder_of_one_process_goes_with_it(tmp_path: Path) -> None:
    """And not with a child that it forks, which may well end first."""
    (tmp_path / "no").write_text("a file, and so no folder can be made in it")
    _library(tmp_path / "one")
    program = f"""
import os
from pathlib import Path
from sentinel.system.compiler import Library, compile_once
built = compile_once(Library("answer", (Path({str(tmp_path / "one" / "answer.cpp")!r}),), (), ("-fPIC",),
    compile_paths=({f"-I{tmp_path / 'one' / 'include'}"!r},)))
if not os.fork():
    raise SystemExit
os.wait()
print(built.exists(), built)
"""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "no"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=600
    )
    existed, path = done.stdout.split()
    assert existed == "True"
    assert not Path(path).parent.exists()
    assert done.stderr.count("for this process alone") == 1


def test_a_compiler_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert shutil.which("c++") is None
    with pytest.raises(CapabilityError, match="no C\\+\\+ compiler was found"):
        compile_once(_library(tmp_path / "one"))


def test_a_compiler_that_cannot_be_executed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "c++"
    broken.write_text("#!/no/such/shell\n")
    broken.chmod(0o700)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(CapabilityError, match=f"running {broken}.*No such file .*name one in CXX"):
        compile_once(_library(tmp_path / "one"))


def test_whoever_waits_for_another_build_says_so(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ranks do that start together."""
    library = _library(tmp_path / "one")
    built, said = compile_once(library), threading.Event()
    built.unlink()

    def tell(text: str, **_: Any) -> None:
        told.append(text)
        said.set()

    told: list[str] = []
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(progress, "say", tell)
    with open(built.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = threading.Thread(target=compile_once, args=(library,))
        waiting.start()
        assert said.wait(LONGEST_S)
        assert not built.exists()
    waiting.join()
    assert built.exists()
    assert told[0].startswith(f"compiling answer, once, into {cache}")


def test_headers_count_by_what_is_in_them(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    import torch

    from sentinel.profiler import torch_shim

    seen = []
    for name, text in (("one", "int a;"), ("two", "int a;"), ("three", "int b;")):
        (tmp_path / name / "include" / "deep").mkdir(parents=True)
        (tmp_path / name / "include" / "deep" / "a.h").write_text(text)
        seen.append(torch_shim.headers_of(tmp_path / name))
    assert seen[0] == seen[1] != seen[2]
    here = Path(torch.__file__).parent
    assert torch_shim.headers_of(here) == torch_shim.headers_of(here) != seen[0]


def test_a_user_without_a_home_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(NotADirectoryError):
        cache_folder().mkdir(parents=True)
