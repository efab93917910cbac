"""How fast this host copies what moves on an emulated tier, beside a job that computes on all its threads."""

from __future__ import annotations

import ctypes
import mmap
import time
from dataclasses import replace

import torch

from sentinel.core.machine import Machine
from sentinel.migration.mover import NativeMover
from sentinel.tiers.tier import FAST, Job

NBYTES, PIECE = 128 << 20, 1 << 20
"""Copied in each direction, in transfers of so many bytes: that of a tensor of some size."""


def reached(machine: Machine) -> Machine:
    """`machine`, the links of its emulated tiers no faster than this host copies beside compute."""
    up, down = copied_per_s(promote=True), copied_per_s(promote=False)
    links = []
    for link in machine.links:
        rate = min(link.bandwidth_bytes_per_s, up if link.target == FAST else down)
        links.append(replace(link, bandwidth_bytes_per_s=rate, measured=True))
    return replace(machine, links=tuple(links))


def copied_per_s(*, promote: bool) -> int:
    """Bytes that the mover of one direction copies a second while this process multiplies matrices."""
    memory = mmap.mmap(-1, NBYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # as tensors lie
    memory[:] = b"\x01" * NBYTES
    anchor = ctypes.c_char.from_buffer(memory)
    mover = NativeMover(1 << 62)
    source, target = (1, FAST) if promote else (FAST, 1)
    try:
        mover.hold(1, NBYTES)
        mover.force(NBYTES)
        base = ctypes.addressof(anchor)
        held = tuple(PIECE if tier == source else 0 for tier in (0, 1))
        left, right = torch.rand(512, 512), torch.rand(512, 512)
        began = time.monotonic_ns()
        for offset in range(0, NBYTES, PIECE):
            mover.submit(Job(source, target, PIECE, held, spans=((base + offset, PIECE),)))
        while mover.ended() < NBYTES // PIECE:
            left.mm(right)
        took_ns = time.monotonic_ns() - began
        if mover.copied().copied_bytes != NBYTES:
            raise SystemExit(f"this host does not let its memory be copied: {mover.copied()}")
    finally:
        mover.close()
        del anchor
        memory.close()
    return NBYTES * 10**9 // took_ns
