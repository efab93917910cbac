"""What a training run computed, as digests: of the losses that backward began with, and of all that was trained."""

from __future__ import annotations

import hashlib
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from sentinel.profiler import names


@contextmanager
def losses() -> Iterator[list[bytes]]:
    """The bytes that backward is called on, in order.

    Read in place: a tensor made here would count among the allocations of the step, by whose order a plan knows them.
    """
    found: list[bytes] = []
    plain = torch.autograd.backward

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        found.extend(_bytes_of(root) for root in roots)
        plain(tensors, *args, **kwargs)

    torch.autograd.backward = backward
    try:
        yield found
    finally:
        torch.autograd.backward = plain


def digest_of_losses(found: Sequence[bytes]) -> str:
    """Of what `losses` has found."""
    return hashlib.sha256(b"".join(found)).hexdigest()


def digest_of_trained(models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> str:
    """Of every parameter, buffer and optimizer state, by name."""
    total = hashlib.sha256()
    for name, tensor, role in sorted(names.persistent_tensors(models, optimizers), key=lambda n: n[0]):
        if role != "grad":
            total.update(name.encode())
            total.update(_bytes_of(tensor))
    return total.hexdigest()


def _bytes_of(tensor: torch.Tensor) -> bytes:
    """On whatever device it is; what this process can address is read in place."""
    return bytes(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())


def run_script(script: str, arguments: Sequence[str]) -> None:
    """Run it as `__main__` in this process, which is a child that runs one script and ends."""
    sys.argv = [script, *arguments]
    if not sys.flags.safe_path:
        sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as leaving:
        if leaving.code:
            raise
