"""Orders of ranks are those of torch's samplers, bit for bit."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from torch.utils.data import DistributedSampler, RandomSampler, TensorDataset  # noqa: E402

from sentinel.samples import Order  # noqa: E402


def permutation(n: int, seed: int):
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).numpy()


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("n", "world"), [(10, 1), (10, 2), (11, 3), (12, 3), (100, 7), (3, 5), (1, 4)])
def test_each_rank_has_the_order_of_a_distributed_sampler(n, world, drop_last) -> None:
    for rank in range(world):
        order = Order(seed=5, world=world, rank=rank, drop_last=drop_last)
        for epoch in (0, 3):
            sampler = DistributedSampler(
                TensorDataset(torch.zeros(n)), world, rank, shuffle=True, seed=5, drop_last=drop_last
            )
            sampler.set_epoch(epoch)
            found = order.of_rank(permutation(n, order.epoch_seed(epoch)))
            assert found.tolist() == list(sampler)
            assert len(found) == order.per_rank(n)


def test_one_rank_has_the_order_of_a_random_sampler() -> None:
    sampler = RandomSampler(range(1000), generator=torch.Generator().manual_seed(7))
    assert Order(seed=7).of_rank(permutation(1000, 7)).tolist() == list(sampler)
