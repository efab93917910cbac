"""A GPT-2 in a loop of one's own: gpt2.py 12 has the size of the smallest that was published."""

import hashlib
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

if __name__ == "__main__":
    torch.manual_seed(0)
    small = {"vocab_size": 256, "n_positions": 64, "n_embd": 96, "n_layer": 4, "n_head": 4}
    config = GPT2Config(**({} if sys.argv[1:] == ["12"] else small), bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(8):
        tokens = torch.randint(256, (2, 64))
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(step, loss.item().hex())
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
