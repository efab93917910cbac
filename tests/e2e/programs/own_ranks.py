"""Two ranks over gloo that no launcher tells of: KIND is "spawn", by torch.multiprocessing, or "lightning", by its own.

usage: own_ranks.py KIND FAST
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sentinel

RANKS, STEPS = 2, 12
ASKED: dict[str, Any] = {"slow": "emulated:cxl-asic-x8", "tracker": "ops", "report": "r.json"}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(128, 128), nn.GELU())])


def spawned(rank: int, meeting: str, fast: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    model = nn.parallel.DistributedDataParallel(net())
    optimizer = torch.optim.AdamW(model.parameters())
    with sentinel.placing(fast=fast, **ASKED):
        for step in range(STEPS):
            model(torch.full((16, 128), step + rank, dtype=torch.float32)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.distributed.destroy_process_group()


def by_lightning(fast: str) -> None:
    import pytorch_lightning as lightning

    from sentinel.integrations import LightningCallback

    class Regression(lightning.LightningModule):  # type: ignore[misc]  # of a library without types here
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, batch: Any, _: int) -> Any:
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    torch.set_num_threads(1)
    loader = DataLoader(TensorDataset(torch.ones(16 * RANKS * STEPS, 128)), batch_size=16)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy="ddp",
        max_steps=STEPS,
        enable_checkpointing=False,
        callbacks=[LightningCallback(fast=fast, **ASKED)],
        **quiet,
    )
    trainer.fit(Regression(), loader)


if __name__ == "__main__":
    kind, fast = sys.argv[1:]
    if kind == "spawn":
        torch.multiprocessing.spawn(spawned, (os.path.abspath("meeting"), fast), nprocs=RANKS)
    else:
        by_lightning(fast)
