"""One example, recorded as it trains or estimated from its shapes, for benchmarks/estimate.py: a line of JSON."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from sentinel.core.profile import Profile

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SLOW = "emulated:cxl-asic-x8"
"""For the recording, whose step is over before anything is slow."""


def example_named(name: str) -> ModuleType:
    """The module of an example."""
    sys.path.insert(0, str(EXAMPLES))
    spec = importlib.util.spec_from_file_location("example", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["example"] = module
    spec.loader.exec_module(module)
    return module


def recorded(name: str) -> Profile:
    """The second step of the example, as the operators' recorder has it."""
    module = example_named(name)
    import common

    from sentinel.session import current, set_overrides

    set_overrides({"tracker": "ops", "policy": "static"})
    module.train(common.Options(steps=2, slow=SLOW))
    session = current()
    assert session is not None
    profile = session.profile
    assert profile is not None
    return profile


def estimated(name: str) -> Profile:
    """The same step, from shapes."""
    from sentinel.profiler.estimate.fake_step import estimated as of_shapes

    return of_shapes(example_named(name).job, name)


def told(profile: Profile) -> dict[str, Any]:
    """Its layers, the bytes that operators read and write in each, and the most that is alive at once."""
    a = profile.accesses
    nbytes = np.bincount(a["layer"], a["read_bytes"] + a["written_bytes"], profile.n_layers)
    return {
        "tracker": profile.quality.tracker,
        "layers": [str(layer) for layer in profile.layers],
        "layer_bytes": nbytes.astype(np.int64).tolist(),
        "peak_bytes": profile.live_peak_bytes + profile.unmanaged_peak_bytes,
    }


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("how", choices=("recorded", "estimated"))
    parser.add_argument("example")
    given = parser.parse_args()
    began = time.perf_counter()
    profile = (recorded if given.how == "recorded" else estimated)(given.example)
    print(json.dumps({**told(profile), "seconds": round(time.perf_counter() - began, 1)}))


if __name__ == "__main__":
    main()
