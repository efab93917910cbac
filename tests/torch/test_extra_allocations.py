"""A line that looks at a value in the middle of a layer, in some steps only, costs itself and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'sentinel-hm[torch]'")

import sentinel  # noqa: E402
from sentinel.session import current  # noqa: E402

pytestmark = pytest.mark.needs("torch", "compiler")

STEPS = 14
LOOKS: dict[str, Callable[[Any], object]] = {
    "nothing": lambda x: None,
    "item": lambda x: x.mean().item(),
    "a temporary as long as what is planned": lambda x: x.abs().mean().item(),
    "a chain of temporaries": lambda x: (x - x.mean()).pow(2).mean().sqrt().item(),
    "a shorter temporary": lambda x: bool(torch.isnan(x).any()),
    "a longer temporary": lambda x: torch.histc(x.double(), 300).max().item(),
    "a small tensor that is kept": lambda x: x[:, :2].clone(),
}


def train(look: Callable[[Any], object], *, managed: bool) -> tuple[list[float], list[Any]]:
    """Losses and parameters; every other step looks at an activation in the middle of the second block."""
    torch.manual_seed(5)
    embed, head = torch.nn.Embedding(53, 64), torch.nn.Linear(64, 53)
    blocks = torch.nn.ModuleList(
        torch.nn.TransformerEncoderLayer(64, 2, 96, dropout=0.1, batch_first=True) for _ in range(4)
    )
    model = torch.nn.ModuleDict({"embed": embed, "blocks": blocks, "head": head})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses: list[float] = []
    kept: list[object] = []

    def watch(module: Any, given: tuple[Any, ...], out: Any) -> None:
        if len(losses) % 2:
            kept[:] = [look(given[0].detach())]

    blocks[1].linear1.register_forward_hook(watch)
    with sentinel.annotate(model, optimizer) if managed else contextlib.nullcontext():
        for i in range(STEPS):
            if managed and i == 0:
                sentinel.start_profile(fast="30%", slow="emulated:cxl-asic-x8", tracker="ops")
            words = torch.randint(0, 53, (8, 24), generator=torch.Generator().manual_seed(i))
            x = embed(words)
            for block in blocks:
                x = block(x)
            loss = torch.nn.functional.cross_entropy(head(x).flatten(0, 1), words.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.item()))
            if managed and i == 0:
                sentinel.end_profile()
    return losses, [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("name", LOOKS)
def test_steps_that_look_at_a_value_are_of_the_same_shape(name: str) -> None:
    expected = train(LOOKS[name], managed=False)
    found = train(LOOKS[name], managed=True)
    session = current()
    assert session is not None
    try:
        assert found[0] == expected[0]
        assert all(torch.equal(a, b) for a, b in zip(found[1], expected[1], strict=True))
        (bucket,) = session._applying.buckets
        served = bucket.served
        assert served.steps == STEPS - 3  # profiled, waited, recorded: none is of an unknown shape
        assert session._applying.strangers.steps == 0
        assert session._lookout.in_vain == 0
        assert served.missed_bytes + served.fitted_bytes < 0.005 * served.asked_bytes
        if name == "nothing":
            assert served.missed_bytes == served.fitted_bytes == 0
    finally:
        sentinel.stop()
