"""A proof of one very small job on two nodes, of which calibration and the doctor's answers are there already.

Each takes minutes where the processor is emulated. Calibration has tests of its own there."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from sentinel.core.machine import Link, Machine, TierSpec
from sentinel.files import save
from sentinel.proving.proof import Asked, Proof
from sentinel.proving.proof_document import written
from sentinel.proving.proof_folder import ProofFolder
from sentinel.proving.workloads import Workload

BEGAN = time.monotonic()


def main(path: Path) -> None:
    """Prove in the folder `path`, and print the object."""
    job = Workload("prove_job", str(Path(__file__).with_name("prove_job.py")), 0.01)
    asked = Asked((job,), "numa:1", None, quick=True, kernel=False)
    fast = TierSpec("dram", "described", 64 << 30, 100.0, 10**11, 10**11)
    slow = TierSpec("far", "described", 256 << 30, 250.0, 3 * 10**10, 3 * 10**10)
    with ProofFolder.begin(path, asked.settings()) as folder:
        save(Machine("far", (fast, slow), (Link(0, 1, 10**10), Link(1, 0, 10**10))), folder.work / "machine.json")
        folder.save("calibration", {})
        folder.save("doctor", {"missing": [], "trackers_missing": []})
        proof = Proof(asked, folder, 3600.0, _say)
        proof.run()
        print(json.dumps(written(proof, folder, asked.settings(), "")))


def _say(sentence: str) -> None:
    print(f"{time.monotonic() - BEGAN:4.0f} s: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
