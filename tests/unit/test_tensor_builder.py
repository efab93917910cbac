"""Tensors as a walk along the logs builds them: names, roles, small storages that count as one."""

from __future__ import annotations

from sentinel.core.trace import BORN, FREED, READ, LayerId
from sentinel.profiler.tensor_builder import SMALL_REASON, Row, TensorBuilder, finalize

RING = (LayerId("a", 0, "forward"), LayerId("b", 0, "forward"))


def test_roles_follow_from_who_made_and_who_read_a_tensor() -> None:
    builders = [
        TensorBuilder(0, 8, -1, written=True),
        TensorBuilder(8, 8, -1),
        TensorBuilder(16, 8, 0, maker="mm", read_backward=True),
        TensorBuilder(24, 8, 0, maker="mm", made_backward=True, read_backward=True),
        TensorBuilder(32, 8, 1, name="weight", role="param"),
    ]
    tensors, _ = finalize(builders, [], RING)
    assert [tensor.role for tensor in tensors] == ["workspace", "input", "activation", "workspace", "param"]


def test_names_are_unique_and_count_within_layer_and_operator() -> None:
    made = [TensorBuilder(8 * n, 8, layer, maker="mm") for n, layer in enumerate((0, 0, 1))]
    given = [
        TensorBuilder(64, 8, -1, name="weight", role="param"),
        TensorBuilder(72, 8, -1, name="weight", role="param"),
    ]
    tensors, _ = finalize([*made, *given], [], RING)
    names = [tensor.name for tensor in tensors]
    assert names == [f"{RING[0]}/mm#0", f"{RING[0]}/mm#1", f"{RING[1]}/mm#0", "weight", "weight~2"]


def test_small_storages_of_one_stretch_are_one_tensor_as_large_as_ever() -> None:
    small = [TensorBuilder(8 * n, nbytes, 0, small=3) for n, nbytes in enumerate((100, 50, 70))]
    rows: list[Row] = [
        (BORN, 0, 0, -1, 100, 0, 1),
        (BORN, 0, 1, -1, 50, 0, 2),
        (FREED, 0, 0, -1, 100, 0, 3),
        (BORN, 0, 2, -1, 70, 0, 4),
        (READ, 0, 2, 5, 70, 0, 5),
        (FREED, 0, 1, -1, 50, 0, 6),
        (FREED, 0, 2, -1, 70, 0, 7),
    ]
    (tensor,), events = finalize(small, rows, RING)
    assert (tensor.nbytes, tensor.managed, tensor.reason) == (150, False, SMALL_REASON)
    assert [(row["kind"], row["nbytes"], row["time_ns"]) for row in events] == [
        (BORN, 150, 1),
        (READ, 70, 5),
        (FREED, 150, 7),
    ]
