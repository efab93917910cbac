"""`sentinel prove` on two real nodes, in miniature: predicted, trained as planned, put together.

The kernel's own placements are left out: test_vm_compare.py compares them, and they would take as long again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.proving.cells import OURS, QUICK
from sentinel.proving.left_as_it_was import settings_now
from sentinel.reports.proof_tables import bits_differ, failures

ROOT = Path(__file__).parents[2]


# All of this file: only `make test-long` boots a machine for it. tests/e2e/test_prove_verb.py proves on one node.
pytestmark = [pytest.mark.needs("two nodes", "root", "torch", "native"), pytest.mark.slow, pytest.mark.long]


def test_a_proof_runs_to_its_end_and_leaves_the_kernel_as_it_was(tmp_path: Path) -> None:
    before = settings_now()
    done = subprocess.run(
        [sys.executable, "-m", "tests.numa.prove_miniature", str(tmp_path / "proof")],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["not_run"] == {}, done.stderr
    assert failures(found) == []
    assert not bits_differ(found)
    ran = {(cell["kind"], cell["placement"]): cell for cell in found["cells"]}
    assert ran.keys() == {("stock", "stock"), *(("policy", name) for name in QUICK)}
    assert all(cell["as_planned"] and cell["done"] == "executed" for (kind, _), cell in ran.items() if kind == "policy")
    ours = ran["policy", OURS]
    assert ours["moved_pages"] == ours["witness_pages"] > 0  # seen by the kernel's own word
    assert ours["prediction"] == found["predictions"]["prove_job"]["digest"]
    assert ours["number"] > found["predictions"]["prove_job"]["number"]
    assert settings_now() == before
