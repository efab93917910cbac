"""A host without a compiler needs none where what its installation brought loads with the torch at hand, and only
there: the name of a file tells which torch it was made for, not whether it is the one of this host."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import torch

from sentinel.profiler import torch_shim
from sentinel.profiler.selftest import check_host
from sentinel.system import compiler
from sentinel.system.capabilities import COMPILER, Capability

pytestmark = [pytest.mark.needs("torch", "compiler", "native"), pytest.mark.slow]

NAMES = ("sentinel_torch", "sentinel_reducers")
FINE = 'extern "C" int answer() { return 7; }\n'
MISSES_A_SYMBOL = 'int of_another_torch();\nextern "C" int answer() { return of_another_torch(); }\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where an installation has what was compiled. Small libraries stand for the real ones."""
    monkeypatch.setattr(torch_shim, "AHEAD", tuple((name, tmp_path / name) for name in NAMES))
    monkeypatch.setattr(compiler, "AHEAD", tmp_path / "_compiled")
    return tmp_path / "_compiled"


def brought(folder: Path, monkeypatch: pytest.MonkeyPatch, shim: str = FINE) -> Path:
    """The shim as it was brought. There is no compiler from now on."""
    for name in NAMES:
        (folder.parent / name).mkdir()
        (folder.parent / name / "small.cpp").write_text(shim if name == NAMES[0] else FINE)
    torch_shim.make_ahead(folder)
    monkeypatch.setenv("CXX", "none")
    monkeypatch.setenv("PATH", str(folder))
    (found,) = folder.glob(f"{NAMES[0]}-torch-{torch.__version__}-*.so")
    return found


def told() -> Capability:
    (found,) = [each for each in check_host() if each.name == COMPILER]
    return found


def test_none_is_needed_for_what_loads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brought(folder, monkeypatch)
    found = told()
    assert found.available, found.why
    assert "none is needed: sentinel_torch and sentinel_reducers" in found.why


def test_one_is_needed_where_what_was_brought_misses_a_symbol(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shim = brought(folder, monkeypatch, MISSES_A_SYMBOL)
    found = told()
    assert not found.available
    assert f"{shim.name} does not load: " in found.why
    assert "of_another_torch" in found.why


@pytest.mark.parametrize("part", [1000, 2])
def test_one_is_needed_where_what_was_brought_is_damaged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    """Of half a library the loader is ended by a signal."""
    shim = brought(folder, monkeypatch)
    whole = shim.read_bytes()
    shim.write_bytes(whole[: len(whole) // part])
    found = told()
    assert not found.available
    assert f"{shim.name} does not load: " in found.why


def test_one_is_needed_where_the_torch_of_that_version_is_another_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim = brought(folder, monkeypatch)
    shim.rename(shim.with_name(f"{NAMES[0]}-torch-{torch.__version__}-{'0' * 16}.so"))
    found = told()
    assert not found.available
    assert "sentinel_torch: this installation brought none that was made for torch" in found.why
