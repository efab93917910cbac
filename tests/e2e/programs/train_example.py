"""Runs `train` of examples and saves what came out: train_example.py FOLDER STEPS FAST SLOW|stock EXAMPLE..."""

from __future__ import annotations

import json
import runpy
import struct
import sys
from pathlib import Path

import torch


def main(folder: str, steps: str, fast: str, slow: str, *examples: str) -> None:
    """In the folder, of each example, NAME.pt: losses as hex and all tensors of the model; NAME.json: the headline of
    the report, {} for stock."""
    sys.path.insert(0, str(Path(examples[0]).parent))
    import common

    torch.ones(1).sqrt()  # MKL's first call by two threads at once may compute with 12 bits, without Sentinel too
    chosen = common.Options(steps=int(steps), fast=fast, slow=slow, stock=slow == "stock")
    for example in examples:
        losses, model = runpy.run_path(example, run_name="example")["train"](chosen)
        bits = [struct.pack("<d", loss).hex() for loss in losses]
        out = Path(folder, Path(example).stem)
        torch.save({"losses": bits, "state": model.state_dict()}, f"{out}.pt")
        headline = {}
        if not chosen.stock:
            import sentinel

            headline = sentinel.report().headline
            sentinel.stop()
        Path(f"{out}.json").write_text(json.dumps(headline))


if __name__ == "__main__":
    main(*sys.argv[1:])
