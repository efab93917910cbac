"""Child of scale.py: the lengths of the runs of touched pages that a step of a small GPT-2 has."""

from __future__ import annotations

import json

import numpy as np

import sentinel
from benchmarks._profiled_step import gpt2
from sentinel import session

SHAPE = (4, 256, 2, 128)


def main() -> None:
    """Print one JSON object: length in pages -> number of runs, and the tracker that told."""
    model, optimizer, tokens = gpt2(*SHAPE)
    sentinel.annotate(model, optimizer)
    for step in range(3):
        if step == 1:
            sentinel.start_profile(fast="100%", slow="emulated:cxl-asic-x8")
        optimizer.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        if step == 1:
            sentinel.end_profile()
    recorded = session.current()
    assert recorded is not None
    trace = recorded.trace
    if trace is None or not len(trace.pages):
        raise SystemExit("no page tracker is allowed here: run as root, or see `sentinel doctor`")
    length, count = np.unique(trace.pages["npages"], return_counts=True)
    lengths = {str(pages): runs for pages, runs in zip(length.tolist(), count.tolist(), strict=True)}
    sentinel.stop()
    print(json.dumps({"tracker": trace.quality.tracker, "lengths": lengths}))


if __name__ == "__main__":
    main()
