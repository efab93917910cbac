"""Lightning: the loop is the library's, and forward and backward run within the optimizer's step."""

import hashlib
import logging
import warnings

import pytorch_lightning as lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    """A small network with a validation."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.ReLU())])

    def training_step(self, batch, _number):
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        print(loss.item().hex())
        return loss

    def validation_step(self, batch, _number):
        print("validated", nn.functional.mse_loss(self.net(batch[0]), batch[1]).item().hex())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    torch.manual_seed(0)
    data = DataLoader(TensorDataset(torch.randn(64, 64), torch.randn(64, 64)), batch_size=8)
    module = Regression()
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    lightning.Trainer(accelerator="cpu", max_epochs=2, logger=False, **quiet).fit(module, data, data)
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in module.parameters())).hexdigest())
