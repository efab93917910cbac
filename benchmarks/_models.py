"""Full-sized models with random weights and inputs, one training step each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers
from torch import Tensor, nn


@dataclass(frozen=True)
class Job:
    """A model, its optimizer, and the loss of one batch."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[], Tensor]


def _tokens(rows: int, columns: int, vocabulary: int) -> Tensor:
    return torch.randint(vocabulary, (rows, columns))


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def gpt2() -> Job:
    """GPT-2 small: 12 layers of 768."""
    config = transformers.GPT2Config(n_positions=128)
    model = transformers.GPT2LMHeadModel(config).train()
    tokens = _tokens(2, 128, config.vocab_size)
    return Job(model, _adamw(model), lambda: model(tokens, labels=tokens).loss)


def bert() -> Job:
    """BERT base, masked language modelling."""
    config = transformers.BertConfig()
    model = transformers.BertForMaskedLM(config).train()
    tokens = _tokens(4, 64, config.vocab_size)
    return Job(model, _adamw(model), lambda: model(tokens, labels=tokens).loss)


def resnet50(rows: int = 8) -> Job:
    """ResNet-50 at 224 pixels."""
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000)).train()
    return _classifier(lambda images: model(images).logits, model, rows)


def mobilenetv2(rows: int = 16) -> Job:
    """MobileNetV2 at 224 pixels."""
    model = transformers.MobileNetV2ForImageClassification(transformers.MobileNetV2Config(num_labels=1000)).train()
    return _classifier(lambda images: model(images).logits, model, rows)


_VGG16 = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels, and convolutions of 3×3 with so many, before each pooling."""


def vgg16(rows: int = 8) -> Job:
    """VGG-16 at 224 pixels, without dropout."""
    layers: list[nn.Module] = []
    before = 3
    for channels, convolutions in _VGG16:
        for _ in range(convolutions):
            layers += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU()]
            before = channels
        layers.append(nn.MaxPool2d(2))
    head = [nn.Flatten(), nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU()]
    model = nn.Sequential(*layers, *head, nn.Linear(4096, 1000)).train()
    return _classifier(model, model, rows)


def _classifier(logits: Callable[[Tensor], Tensor], model: nn.Module, rows: int) -> Job:
    images, labels = torch.randn(rows, 3, 224, 224), torch.randint(1000, (rows,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return Job(model, optimizer, lambda: nn.functional.cross_entropy(logits(images), labels))


class _Lstm(nn.Module):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(self.embedding(tokens))[0])
        return logits


def lstm(rows: int = 20) -> Job:
    """Two layers of 650, as in the Penn Treebank language models."""
    model = _Lstm(10_000, 650).train()
    tokens = _tokens(rows, 36, 10_000)
    return Job(
        model,
        _adamw(model),
        lambda: nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()),
    )


JOBS: dict[str, Callable[..., Job]] = {
    "gpt2": gpt2,
    "resnet50": resnet50,
    "bert": bert,
    "mobilenetv2": mobilenetv2,
    "lstm": lstm,
    "vgg16": vgg16,
}
"""By name. Those of images, and `lstm`, take how many samples are in a batch."""


def training_step(job: Job) -> Callable[[], float]:
    """What trains `job` one step and returns its loss."""

    def step() -> float:
        job.optimizer.zero_grad()
        loss = job.loss()
        loss.backward()
        job.optimizer.step()
        return loss.item()

    return step
