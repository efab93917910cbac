"""Sessions begin only where they were tested: the interpreters and torch releases of docs/versions.md."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from sentinel.core.errors import CapabilityError
from sentinel.system import probes, versions
from tests.processes import LONGEST_S

SOURCE = Path(__file__).parents[2]
SINCE, BEFORE = (".".join(map(str, bound)) for bound in (versions.TORCH_SINCE, versions.TORCH_BEFORE))
TESTED = f"{SINCE}.1+cpu"


@pytest.fixture(autouse=True)
def _as_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(versions.UNTESTED_TORCH, raising=False)


def on(monkeypatch: pytest.MonkeyPatch, *python: int, free_threaded: int | None = 0) -> None:
    monkeypatch.setattr(sys, "version_info", (*python, 0, "final", 0))
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: {"Py_GIL_DISABLED": free_threaded}.get(name))


@pytest.mark.parametrize("python", [(3, 11), (3, 12), (3, 13), (3, 14)])
def test_tested_interpreters_are_taken(monkeypatch: pytest.MonkeyPatch, python: tuple[int, int]) -> None:
    on(monkeypatch, *python, free_threaded=None)
    versions.require_tested(TESTED)


@pytest.mark.parametrize(
    ("python", "free_threaded", "why"),
    [
        ((3, 15), 0, "sessions were tested on Python 3.11 to 3.14 only"),
        ((4, 0), 0, "sessions were tested on Python 3.11 to 3.14 only"),
        ((3, 13), 1, "a free-threaded build"),
        ((3, 14), 1, "a free-threaded build"),
    ],
)
def test_where_reference_counts_do_not_tell_no_session_begins(
    monkeypatch: pytest.MonkeyPatch, python: tuple[int, int], free_threaded: int, why: str
) -> None:
    on(monkeypatch, *python, free_threaded=free_threaded)
    monkeypatch.setenv(versions.UNTESTED_TORCH, "1")  # which is of torch only
    with pytest.raises(CapabilityError, match=why) as refused:
        versions.require_tested(TESTED)
    assert refused.value.what == f"profiling a training step on Python {python[0]}.{python[1]}"
    assert "use Python 3.11 to 3.14 with the GIL; plans, simulations and reports work here" in refused.value.remedy
    with pytest.raises(probes.Missing, match=why):
        probes.python()


@pytest.mark.parametrize("on_now", [True, False])
def test_no_session_begins_where_the_compiler_of_3_14_is_on(monkeypatch: pytest.MonkeyPatch, on_now: bool) -> None:
    on(monkeypatch, 3, 14)
    monkeypatch.setattr(sys, "_jit", SimpleNamespace(is_enabled=lambda: on_now), raising=False)
    expected = pytest.raises(CapabilityError, match="PYTHON_JIT=1") if on_now else nullcontext()
    with expected:
        versions.require_tested(TESTED)


@pytest.mark.parametrize("version", ["2.4.0", "1.99.0", "2.99.0+cu130", "3.0.0a0"])
def test_no_session_begins_on_another_torch_unless_the_user_says_so(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    tested = f"{SINCE} or later and earlier than {BEFORE} only".replace(".", r"\.")
    with pytest.raises(CapabilityError, match=f"profiling a training step with torch .*{tested}") as refused:
        versions.require_tested(version)
    assert f"set {versions.UNTESTED_TORCH}=1" in refused.value.remedy
    with pytest.raises(probes.Missing, match=tested):
        probes.torch()
    monkeypatch.setenv(versions.UNTESTED_TORCH, "1")
    versions.require_tested(version)
    assert probes.torch().startswith(f"{version}, though")


def test_a_tested_torch_is_named_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: TESTED)
    assert probes.torch() == TESTED


def test_a_session_asks_before_anything_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")
    import sentinel
    from sentinel.runtime import RUNTIME

    monkeypatch.setattr(torch, "__version__", "2.4.0")
    monkeypatch.setattr(RUNTIME, "begin", lambda *given: pytest.fail("a session was made"))
    with pytest.raises(CapabilityError, match=r"torch 2\.4\.0"):
        sentinel.start_profile(fast="20%")


def test_the_solver_that_is_admitted_prints_nothing() -> None:
    """It would be in a script's own output under `sentinel run`, and before JSON."""
    made = subprocess.run(
        [sys.executable, "-c", "import highspy; highspy.Highs()"], capture_output=True, check=True, timeout=LONGEST_S
    )
    assert (made.stdout, made.stderr) == (b"", b"")
    assert '"highspy>=1.7,<1.16"' in (SOURCE / "pyproject.toml").read_text()
    assert "highspy 1.7 to 1.15" in " ".join((SOURCE / "docs" / "versions.md").read_text().split())


def test_the_package_admits_what_sessions_take() -> None:
    text = (SOURCE / "pyproject.toml").read_text()
    assert f'"torch>={SINCE},<{BEFORE}"' in text
    since, before = (".".join(map(str, bound)) for bound in (versions.PYTHON_SINCE, versions.PYTHON_BEFORE))
    assert f'requires-python = ">={since},<{before}"' in text
    page = " ".join((SOURCE / "docs" / "versions.md").read_text().split())
    assert f"Python {versions.PYTHONS}" in page
    assert f"**torch {SINCE} or later and earlier than {BEFORE}" in page
