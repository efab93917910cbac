"""A loop of accelerate's: two micro-batches a step, gradients clipped."""

import hashlib

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.GELU())])
    data = DataLoader(TensorDataset(torch.randn(96, 64), torch.randn(96, 64)), batch_size=8)
    model, optimizer, data = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), data)
    for _ in range(2):
        for batch, target in data:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(batch), target)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            print(loss.item().hex())
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
