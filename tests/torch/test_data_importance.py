"""A loader that selects by loss: what is delivered, kept, told and resumed."""

from __future__ import annotations

import io
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from torch import Tensor  # noqa: E402

import sentinel.data  # noqa: E402
from sentinel.core.errors import UsageError  # noqa: E402
from sentinel.data import Importance  # noqa: E402
from sentinel.data.importance_loading import NO_LOSSES, ImportanceLoader  # noqa: E402
from tests.data_files import number_of  # noqa: E402
from tests.torch.loaders import COUNT, Numbers  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_cache")

SELECTING = Importance(beta=1, warm_up=1, reuse_factor=3)


def loader_of(source: Any, order: Importance = SELECTING, **options: Any) -> ImportanceLoader:
    given = {"batch_size": 32, "memory": "20%", "unit": 16, **options}
    made = sentinel.data.loader(source, number_of, order=order, **given)
    assert isinstance(made, ImportanceLoader)
    return made


def loss_of(sample: Any) -> Any:
    """Which does not change: that of the last sample is highest."""
    return sample / COUNT


def epoch_of(loader: ImportanceLoader, batches: int = COUNT) -> list[int]:
    found: list[int] = []
    for number, batch in enumerate(loader, 1):
        found += batch.tolist()
        loader.report_losses(loss_of(batch))
        if number == batches:
            break
    return found


