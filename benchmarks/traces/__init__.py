"""Profiles of training steps at full size, traced with fake tensors: no real memory, no weights, no download.

`python -m benchmarks.traces [NAME…]` makes them again; `load(name)` reads one, making it if it is not there.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from sentinel.core.errors import FormatError
from sentinel.core.profile import Profile
from sentinel.core.units import format_bytes
from sentinel.files import load_profile, save

FOLDER = Path(__file__).parents[2] / "build" / "traces"
PAPER = ("resnet32", "bert-large", "lstm", "dcgan", "mobilenet")
"""The five families of the paper; `resnet32` and `mobilenet` at large batch."""
OTHERS = ("gpt2", "llama", "vit", "t5", "dlrm", "moe")
NAMES = PAPER + OTHERS
TIERTRAIN = ("resnet18-cifar", "resnet34-cifar", "resnet50-cifar", "resnet152-cifar")
"""The networks of TierTrain's published code, at its batch size."""


def load(name: str) -> Profile:
    """The profile of one model; traced and stored first if need be (seconds; needs torch and transformers)."""
    path = FOLDER / f"{name}.profile"
    if path.exists():
        try:
            return load_profile(path)
        except FormatError:
            pass  # written by an older version
    return make(name)


def make(name: str) -> Profile:
    """Trace one model and store its profile."""
    from benchmarks.traces.models import MODELS
    from benchmarks.traces.record import record

    if name not in MODELS:
        raise SystemExit(f"there is no trace {name!r}; choose some of {', '.join(MODELS)}")
    profile = record(MODELS[name])
    FOLDER.mkdir(parents=True, exist_ok=True)
    save(profile, FOLDER / f"{name}.profile")
    return profile


def main(arguments: Sequence[str] | None = None) -> None:
    """Trace the named models, all of them by default."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*", default=NAMES, help=f"of {', '.join(NAMES)}")
    for name in parser.parse_args(arguments).names:
        profile = make(name)
        tflop = int(profile.flops.clip(0).sum()) / 1e12
        live = format_bytes(profile.live_peak_bytes)
        print(f"{name}: {profile.n_layers} layers, {len(profile.names)} tensors, live peak {live}, {tflop:.2f} TFLOP")
