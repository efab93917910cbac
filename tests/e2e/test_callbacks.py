"""Loops that libraries run, with a callback or a `with`: the same bits as without, and a plan that was applied."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sentinel
from sentinel import session
from sentinel.runtime import RUNTIME
from sentinel.session import auto

pytestmark = [pytest.mark.needs("torch", "compiler"), pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

EMULATED: dict[str, Any] = {"fast": "30%", "slow": "emulated:cxl-asic-x8", "tracker": "ops"}


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    annotated = RUNTIME.models.in_order()
    monkeypatch.setattr(RUNTIME, "configured", None)
    monkeypatch.setattr(auto, "_alive", list)  # no optimizers of other tests
    torch.ones(1).sqrt()  # by one thread first: docs/decisions/0120
    yield
    assert not sentinel.active()
    assert RUNTIME.finder is None
    assert set(RUNTIME.models.in_order()) <= set(annotated)


Trained = tuple[list[float], list[torch.Tensor]]


def same_with_and_without(train: Callable[[bool], Trained]) -> None:
    """`train(placed)`: losses and parameters. A plan is applied with, and there is no session without."""
    before = RUNTIME.last
    losses, parameters = train(False)
    assert RUNTIME.last is before
    placed, others = train(True)
    assert placed == losses
    assert len(losses) >= 6
    assert all(map(torch.equal, parameters, others))
    assert sentinel.report().headline["kind"] == "emulated"
    last = session.current()
    assert last is not None
    assert len(last.stop().steps) >= 3


def copied(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.GELU())])


def data(rows: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(rows, 64), torch.randn(rows, 64)), batch_size=8)


@pytest.mark.needs("transformers", "accelerate")
def test_the_trainer_of_transformers(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments

    from sentinel.integrations import TrainerCallback

    def train(placed: bool) -> Trained:
        torch.manual_seed(0)
        names = {"bos_token_id": 0, "eos_token_id": 0}
        config = GPT2Config(vocab_size=64, n_positions=32, n_embd=48, n_layer=2, n_head=2, **names)
        rows = [{"input_ids": row, "labels": row} for row in torch.randint(64, (32, 32))]
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4,
            max_steps=8,
            eval_strategy="steps",
            eval_steps=4,
            save_strategy="no",
            logging_steps=1,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        )
        ours = [TrainerCallback(**EMULATED, report=tmp_path / "r.html")] if placed else []
        model = GPT2LMHeadModel(config)
        trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:8], callbacks=ours)
        trainer.remove_callback(PrinterCallback)  # it prints times
        trainer.train()
        return [row["loss"] for row in trainer.state.log_history if "loss" in row], copied(model)

    same_with_and_without(train)
    assert (tmp_path / "r.html").exists()


@pytest.mark.needs("pytorch-lightning")
def test_lightning(tmp_path: Path) -> None:
    import pytorch_lightning as lightning

    from sentinel.integrations import LightningCallback

    class Regression(lightning.LightningModule):
        def __init__(self, fails_at: int = -1) -> None:
            super().__init__()
            self.net, self.losses, self.fails_at = net(), [], fails_at

        def training_step(self, batch: Any, number: int) -> Any:
            if number == self.fails_at:
                raise ZeroDivisionError
            loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
            self.losses.append(loss.item())
            return loss

        def validation_step(self, batch: Any, number: int) -> None:
            self.losses.append(nn.functional.mse_loss(self.net(batch[0]), batch[1]).item())

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    quiet |= {"logger": False, "accelerator": "cpu", "default_root_dir": str(tmp_path)}

    def train(placed: bool) -> Trained:
        module = Regression()
        rows = data(48)
        ours = [LightningCallback(**EMULATED)] if placed else []
        lightning.Trainer(max_epochs=2, callbacks=ours, **quiet).fit(module, rows, rows)
        return module.losses, copied(module)

    same_with_and_without(train)
    failing = lightning.Trainer(max_epochs=1, callbacks=[LightningCallback(**EMULATED)], **quiet)
    with pytest.raises(ZeroDivisionError):
        failing.fit(Regression(fails_at=5), data(48))


@pytest.mark.needs("accelerate")
def test_a_loop_of_accelerates_in_one_line() -> None:
    from accelerate import Accelerator

    def train(placed: bool) -> Trained:
        accelerator, losses = Accelerator(cpu=True, gradient_accumulation_steps=2), []
        model = net()
        model, optimizer, rows = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), data(96))
        with sentinel.placing(**EMULATED) if placed else nullcontext():
            for batch, target in rows:
                with accelerator.accumulate(model):
                    loss = nn.functional.mse_loss(model(batch), target)
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                losses.append(loss.item())
        return losses, copied(model)

    same_with_and_without(train)


PAGE = Path(__file__).parents[2] / "docs" / "loops.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


@pytest.mark.parametrize(
    "number",
    [
        0,
        pytest.param(1, marks=pytest.mark.needs("transformers", "accelerate")),
        pytest.param(2, marks=pytest.mark.needs("pytorch-lightning")),
        3,
    ],
)
def test_the_page_says_what_works(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[number], str(PAGE), "exec"), {"__name__": "__main__"})
    assert len(BLOCKS) == 5  # the last one is of logging: tests/unit/test_progress.py
    assert sentinel.report().headline["kind"] in ("declared", "executed")
    assert (tmp_path / "report.html").exists()
