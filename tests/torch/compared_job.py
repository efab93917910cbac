"""One placement of a script, compared in a process of its own; says as JSON what its child saw, or the error.

Run as `python -m tests.torch.compared_job SCRIPT PLACEMENT`. Both nodes are this host's one.
"""

from __future__ import annotations

import contextlib
import json
import sys

from sentinel.core.errors import SentinelError
from sentinel.executed import comparing
from sentinel.executed.child import ComparedJob
from sentinel.executed.observer import Window
from sentinel.executed.placements import PLACEMENTS


def main(script: str, name: str) -> None:
    """See the module."""
    said = {"fast": "50%", "slow": "emulated:cxl-asic-x8", "tracker": "ops"}
    job = ComparedJob(script, (), (0, 0), said, Window(3, 1), {0: 1})
    placement = next(each for each in PLACEMENTS if each.name == name)
    try:
        told = comparing._child(job, placement, lambda *_: contextlib.nullcontext(), None)
    except SentinelError as error:
        told = {"error": str(error)}
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
