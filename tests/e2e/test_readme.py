"""The program in the README does what the README says, and so do its commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm

pytestmark = [pytest.mark.needs("torch", "compiler"), pytest.mark.slow]

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.M | re.S)


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return warm.run([sys.executable, *words], cwd=folder, env=environment)


def sooner(program: str) -> str:
    """The same with smaller sizes; .ci/source-distribution runs it as it stands."""
    return program.replace("1024", "256").replace("range(20)", "range(10)")


def test_the_program_writes_its_report(tmp_path: Path) -> None:
    (program,) = [text for language, text in BLOCKS if language == "python"]
    (tmp_path / "program.py").write_text(sooner(program).replace('"report.html"', '"report.json"'))
    done = run(tmp_path, "program.py")
    assert done.returncode == 0, done.stderr
    headline = json.loads((tmp_path / "report.json").read_text())["headline"]
    assert headline["kind"] in ("declared", "executed")
    assert headline["fast_capacity_bytes"] == headline["peak_bytes"] // 5 // 4096 * 4096


def test_the_commands_follow_one_another(tmp_path: Path) -> None:
    """In their order, on a script without annotations; what measures the host or needs two nodes has its own tests."""
    (program,) = [text for language, text in BLOCKS if language == "python"]
    plain = re.sub(r"^ *(import sentinel|sentinel\..*|if step == 1:)\n", "", program, flags=re.M)
    plain = re.sub(r"^ *sentinel\..*\n", "", plain, flags=re.M)
    plain = sooner(plain)
    assert "sentinel" not in plain
    (tmp_path / "package").mkdir()
    for path in ("train.py", "package/train.py"):
        (tmp_path / path).write_text(plain)
    commands = [line for _, text in BLOCKS for line in text.splitlines() if line.startswith("sentinel ")]
    verbs = []
    for command in commands:
        words = shlex.split(command, comments=True)[1:]
        if words[0] in ("doctor", "calibrate"):
            continue
        done = run(tmp_path, "-m", "sentinel", *words)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        verbs.append(words[0])
    assert verbs == ["run", "run", "run", "run", "compare", "plan", "simulate"]
    written = {path.name for path in tmp_path.iterdir()}
    assert {"out.html", "p.safetensors", "compare.html", "plan.json"} <= written
