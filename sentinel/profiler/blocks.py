"""Which modules of a model are layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from sentinel.core.errors import UsageError

ENOUGH_BLOCKS = 16
"""Below this, blocks that hold a list of modules themselves are cut further."""

_LISTS = (nn.ModuleList, nn.Sequential)


def find_blocks(root: nn.Module) -> list[tuple[str, nn.Module]]:
    """(qualified name, module) of each block of `root`, in the order of the tree; `root` alone has the name "".

    A block is a child of a ModuleList or Sequential that is outermost in the tree, or a module beside such a
    list. While there are fewer than 16, the blocks that hold a list are cut by the same rule.
    """
    blocks = _cut("", root)
    while len(blocks) < ENOUGH_BLOCKS:
        finer = []
        for name, block in blocks:
            finer += _cut(name, block) if _holds_list(block) else [(name, block)]
        if len(finer) == len(blocks):
            break
        blocks = finer
    return _once(blocks) or [("", root)]


def named_blocks(root: nn.Module, chosen: Sequence[nn.Module | str]) -> list[tuple[str, nn.Module]]:
    """The blocks that a user chose, by module or qualified name. Raises UsageError for one that is not in `root`."""
    by_name = dict(root.named_modules())
    names = {id(module): name for name, module in reversed(by_name.items())}
    found = []
    for choice in chosen:
        name = choice if isinstance(choice, str) else names.get(id(choice))
        if name is None or name not in by_name:
            what = repr(choice) if isinstance(choice, str) else type(choice).__name__
            raise UsageError(f"blocks: {what} is not a module of the model", "give modules of it, or their names")
        found.append((name, by_name[name]))
    return _once(found)


def _cut(prefix: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    if isinstance(module, (*_LISTS, nn.ModuleDict)):  # a ModuleDict can't be called either: its children can
        return list(_children(prefix, module))
    blocks: list[tuple[str, nn.Module]] = []
    for name, child in _children(prefix, module):
        inside = isinstance(child, (*_LISTS, nn.ModuleDict)) or _holds_list(child)
        blocks += _cut(name, child) if inside else [(name, child)]
    return blocks


def _children(prefix: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        yield f"{prefix}.{name}" if prefix else name, child


def _holds_list(module: nn.Module) -> bool:
    return any(isinstance(part, _LISTS) and len(part) > 0 for part in module.modules())


def _once(blocks: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    seen: set[int] = set()
    return [(n, m) for n, m in blocks if not (id(m) in seen or seen.add(id(m)))]  # type: ignore[func-returns-value]


def tensors_in(value: object, depth: int = 3) -> Iterator[torch.Tensor]:
    """The tensors of a module's output: itself, or in tuples, lists, mappings and objects with plain fields."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors_in(part, depth - 1)
    elif depth and isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part, depth - 1)
    elif depth and hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from tensors_in(getattr(value, name, None), depth - 1)
