"""Parameters without memory of their own stop no session: they are not placed, and train to the bits of stock."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from torch.testing._internal.two_tensor import TwoTensor  # noqa: E402

import sentinel  # noqa: E402
from sentinel.profiler.names import persistent_tensors, storage_address  # noqa: E402
from tests.torch.bit_identity_cases import ASKED  # noqa: E402

pytestmark = pytest.mark.needs("torch", "compiler")


def lazy() -> Any:
    return torch.nn.Sequential(torch.nn.LazyLinear(64), torch.nn.ReLU(), torch.nn.LazyLinear(8))


def wrapping() -> Any:
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)])
    model[1].weight = torch.nn.Parameter(TwoTensor(torch.randn(64, 64), torch.randn(64, 64)))
    return model


def test_they_have_no_address() -> None:
    assert storage_address(lazy()[0].weight) == 0
    assert storage_address(wrapping()[1].weight) == 0
    assert [name for name, _, _ in persistent_tensors([wrapping()])] == [
        "0.weight",
        "0.bias",
        "1.bias",
        "2.weight",
        "2.bias",
    ]


@pytest.mark.parametrize("build", [lazy, wrapping])
@pytest.mark.parametrize("annotated", [True, False], ids=["annotated", "given"])
def test_a_model_with_some_trains_to_the_bits_of_stock(build: Any, annotated: bool) -> None:
    assert trained(build, None) == trained(build, annotated)


def trained(build: Any, annotated: bool | None) -> list[float]:
    """Losses; `annotated`: the model is, or is given to the session; None: there is none."""
    torch.manual_seed(5)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with sentinel.annotate(model, optimizer):
        if annotated is not None:
            sentinel.start_profile(*(() if annotated else (model, optimizer)), **ASKED)
        losses = []
        for i in range(6):
            loss = model(torch.randn(16, 64, generator=torch.Generator().manual_seed(i))).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
            if i == 0 and annotated is not None:
                sentinel.end_profile()
        if annotated is not None:
            assert sentinel.active()
            sentinel.report()
            sentinel.stop()
    return losses
