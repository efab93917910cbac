"""DistributedDataParallel over gloo, as torchrun starts it."""

import gc
import hashlib

import torch
import torch.distributed
import torch.distributed.nn  # here, or it holds the process group after its end: see examples/10_three_ranks.py
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU())])
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(rank)
    losses = []
    for _ in range(8):
        loss = model(torch.randn(16, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()
    print(f"{rank} {' '.join(losses)} {digest}\n", end="", flush=True)  # in one piece: two ranks print
    del model, optimizer, loss
    gc.collect()  # they hold the process group
    torch.distributed.destroy_process_group()
