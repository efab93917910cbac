"""Small tensors of a batch go inside the message from a worker: what arrives is what was sent."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from sentinel.data import small_tensors  # noqa: E402
from sentinel.data.small_tensors import ByValue  # noqa: E402

pytestmark = pytest.mark.needs("torch")


ROOM = 8192


def with_small_ones_inside(batch: Any) -> Any:
    return small_tensors.with_small_ones_inside(batch, ROOM)


class Pair(NamedTuple):
    left: Any
    right: Any


class Own(torch.Tensor):  # type: ignore[misc,name-defined]
    """A tensor of a user's class."""


def sent(batch: Any) -> Any:
    """As it arrives. Only a ByValue is a few bytes; a tensor would be pickled with its storage."""
    file = io.BytesIO()
    pickle.Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(with_small_ones_inside(batch))
    return pickle.loads(file.getvalue())


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.float32, torch.bfloat16, torch.complex64, torch.bool, torch.uint8, torch.float8_e4m3fn]
)
@pytest.mark.parametrize("shape", [(), (1,), (256,), (3, 2, 4)])
def test_values_type_and_shape_arrive(dtype: Any, shape: tuple[int, ...]) -> None:
    tensor = torch.randint(0, 2, shape).to(dtype)
    assert isinstance(with_small_ones_inside(tensor), ByValue)
    found = sent(tensor)
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(found.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))
    found.reshape(-1).view(torch.uint8).add_(1)  # it can be written to


def test_containers_arrive_as_they_were() -> None:
    one, two = torch.arange(3), torch.arange(4.0)
    batch = {"a": [one, (two, "word")], "b": Pair(one, None), 3: torch.Size([2]), "c": ["word", 1, 2.5, None]}
    found = sent(batch)
    assert found["a"][0].tolist() == [0, 1, 2]
    assert found["a"][1][0].tolist() == two.tolist()
    assert found["a"][1][1] == "word"
    assert isinstance(found["b"], Pair)
    assert found["b"].left is found["a"][0]  # one tensor stays one
    assert found["c"] == ["word", 1, 2.5, None]
    assert found[3] == torch.Size([2])
    assert batch["a"][0] is one  # what was given is not changed


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_cannot_go_as_bytes_stays_as_it_is() -> None:
    base, whole, part = torch.zeros(8), torch.zeros(8), torch.zeros(8)
    stay = [
        torch.zeros(ROOM + 1, dtype=torch.uint8),
        torch.zeros(0),
        base[2:4],
        torch.zeros(4, 4).t(),
        torch.zeros(2, requires_grad=True),
        torch.eye(3).to_sparse(),
        torch.zeros(2).as_subclass(Own),
        torch.zeros(2, dtype=torch.complex64).conj(),
        torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
        torch._efficientzerotensor((3,)),
        whole,  # of one memory: what is written to one is seen in the other
        whole.view(2, 4),
        part,
        part[:4],
    ]
    found = with_small_ones_inside(stay)
    assert all(one is other for one, other in zip(found, stay, strict=True))
    deep: Any = torch.zeros(1)
    for _ in range(9):
        deep = [deep]
    assert with_small_ones_inside(deep) is deep
    for other in (OrderedDict(a=base), SimpleNamespace(a=base)):  # it may hold the same tensors
        batch = [base, other]
        assert with_small_ones_inside(batch) is batch
    long = [base, list(range(5000))]
    assert with_small_ones_inside(long) is long


def test_a_batch_that_holds_itself_is_sent_as_it_is() -> None:
    batch: list[Any] = [torch.zeros(2)]
    batch.append(batch)
    assert with_small_ones_inside(batch) is batch


class Checked(NamedTuple("Checked", [("one", Any)])):
    """A named tuple that looks at what it is made of."""

    def __new__(cls, one: Any) -> Checked:
        assert isinstance(one, torch.Tensor)
        return super().__new__(cls, one)


def test_a_named_tuple_is_made_of_tensors_only() -> None:
    found = sent(Checked(torch.arange(2)))
    assert isinstance(found, Checked)
    assert found.one.tolist() == [0, 1]
