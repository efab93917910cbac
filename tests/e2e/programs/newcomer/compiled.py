"""torch.compile, with the back end that is named; without a word, with the one that needs no compiler of C++."""

import hashlib
import sys

import torch
from torch import nn

if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU())])
    optimizer = torch.optim.AdamW(model.parameters())
    step = torch.compile(model, backend=sys.argv[1] if len(sys.argv) > 1 else "aot_eager")
    for _ in range(8):
        loss = step(torch.randn(16, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item().hex())
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