@pytest.mark.parametrize(("workers", "unit"), [(0, 16), (2, 16), (2, 1)])
def test_samples_of_high_loss_are_delivered_more_often(tars: list[str], workers: int, unit: int) -> None:
    loader = loader_of(tars, workers=workers, unit=unit)
    epochs = []
    for _ in range(6):
        expected = len(loader)
        epochs.append(epoch_of(loader))
        assert -(-len(epochs[-1]) // 32) == expected
    for epoch in (0, 3):
        assert sorted(epochs[epoch]) == list(range(COUNT))
    for epoch in (1, 2, 4, 5):
        delivered = set(epochs[epoch])
        assert len(delivered) == len(epochs[epoch]) == pytest.approx(COUNT / 2, rel=0.2)
        assert np.mean(epochs[epoch]) == pytest.approx(COUNT * 2 / 3, rel=0.08)
    feed = loader.report().feed
    assert feed.direct_reads == 0
    assert feed.hits + feed.source_reads == feed.samples == sum(map(len, epochs))
    if unit == 1:
        assert feed.hits > 0.15 * (feed.samples - COUNT)  # kept from the epoch before, all of them
    loader.close()


def test_it_goes_on_exactly_with_other_workers_and_memory(tars: list[str]) -> None:
    whole = loader_of(tars)
    expected = [epoch_of(whole) for _ in range(4)]
    first = loader_of(tars)
    assert [epoch_of(first), epoch_of(first, 4)] == [expected[0], expected[1][:128]]
    kept = io.BytesIO()
    torch.save(first.state_dict(), kept)
    assert len(kept.getvalue()) < 4 * COUNT + 4096
    second = loader_of(tars, workers=2, memory="40%")
    second.load_state_dict(torch.load(io.BytesIO(kept.getvalue()), weights_only=True))
    assert len(second) == -(-len(expected[1]) // 32)
    assert epoch_of(second) == expected[1][128:]
    assert [epoch_of(second), epoch_of(second)] == expected[2:]
    second.load_state_dict(second.state_dict())
    assert second.epoch == 4
    second.close()


def test_a_state_after_the_last_batch_leaves_nothing_of_the_epoch(tars: list[str]) -> None:
    loader = loader_of(tars)
    epoch_of(loader)
    state, delivered = {}, 0
    for batch in loader:
        state, delivered = loader.state_dict(), delivered + len(batch)
    assert delivered < COUNT
    again = loader_of(tars)
    again.load_state_dict(state)
    assert epoch_of(again) == []
    assert again.epoch == 2


def test_states_of_other_orders_are_refused(tars: list[str]) -> None:
    loader = loader_of(tars)
    exact = sentinel.data.loader(tars, number_of, batch_size=32, memory="20%")
    with pytest.raises(UsageError, match="the state is of order='exact'"):
        loader.load_state_dict(exact.state_dict())
    with pytest.raises(UsageError, match="order='importance', the loader 'exact'"):
        exact.load_state_dict(loader.state_dict())
    with pytest.raises(UsageError, match=r"'beta': 1, .* the loader has .*'beta': 2"):
        loader_of(tars, Importance(beta=2, warm_up=1)).load_state_dict(loader.state_dict())
    with pytest.raises(UsageError, match="losses of the state are damaged"):
        loader.load_state_dict({**loader.state_dict(), "losses": torch.zeros(3)})
    with pytest.raises(UsageError, match="not the state of a loader"):
        loader.load_state_dict([])


class OnDevice(Tensor):
    """As a tensor of a GPU: NumPy has no access to it."""

    def cpu(self, *_: Any) -> Tensor:
        return self.as_subclass(Tensor)

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()")


def test_a_state_that_was_loaded_onto_a_device_is_taken(tars: list[str]) -> None:
    loader, again = loader_of(tars), loader_of(tars)
    epoch_of(loader, 4)
    state = loader.state_dict()
    again.load_state_dict({**state, "losses": state["losses"].as_subclass(OnDevice)})
    assert torch.equal(again.state_dict()["losses"].nan_to_num(), state["losses"].nan_to_num())
    assert epoch_of(again) == epoch_of(loader_of(tars))[128:]


def test_a_state_that_cannot_be_taken_changes_nothing(tars: list[str]) -> None:
    class Gone(OnDevice):
        def cpu(self, *_: Any) -> Tensor:
            raise RuntimeError("the device is gone")

    loader, again = loader_of(tars), loader_of(tars)
    epoch_of(loader, 4)
    state = loader.state_dict()
    with pytest.raises(RuntimeError, match="the device is gone"):
        again.load_state_dict({**state, "losses": state["losses"].as_subclass(Gone)})
    assert len(epoch_of(again)) == COUNT


def test_losses_are_for_the_last_batch(tars: list[str]) -> None:
    loader = loader_of(tars)
    with pytest.raises(UsageError, match="no batch was delivered"):
        loader.report_losses([1.0])
    with pytest.raises(UsageError, match="no batch was delivered"):
        _ = loader.weights
    for _ in loader:
        with pytest.raises(UsageError, match=r"losses of shape \(\) for a batch of 32 samples"):
            loader.report_losses(torch.tensor(1.0))
        loader.report_losses(np.full(32, 1e30))  # more than float16 has
        assert loader.weights.tolist() == [1.0] * 32
        break


def test_weights_stand_for_the_samples_that_were_left_out(tars: list[str]) -> None:
    loader = loader_of(tars, Importance(beta=1, warm_up=1, unbiased=True))
    epoch_of(loader)
    total = 0.0
    for batch in loader:
        assert torch.allclose(loader.weights, COUNT / (batch + 1), rtol=0.05)
        total += float(loader.weights.sum())
        loader.report_losses(loss_of(batch))
    assert total == pytest.approx(COUNT, rel=0.4)


def test_the_first_caveat_tells_of_substitutes(tars: list[str]) -> None:
    loader = loader_of(tars, Importance(beta=1, warm_up=1, substitute=True))
    assert NO_LOSSES in loader.report().caveats
    plain = loader_of(tars)
    epochs = [(epoch_of(loader), epoch_of(plain)) for _ in range(3)]
    unlike = sum(a != b for ours, theirs in epochs for a, b in zip(ours, theirs, strict=True))
    assert unlike > 100
    assert loader.report().caveats[0] == f"{unlike} samples were delivered in place of those that were drawn"
    assert not plain.report().caveats


def test_a_dataset_has_no_bytes_to_keep() -> None:
    with pytest.raises(UsageError, match=r"order=Importance.* needs files"):
        sentinel.data.loader(Numbers(), batch_size=2, memory="1MiB", order=Importance())


def test_ranks_that_cannot_tell_one_another_are_refused(tars: list[str]) -> None:
    with pytest.raises(UsageError, match="2 ranks must exchange their losses"):
        loader_of(tars, rank=0, world=2)


def _rank(rank: int, meeting: str, paths: list[str], found: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    loader = loader_of(paths, memory="1MiB")
    epochs = [epoch_of(loader), epoch_of(loader)]
    epochs.append(epoch_of(loader, 2))
    again = loader_of(paths, memory="1MiB")
    again.load_state_dict(loader.state_dict())
    rest = epoch_of(again)
    unlike = loader_of(paths, Importance(beta=1 + rank), memory="1MiB")
    with pytest.raises(UsageError, match="rank 1 selects by other losses or another Importance than rank 0"):
        iter(unlike)
    found.put((rank, [*epochs, rest], loader.state_dict()["losses"][0].tolist()))
    torch.distributed.destroy_process_group()


def test_ranks_select_alike(tars: list[str], tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    ranks = [context.Process(target=_rank, args=(rank, str(tmp_path / "meet"), tars, found)) for rank in range(2)]
    for process in ranks:
        process.start()
    (_, ours, losses), (_, theirs, same) = sorted(found.get(timeout=300) for _ in ranks)
    for process in ranks:
        process.join(timeout=600)
    assert losses == same
    assert sorted(ours[0] + theirs[0]) == list(range(COUNT))
    alone = loader_of(tars)
    epoch_of(alone)
    selected = epoch_of(alone)
    assert ours[1] == selected[::2]
    assert theirs[1][: len(selected) // 2] == selected[1::2]
    last = epoch_of(alone)
    assert ours[2] + ours[3] == last[::2]
