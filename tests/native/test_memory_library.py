"""The binding of the native library: found or built, of the right version, errors as types."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sentinel.core.errors import CapabilityError, NativeError
from sentinel.system import compiler, native

SOURCE = Path(__file__).parents[2]
HEADER = SOURCE / "kernel_profiler" / "include" / "sentinel.h"

pytestmark = pytest.mark.needs("compiler")


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(SOURCE), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def test_every_function_that_is_bound_is_there() -> None:
    library = native.library()
    for name in native._SIGNATURES:
        assert isinstance(library[name], ctypes._CFuncPtr)  # type: ignore[attr-defined]
    assert library.sn_abi_version() == native.ABI_VERSION


def test_the_reasons_are_the_headers() -> None:
    enum = HEADER.read_text().split("SN_WHY_SMALL = 0,")[1].split("SN_WHY_COUNT")[0]
    assert native.WHY[1:] == tuple(
        word.strip().removeprefix("SN_WHY_").lower() for word in enum.split(",") if word.strip()
    )


def test_both_handles_reach_one_library() -> None:
    first, second = native.library().sn_next_seq(), native.quick().sn_next_seq()
    assert second == first + 1


def test_a_bound_function_leaves_others_signatures_alone() -> None:
    mine = native.function("sn_next_seq", ctypes.c_int32)
    assert native.library().sn_next_seq.restype is ctypes.c_uint64
    assert mine() > 0


def test_a_negative_result_is_an_error_with_its_errno() -> None:
    assert native.check("f", 3) == 3
    with pytest.raises(NativeError, match="Device or resource busy") as raised:
        native.check("sn_place", -16, "wait")
    assert (raised.value.call, raised.value.errno) == ("sn_place", 16)


def test_no_source_and_no_library_names_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native, "_PACKAGE", tmp_path)
    monkeypatch.setattr(native, "_CHECKOUT", tmp_path)
    with pytest.raises(CapabilityError, match="apt-get install g"):
        native.path.__wrapped__()


def test_sources_newer_than_the_library_are_compiled(tmp_path: Path) -> None:
    """In a source tree a stale library would have the old behaviour."""
    program = f"""
from pathlib import Path
from sentinel.system import native
tree = Path({str(tmp_path)!r})
shown = 'extern "C" __attribute__((visibility("default"))) '
for name, text in {{"src/a.cpp": shown + "int a() {{ return 7; }}", "include/sentinel.h": ""}}.items():
    (tree / name).parent.mkdir(parents=True, exist_ok=True)
    (tree / name).write_text(text)
native._CHECKOUT = native._PACKAGE = tree
import ctypes, os
built = native.path()
print(ctypes.CDLL(str(built)).a())
placed = tree / "_native.so"
placed.write_bytes(built.read_bytes())
os.utime(placed, (2e9, 2e9))
native.path.cache_clear()
print(native.path() == placed)
(tree / "src/a.cpp").write_text(shown + "int a() {{ return 8; }}")
os.utime(placed, (1, 1))
native.path.cache_clear()
print(native.path() not in (placed, built))
"""
    done = run(program, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.stdout.split() == ["7", "True", "True"], done.stderr


def test_sources_that_do_not_compile_are_reported_by_their_first_error(tmp_path: Path) -> None:
    """And by then it was said that a compiler runs: here it waits for that."""
    (tmp_path / "bad.cpp").write_text("int f() { return nothing; }")
    told, real, waits = tmp_path / "told", compiler._compiler("bad"), tmp_path / "c++"
    until_told = f"for turn in $(seq 60000); do [ -e {told} ] && break; sleep 0.01; done"
    waits.write_text(f'#!/bin/sh\n[ "$1" = --version ] || {until_told}\nexec {real} "$@"\n')
    waits.chmod(0o700)
    program = f"""
from pathlib import Path
from sentinel.core.errors import CapabilityError
from sentinel.system import progress
from sentinel.system.compiler import Library, cache_folder, compile_once
progress.QUIET_SECONDS, say = 0.0, progress.say
progress.say = lambda sentence: (say(sentence), Path({str(told)!r}).touch())
try:
    compile_once(Library("bad", (Path({str(tmp_path / "bad.cpp")!r}),), (), ("-fPIC",)))
except CapabilityError as error:
    print("nothing" in error.why)
print([p.name for p in cache_folder().rglob("*") if p.is_file()])
"""
    done = run(program, XDG_CACHE_HOME=str(tmp_path / "cache"), CXX=str(waits))
    assert done.stdout.splitlines() == ["True", "['lock']"], done.stderr
    said = f"sentinel: compiling bad, once, into {tmp_path / 'cache' / 'sentinel'}, "
    assert re.match(rf"{re.escape(said)}\d+ s so far\n", done.stderr)


def test_a_cache_that_cannot_be_written_costs_a_build_a_process(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o500)
    program = """
import os, tempfile
from pathlib import Path
from sentinel.system.compiler import Library, compile_once
if os.geteuid() == 0:  # who may write anywhere
    os.setresuid(65534, 65534, 65534)
with tempfile.TemporaryDirectory() as folder:
    source = Path(folder, "x.cpp")
    source.write_text("int f() { return 0; }")
    print(compile_once(Library("x", (source,), (), ("-fPIC",))).is_file())
"""
    done = run(program, XDG_CACHE_HOME=str(tmp_path / "cache"), TMPDIR="/tmp")
    assert done.stdout.split() == ["True"], done.stderr
    assert "for this process alone" in done.stderr
    assert "Permission denied" in done.stderr


def test_events_have_the_layout_of_the_header() -> None:
    pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")
    from sentinel.migration.memory import EVENT_DTYPE, GRANULE_BYTES

    assert EVENT_DTYPE.itemsize == 48
    assert f"SN_GRANULE_BYTES {GRANULE_BYTES}" in HEADER.read_text()
    offsets = [int(EVENT_DTYPE.fields[name][1]) for name in EVENT_DTYPE.names]  # type: ignore[index,union-attr]
    assert offsets == [0, 8, 16, 24, 32, 36, 40, 44, 45]
    assert np.dtype(EVENT_DTYPE).isnative
