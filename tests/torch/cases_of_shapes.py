"""Steps whose sizes, layers or batches are not those of the step before."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.torch.case_parts import Job, TiedLM, fit, lm_step, mlp, tokens


def data_dependent_shapes() -> Job:
    model = TiedLM()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    lengths = [48, 17, 48, 63, 5, 48, 33, 40, 48, 21, 9, 48]
    return Job([model], [opt], lambda i: lm_step(model, opt, i, lengths[i % len(lengths)]))


def shapes_that_take_turns() -> Job:
    """Two lengths, of which each comes to have a plan of its own."""
    model = TiedLM()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Job([model], [opt], lambda i: lm_step(model, opt, i, length=(32, 48)[i % 2]))


def smaller_last_batch() -> Job:
    model = mlp()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Job([model], [opt], lambda i: fit(model, opt, i, rows=24 if i % 3 == 2 else 64))


def skipped_experts() -> Job:
    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Linear(256, 256)
            self.experts = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))
            self.head = nn.Linear(256, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x).relu()
            chosen = int(x[0, 0].item() * 1e4) % 4
            for index, expert in enumerate(self.experts):
                if index != chosen:
                    x = x + expert(x).relu()
            return self.head(x)

    model = Mixture()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Job([model], [opt], lambda i: fit(model, opt, i))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(512, 64)
        self.lstm = nn.LSTM(64, 96, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(96, 512)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embed(ids)
        if lengths is None:
            return self.head(self.lstm(x)[0])
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=ids.shape[1])
        return self.head(out)


def packed_sequences() -> Job:
    model = Tagger()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(i: int) -> float:
        ids = tokens(i, rows=8, length=16)  # each token of a sequence is some tensors more to plan
        lengths = torch.randint(4, 17, (8,), generator=torch.Generator().manual_seed(i))
        loss = F.cross_entropy(model(ids, lengths).flatten(0, 1), ids.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    return Job([model], [opt], step)


def dense_lstm() -> Job:
    model = Tagger()
    opt = torch.optim.Adagrad(model.parameters(), lr=1e-2)

    def step(i: int) -> float:
        ids = tokens(i, rows=8, length=32)
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    return Job([model], [opt], step)


def sparse_embedding() -> Job:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(4096, 64, mode="sum", sparse=True)
            self.mlp = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.mlp(self.bag(ids))

    model = Bag()
    opt = torch.optim.SGD(model.parameters(), lr=1e-1)

    def step(i: int) -> float:
        g = torch.Generator().manual_seed(i)
        ids, y = torch.randint(0, 4096, (32, 8), generator=g), torch.randint(0, 16, (32,), generator=g)
        loss = F.cross_entropy(model(ids), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    return Job([model], [opt], step)
