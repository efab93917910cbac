"""What a process must not have any more, or must have again, once no session runs."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
from pathlib import Path

import torch
import torch.optim.optimizer as torch_optimizer

from sentinel.profiler import operators, torch_shim
from sentinel.runtime import RUNTIME
from sentinel.session.fused_steps import FUSED
from sentinel.system import native
from tools.interrupts.training import Training

_ANONYMOUS = ("pipe:", "socket:")
"""Descriptors that no session opens: of whoever runs lives."""
_ACTION_BYTES = 152
"""Of glibc's struct sigaction, which begins with the handler."""
_FLAGS_AT = 136
_RESTORER = 0x04000000
"""A flag that the C library sets by itself."""


class Surroundings:
    """Of a process before its first session. `folder`: where sessions may have files."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._descriptors, self._handlers, self._fused = _descriptors(), _handlers(), _fused()

    def left(self) -> list[str]:
        """Sentences: what is not as it was."""
        gc.collect()
        maps = Path("/proc/self/maps").read_text()
        mode = native.library().sn_memory_mode()
        now, threads, handlers = _descriptors(), _threads(), _handlers()
        put = [signal.Signals(number).name for number in handlers if handlers[number] != self._handlers[number]]
        told = {
            "the memfd is mapped": "memfd:sentinel" in maps,
            "the file is mapped": self._folder is not None and f" {self._folder}/" in maps,
            "the folder is not empty": self._folder is not None and any(self._folder.iterdir()),
            "operators are recorded": operators.recording(),
            "a session takes ticks": RUNTIME.sink is not None,
            "our allocator is installed": RUNTIME.memory is not None or _is_installed(),
            "tensors are in frames": native.function("sn_framed_any", ctypes.c_int)(),
            f"the allocator's mode is {mode}": mode,
            f"descriptors: {now} instead of {self._descriptors}": now != self._descriptors,
            f"{threads} threads run": threads > 1,
            f"the handlers of {', '.join(put)} are others": put,
            "a fused step is ours": _fused() != self._fused,
            "the log grows": _log_grows(),
        }
        return [sentence for sentence, holds in told.items() if holds]


def hooks_left(training: Training) -> list[str]:
    """Of a step that ran and of sessions that ended: none but those of `annotate`, which has none in these tables."""
    optimizer, params = training.optimizer, list(training.model.parameters())
    counts = {
        "parameters": sum(len(p._post_accumulate_grad_hooks or ()) for p in params),
        "the optimizer": len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks),
        "all optimizers": len(torch_optimizer._global_optimizer_pre_hooks)
        + len(torch_optimizer._global_optimizer_post_hooks),
    }
    whole = sum(len(group["params"]) for group in optimizer.param_groups)
    cut = [] if whole == len(params) else [f"the optimizer has {whole} parameters of {len(params)}"]
    return cut + [f"{count} hooks are left on {where}" for where, count in counts.items() if count]


def _descriptors() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            kind = os.readlink(f"/proc/self/fd/{name}")
            if not kind.startswith(_ANONYMOUS):
                found.append(kind)
    return sorted(found)


def _handlers() -> dict[int, tuple[bytes, int]]:
    """As the kernel has them: handler and flags by signal."""
    ask, found = ctypes.CDLL(None).sigaction, {}
    for number in signal.valid_signals():
        action = ctypes.create_string_buffer(_ACTION_BYTES)
        if ask(int(number), None, action) == 0:
            flags = int.from_bytes(action.raw[_FLAGS_AT : _FLAGS_AT + 4], sys.byteorder)
            found[int(number)] = action.raw[:8], flags & ~_RESTORER
    return found


def _fused() -> list[object]:
    return [getattr(torch, name, None) for name in FUSED]


def _threads() -> int:
    tasks = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return len(tasks) - tasks.count("jemalloc_bg_thd")  # pyarrow's allocator's, where pandas finds that library


def _is_installed() -> bool:
    return bool(torch_shim.function("sn_shim_installed", ctypes.c_int)())


def _log_grows() -> bool:
    count = native.function("sn_log_count", ctypes.c_uint64)
    held = count()
    torch.zeros(4096)
    return bool(count() != held)
