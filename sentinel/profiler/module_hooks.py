"""Ticks of annotated modules by hooks of all modules: no module has an entry of ours.

PyTorch looks at the hooks that a module has: `nn.TransformerEncoderLayer` computes another way where there are any, and
`torch.jit.script` compiles them. Hooks of all modules change neither.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.nn.modules import module as torch_module

from sentinel.profiler import backward
from sentinel.runtime import RUNTIME


def install() -> None:
    """Calls of the modules in RUNTIME.models and RUNTIME.blocks tick from now on. May be called again."""
    ignore_warnings()
    before, after = torch_module._global_forward_pre_hooks, torch_module._global_forward_hooks
    if not _keys(before, _before_model):
        torch_module.register_module_forward_pre_hook(_before_model)
    if not _keys(after, _after_block):
        torch_module.register_module_forward_hook(_after_block)
    if not _keys(after, _after_model):
        torch_module.register_module_forward_hook(_after_model, always_call=True)


def remove_all_of(owner: object) -> None:
    """What was annotated on behalf of `owner` ticks no more. May be called again."""
    RUNTIME.models.remove_all_of(owner)
    RUNTIME.blocks.remove_all_of(owner)
    _uninstall_unless_used()


_OF_A_COMPILED_MODEL = r"Using `torch\.compile\(module\)` when there are global hooks"


def ignore_warnings() -> None:
    """PyTorch warns of any hook of all modules that a compiled model's wrapper counts as one module more. Ours do
    nothing within a compiled graph, and know the modules that they look for."""
    there = (each[1] for each in warnings.filters if each[0] == "ignore" and each[2] is UserWarning)
    if any(getattr(message, "pattern", message) == _OF_A_COMPILED_MODEL for message in there):
        return  # one more would have Python show again what it shows once
    warnings.filterwarnings("ignore", _OF_A_COMPILED_MODEL, UserWarning)


def _uninstall_unless_used() -> None:
    if RUNTIME.models or RUNTIME.blocks:
        return
    before, after = torch_module._global_forward_pre_hooks, torch_module._global_forward_hooks
    always = torch_module._global_forward_hooks_always_called
    for table in (after, before):  # the last to go is one that goes on with this where an interrupt cut it short
        for key in _keys(table, _before_model, _after_block, _after_model):
            always.pop(key, None)  # first: it is found by its hook
            table.pop(key, None)


def _keys(table: dict[int, Any], *wanted: object) -> list[int]:
    """Where torch's table has one of `wanted`. Other threads may change the table."""
    return [key for key, hook in list(table.items()) if any(hook is one for one in wanted)]


def _before_model(module: nn.Module, _args: object) -> None:
    if is_compiling():  # a graph would replay its ticks, and be guarded by what is read here
        return
    if RUNTIME.models.find(module) is not None:
        RUNTIME.under_way.grad_modes.append(torch.is_grad_enabled())
    elif not RUNTIME.models:  # they died, or an interrupt came within remove_all_of
        _uninstall_unless_used()


def _after_model(module: nn.Module, _args: object, output: object) -> None:
    """Runs after a forward that failed too, then `output` is None."""
    if is_compiling() or RUNTIME.models.find(module) is None:
        return
    if RUNTIME.under_way.grad_modes:
        RUNTIME.under_way.grad_modes.pop()
    if RUNTIME.sink is not None and torch.is_grad_enabled():
        backward.watch(output, None)


def _after_block(module: nn.Module, _args: object, output: object) -> None:
    """Ticks at the end of a block's forward, and sees to it that its backward ticks."""
    if is_compiling():
        return
    sink = RUNTIME.sink
    if sink is None:
        return
    name = RUNTIME.blocks.find(module)
    if name is None:
        return
    grad = torch.is_grad_enabled()
    if backward.graph_task() != -1:  # activation checkpointing computes this block again
        if grad:
            backward.recompute(name, output)
        return
    # a checkpointed block may run without grad mode inside of a forward that has it
    modes = RUNTIME.under_way.grad_modes
    if grad or (modes and modes[-1]):
        backward.outside()
        if grad:
            backward.watch(output, name)
        sink.tick(name, "forward", "annotate")
