"""A heap without room for a large block, so that malloc gives such a block a mapping of its own, whatever tests in this
process have freed before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

MOST_BLOCKS = 4096


def filled(nbytes: int) -> list[Any]:
    """Tensors of `nbytes` that take what the heap has free in blocks of that size; as long as they are kept, the next
    one is mapped by itself. `nbytes`: more than malloc's largest threshold of 32 MiB."""
    kept = []
    for _ in range(MOST_BLOCKS):
        block = torch.empty(nbytes, dtype=torch.uint8)
        if not _in_heap(block.data_ptr()):
            return kept
        kept.append(block)
    raise AssertionError(f"{MOST_BLOCKS} blocks of {nbytes} bytes lie in the heap: does malloc map none by itself?")


def _in_heap(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith("[heap]"):
            begin, end = (int(word, 16) for word in line.split()[0].split("-"))
            if begin <= address < end:
                return True
    return False
