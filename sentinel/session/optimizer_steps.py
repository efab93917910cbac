"""Hears the steps of every optimizer of the process, whoever made it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


def after_each_step(call: Callable[[], None]) -> Callable[[], None]:
    """From now on `call()` comes after each step of an optimizer, on the thread that steps. Returns what undoes it."""

    def stepped(*_: Any) -> None:
        if not torch.compiler.is_compiling():  # or it would be part of the graph, and break it
            call()

    return register_optimizer_step_post_hook(stepped).remove
