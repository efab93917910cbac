"""Floating-point operations of an operator call, from the words that the recorder keeps of it.

Formulas are torch's own (torch.utils.flop_counter), and ours for CPU operators that it lacks. Operators
without one count an operation for each element they compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from sentinel.core.interrupts import is_interrupt

Value = Any
"""A decoded word: a shape (list) for a tensor, an int, a list of ints, a list of values, or None."""


def _rnn(x: list[int], w0: list[int], w1: list[int], *_: Value) -> int:
    steps_and_batch = math.prod(x[:-1])
    return 2 * steps_and_batch * (math.prod(w0) + math.prod(w1))


def _rnn_backward(x: list[int], w0: list[int], w1: list[int], *_: Value) -> int:
    return 2 * _rnn(x, w0, w1)


def _attention(query: list[int], key: list[int], value: list[int], *_: Value) -> int:
    return int(sdpa_flop_count(query, key, value))


def _attention_backward(gradient: list[int], query: list[int], key: list[int], value: list[int], *_: Value) -> int:
    return int(sdpa_backward_flop_count(gradient, query, key, value))


_OURS: dict[str, Callable[..., int]] = {
    "mkldnn_rnn_layer": _rnn,
    "mkldnn_rnn_layer_backward": _rnn_backward,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "mv": lambda matrix, vector: 2 * math.prod(matrix),  # noqa: ARG005
    "addmv": lambda bias, matrix, *_: 2 * math.prod(matrix),  # noqa: ARG005
    "dot": lambda a, b: 2 * math.prod(a),  # noqa: ARG005
}


@lru_cache(maxsize=1)
def _formulas() -> dict[str, Callable[..., int]]:
    torchs = {str(op).removeprefix("aten."): formula for op, formula in flop_registry.items()}
    return {**_OURS, **{name: _with_result(name, formula) for name, formula in torchs.items()}}


def _with_result(name: str, formula: Callable[..., Any]) -> Callable[..., int]:
    packet = getattr(torch.ops.aten, name, None)
    schema = getattr(packet, packet.overloads()[0])._schema if packet is not None else None
    positional = sum(not a.kwarg_only for a in schema.arguments) if schema is not None else 0

    def call(*arguments: Value, out_val: Value = None) -> int:
        return int(formula(*arguments[:positional], out_val=out_val))

    call.takes_result = True  # type: ignore[attr-defined]
    return call


def names() -> frozenset[str]:
    """Operators, without their namespace, that have a formula."""
    return frozenset(_formulas())


def of_call(name: str, values: Sequence[Any], result: Any) -> int:
    """As `flops`, of a call that is at hand: `values` by the schema's arguments."""
    results = result if isinstance(result, list | tuple) else (result,)
    words = [len(values), *(word for value in values for word in _words(value))]
    words += [len(results), *(word for value in results for word in _words(value))]
    return flops(name, tuple(words))


def _words(value: Any) -> list[int]:
    """As shim/recorder.cpp writes a value."""
    if isinstance(value, torch.Tensor):
        return [1, value.dim(), *map(int, value.shape)]
    if isinstance(value, bool | int):
        return [2, int(value)]
    if isinstance(value, list | tuple):
        if value and all(isinstance(part, bool | int) for part in value):
            return [3, len(value), *map(int, value)]
        return [4, len(value), *(word for part in value for word in _words(part))]
    return [0]


def worded() -> list[str]:
    """Operators, by schema name, of which `flops` needs the words."""
    return [f"aten::{name}" for name in _formulas()]


@lru_cache(maxsize=4096)
def flops(name: str, words: tuple[int, ...]) -> int:
    """Of one call of operator `name`; -1 if its formula does not take what it was called with."""
    formula = _formulas().get(name)
    if formula is None:
        return -1
    arguments, at = _several(words, 0)
    results, _ = _several(words, at)
    try:
        if hasattr(formula, "takes_result"):
            return formula(*arguments, out_val=results[0] if len(results) == 1 else results)
        return formula(*arguments)
    except Exception as error:  # another torch's overload: the count is unknown, the step goes on
        if is_interrupt(error):
            raise
        return -1


def _several(words: Sequence[int], at: int) -> tuple[list[Value], int]:
    values = []
    count, at = words[at], at + 1
    for _ in range(count):
        value, at = _one(words, at)
        values.append(value)
    return values, at


def _one(words: Sequence[int], at: int) -> tuple[Value, int]:
    kind = words[at]
    if kind == 0:
        return None, at + 1
    if kind == 2:
        return words[at + 1], at + 2
    count = words[at + 1]
    if kind == 4:
        return _several(words, at + 1)
    return list(words[at + 2 : at + 2 + count]), at + 2 + count
