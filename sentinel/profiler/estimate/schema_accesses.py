"""What an operator's schema and name tell about the bytes that it touches, as shim/operators.cpp has it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

Table = Literal["none", "gather", "rows", "scatter"]
"""Of its first operand an operator reads as many bytes as it gives (gather), a row for each element of the second
(rows), or touches no more elements than another operand has (scatter)."""

_ASKS_ONLY = frozenset(
    {
        *("resize_", "resize_as_", "set_", "result_type", "is_same_size", "size", "stride", "numel", "requires_grad_"),
        *("retain_grad", "record_stream", "is_floating_point", "is_complex", "is_signed", "_version", "output_nr"),
        *("is_leaf", "_has_compatible_shallow_copy_type", "can_cast", "lift_fresh", "is_nonzero", "item"),
        *("_assert_tensor_metadata", "as_strided_", "t_", "transpose_", "swapdims_", "swapaxes_", "squeeze_"),
        *("unsqueeze_", "detach_"),
    }
)
"""They ask for sizes, kinds or room only, or change how an operand is seen."""
_READS_NOTHING = frozenset(
    {
        *("zero_", "fill_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_", "geometric_", "cauchy_"),
        "log_normal_",
    }
)
"""Their tensor arguments give a size and kind, not a value."""
_GATHER = ("index_select", "gather", "index", "take", "take_along_dim", "embedding", "masked_select")
_SCATTER = ("index_put_", "_index_put_impl_", "index_add_", "index_copy_", "index_fill_", "scatter_", "scatter_add_")
_TABLES: dict[str, Table] = {
    **dict.fromkeys(_GATHER, "gather"),
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), "rows"),
    **dict.fromkeys((*_SCATTER, "scatter_reduce_", "put_", "embedding_renorm_"), "scatter"),
}


@dataclass(frozen=True)
class Operator:
    """`name`: without its namespace. `touches`: false for views and what only asks for sizes. `reads`, `writes`: of
    each argument of the schema."""

    name: str
    touches: bool
    table: Table
    reads: tuple[bool, ...]
    writes: tuple[bool, ...]


@lru_cache(maxsize=4096)
def describe(overload: Any) -> Operator:
    """Of an OpOverload, once for each."""
    schema = overload._schema
    full: str = schema.name
    name = full.partition("::")[2] or full
    views = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    asks = name in _ASKS_ONLY or name.startswith(("empty", "new_empty", "sym_")) or full.startswith("prim::")
    blind = name in _READS_NOTHING or name.startswith("new_") or name.endswith("_like")
    statistics = "batch_norm" in name and "backward" not in name
    reads, writes = [], []
    for argument in schema.arguments:
        written = argument.alias_info is not None and argument.alias_info.is_write
        read = (
            not (blind and (written or not name.endswith("_")))
            and not argument.is_out
            and not (name == "copy_" and written)
        )
        # Only a gradient scaler makes a fused step write gradients, whatever its schema says.
        written &= not (name.startswith("_fused_") and argument.name == "grads")
        # Written in training, though schemas do not say so.
        reads.append(read)
        writes.append(written or (statistics and argument.name.startswith("running_")))
    return Operator(
        name if full.startswith("aten::") else full,
        not views and not asks,
        _TABLES.get(name, "none"),
        tuple(reads),
        tuple(writes),
    )
