"""Profile to report needs no torch, and no native library; what does need them says so in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sentinel import files
from tests.builders import MIB, act, make_machine, make_profile, param

ROOT = Path(__file__).parents[2]
NO_TORCH = """
import sys
sys.modules["torch"] = None  # importing it fails from now on
"""
BLOCKED = (
    NO_TORCH
    + """
import ctypes
class NoLibrary:
    def __init__(self, *_a, **_k): raise OSError("no library here")
ctypes.CDLL = NoLibrary
"""
)


def python(code: str, *arguments: str, blocked: str = BLOCKED) -> subprocess.CompletedProcess[str]:
    """`code` in a process where torch cannot be imported and no library loaded."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", blocked + code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.fixture
def nouns(tmp_path: Path) -> list[str]:
    specs = [param("w", 8 * MIB, [0, 2]), param("v", 8 * MIB, [1]), act("a", 4 * MIB, 0, 3, [2])]
    files.save(make_profile(specs, 3), tmp_path / "p.safetensors")
    files.save(make_machine(), tmp_path / "m.json")
    return [str(tmp_path / name) for name in ("p.safetensors", "m.json", "plan.json", "run.safetensors", "r.html")]


def test_torch_is_really_out_of_reach() -> None:
    assert "ModuleNotFoundError" in python("import torch").stderr


def test_profile_to_report(nouns: list[str]) -> None:
    done = python(
        "from sentinel.cli import main\n"
        "p, m, plan, run, html = sys.argv[1:]\n"
        "assert main(['plan', p, '--machine', m, '--fast', '50%', '-o', plan]) == 0\n"
        "assert main(['simulate', p, plan, '--machine', m, '-o', run]) == 0\n"
        "assert main(['report', '--profile', p, '--plan', plan, '--run', run, '--machine', m, '-o', html]) == 0\n",
        *nouns,
    )
    assert done.returncode == 0, done.stderr
    assert "<html" in Path(nouns[-1]).read_text()


def test_the_package_imports_and_ticks_are_idle() -> None:
    done = python("import sentinel\nsentinel.add_layer('x')\nassert not sentinel.active()\n")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("call", ["start_profile()", "annotate(None)", "report()", "data"])
def test_what_needs_torch_names_the_remedy(call: str) -> None:
    done = python(f"import sentinel\nsentinel.{call}\n")
    assert "sentinel.core.errors.CapabilityError" in done.stderr
    assert "in a checkout: pip install '.[torch]'" in done.stderr.splitlines()[-1]


def test_running_a_script_is_refused_in_one_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('begun')")
    done = python("from sentinel.cli import main\nsys.exit(main(['run', sys.argv[1]]))", str(script))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("sentinel: profiling a training step: torch cannot be imported")
    assert len(done.stderr.splitlines()) == 1


def test_importing_the_command_line_loads_nothing_heavy() -> None:
    done = python(
        "from sentinel.cli import parser\nparser().format_help()\n"
        "heavy = {'numpy', 'pandas', 'highspy', 'scipy', 'safetensors', 'tomllib', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--slow", "emulated:cxl-asic-x8"], "--slow emulated:cxl-asic-x8 is not a NUMA node"),
        (["--slow", "emulated:none"], "names no slow tier"),
        (["--slow", "numa:99"], "no node 99"),
        (["--slow", "numa:99"], "; run it on a host, or in a virtual machine, with two nodes"),
        (["--fast", "10%,20%"], "one amount of fast memory"),
        (["--policies", "magic"], "there is no placement 'magic'"),
    ],
)
def test_an_executed_comparison_refuses_wrong_words_before_it_loads_torch(words: list[str], why: str) -> None:
    command = ["compare", *words, "--executed", __file__]
    done = python(f"from sentinel.cli import main\nraise SystemExit(main({command!r}))\n", blocked=NO_TORCH)
    assert why in done.stderr
    assert done.returncode == (1 if "numa:99" in words else 2)  # what this host lacks is no matter of usage
    assert len(done.stderr.splitlines()) == 1
