"""The models that are traced, with random weights at full size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
import transformers as tf
from torch import nn
from torch.nn import functional as f

from benchmarks.traces.record import Job


def _leaves(*kinds: type[nn.Module]):  # type: ignore[no-untyped-def]
    """Modules of these kinds, in order."""
    return lambda model: [m for m in model.modules() if isinstance(m, kinds)]


class Unit(nn.Module):
    """Convolution, normalisation, activation."""

    def __init__(self, c: int, d: int, kernel: int, stride: int = 1, groups: int = 1, act: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c, d, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(d)
        self.act = nn.ReLU() if act else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.norm(self.conv(x)))


class Residual(nn.Module):
    """A basic block of a ResNet for small images."""

    def __init__(self, c: int, d: int, stride: int) -> None:
        super().__init__()
        self.one, self.two = Unit(c, d, 3, stride), Unit(d, d, 3, act=False)
        self.skip = Unit(c, d, 1, stride, act=False) if c != d else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return f.relu(self.two(self.one(x)) + self.skip(x))


def resnet32() -> nn.Module:
    """32 layers on 32x32 images: three stages of five blocks."""
    widths = [16] * 6 + [32] * 5 + [64] * 5
    blocks = [Residual(c, d, 1 if c == d else 2) for c, d in pairwise(widths)]
    return nn.Sequential(Unit(3, 16, 3), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Bottleneck(nn.Module):
    """A block of the deeper ResNets: narrow, convolve, widen fourfold."""

    def __init__(self, c: int, d: int, stride: int) -> None:
        super().__init__()
        self.narrow, self.middle = Unit(c, d, 1), Unit(d, d, 3, stride)
        self.widen = Unit(d, 4 * d, 1, act=False)
        self.skip = Unit(c, 4 * d, 1, stride, act=False) if c != 4 * d else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return f.relu(self.widen(self.middle(self.narrow(x))) + self.skip(x))


def resnet(blocks: Sequence[int], *, deep: bool) -> nn.Module:
    """A ResNet as for 224x224 images, with ten classes: so many blocks a stage, `deep` ones narrow and widen."""
    kind, wide = (Bottleneck, 4) if deep else (Residual, 1)
    layers: list[nn.Module] = [Unit(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    c = 64
    for stage, count in enumerate(blocks):
        d = 64 << stage
        for block in range(count):
            layers.append(kind(c, d, 2 if stage and not block else 1))
            c = wide * d
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 10))


def _cifar(*blocks: int, deep: bool) -> Job:
    """All 50,000 images of CIFAR-10 in one batch, as TierTrain's published code trains."""
    return Job(lambda: resnet(blocks, deep=deep), _classify(50_000, 32), _leaves(Unit, nn.Linear), adam=False)


def mobilenet() -> nn.Module:
    """MobileNet (2017) on 224x224 images."""
    plan = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
    layers: list[nn.Module] = [Unit(3, 32, 3, 2)]
    c = 32
    for d, stride in plan:
        layers += [Unit(c, c, 3, stride, groups=c), Unit(c, d, 1)]
        c = d
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 1000))


def _classify(batch: int, side: int):  # type: ignore[no-untyped-def]
    def loss(model: nn.Module) -> Iterator[torch.Tensor]:
        x, y = torch.empty(batch, 3, side, side), torch.empty(batch, dtype=torch.long)
        yield f.cross_entropy(model(x), y)

    return loss


class Cells(nn.Module):
    """Two LSTM layers, one time step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.x = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(2))
        self.h = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(2))

    def forward(self, x: torch.Tensor, state: list[tuple[torch.Tensor, torch.Tensor]]):  # type: ignore[no-untyped-def]
        after = []
        for ours, theirs, (h, c) in zip(self.x, self.h, state, strict=True):
            i, g, o, r = (ours(x) + theirs(h)).chunk(4, 1)
            c = torch.sigmoid(r) * c + torch.sigmoid(i) * torch.tanh(g)
            x = torch.sigmoid(o) * torch.tanh(c)
            after.append((x, c))
        return x, after


class Lstm(nn.Module):
    """Language model: 1500 wide, two layers, 35 steps, 10,000 words."""

    def __init__(self, width: int = 1500, words: int = 10_000) -> None:
        super().__init__()
        self.embed, self.cells, self.head = nn.Embedding(words, width), Cells(width), nn.Linear(width, words)
        self.width = width

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        state = [(x.new_zeros(len(ids), self.width), x.new_zeros(len(ids), self.width)) for _ in range(2)]
        out = []
        for t in range(ids.shape[1]):
            y, state = self.cells(x[:, t], state)
            out.append(y)
        return self.head(torch.stack(out, 1))


def _lstm_loss(model: nn.Module) -> Iterator[torch.Tensor]:
    ids = torch.empty(1024, 35, dtype=torch.long)
    yield f.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


class Dcgan(nn.Module):
    """Generator and discriminator for 64x64 images."""

    def __init__(self) -> None:
        super().__init__()
        up: list[nn.Module] = []
        for c, d in pairwise((100, 1024, 512, 256, 128)):
            conv = nn.ConvTranspose2d(c, d, 4, 2 if c != 100 else 1, 1 if c != 100 else 0, bias=False)
            up.append(nn.Sequential(conv, nn.BatchNorm2d(d), nn.ReLU()))
        last = nn.Sequential(nn.ConvTranspose2d(128, 3, 4, 2, 1), nn.Tanh())
        self.generator = nn.Sequential(*up, last)
        down: list[nn.Module] = [nn.Sequential(nn.Conv2d(3, 128, 4, 2, 1), nn.LeakyReLU(0.2))]
        for c, d in pairwise((128, 256, 512, 1024)):
            down.append(nn.Sequential(nn.Conv2d(c, d, 4, 2, 1), nn.BatchNorm2d(d), nn.LeakyReLU(0.2)))
        self.discriminator = nn.Sequential(*down, nn.Sequential(nn.Conv2d(1024, 1, 4), nn.Flatten()))


def _dcgan_blocks(model: nn.Module) -> Sequence[nn.Module]:
    assert isinstance(model, Dcgan)
    return [*model.generator, *model.discriminator]


def dcgan_loss(batch: int):  # type: ignore[no-untyped-def]
    """The two losses of a step on so many images."""

    def loss(model: nn.Module) -> Iterator[torch.Tensor]:
        assert isinstance(model, Dcgan)
        real, noise = torch.empty(batch, 3, 64, 64), torch.empty(batch, 100, 1, 1)
        ones, zeros = torch.ones(batch, 1), torch.zeros(batch, 1)
        made = model.generator(noise)
        bce = f.binary_cross_entropy_with_logits
        yield bce(model.discriminator(real), ones) + bce(model.discriminator(made.detach()), zeros)
        yield bce(model.discriminator(made), ones)

    return loss


def _tokens(batch: int, width: int, words: int):  # type: ignore[no-untyped-def]
    def loss(model: nn.Module) -> Iterator[torch.Tensor]:
        ids = torch.empty(batch, width, dtype=torch.long)
        out = model(input_ids=ids).logits
        yield f.cross_entropy(out.reshape(-1, words), ids.reshape(-1))

    return loss


class Vit(nn.Module):
    """ViT-B/16 on 224x224 images; transformers' own asks a fake tensor for its value."""

    def __init__(self, width: int = 768, depth: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.first, self.place = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.zeros(1, 197, width))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 12, 4 * width, 0.0) for _ in range(depth))
        self.head = nn.Linear(width, 1000)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), 1, -1), x], 1) + self.place
        x = x.transpose(0, 1)
        for layer in self.layers:
            x = layer(x)
        return self.head(x[0])


def _t5_loss(model: nn.Module) -> Iterator[torch.Tensor]:
    source, target = torch.empty(32, 256, dtype=torch.long), torch.empty(32, 128, dtype=torch.long)
    out = model(input_ids=source, decoder_input_ids=target).logits
    yield f.cross_entropy(out.reshape(-1, 32128), target.reshape(-1))


class Dlrm(nn.Module):
    """26 embedding bags of unlike size and two towers."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        sizes = [4_000_000, 2_000_000, 1_000_000, *[200_000] * 5, *[20_000] * 8, *[1000] * 10]
        self.bags = nn.ModuleList(nn.EmbeddingBag(n, width, mode="sum") for n in sizes)
        self.bottom = nn.ModuleList(self._tower(13, 512, 256, width))
        self.top = nn.ModuleList(self._tower(width + 27 * 26 // 2, 1024, 1024, 512, 256, 1))

    @staticmethod
    def _tower(*widths: int) -> list[nn.Module]:
        return [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(widths)]

    def forward(self, dense: torch.Tensor, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        x = dense
        for layer in self.bottom:
            x = layer(x)
        every = torch.stack([x, *[bag(ids, offsets) for bag in self.bags]], 1)
        pairs = torch.bmm(every, every.transpose(1, 2))
        i, j = torch.tril_indices(27, 27, -1)
        x = torch.cat([x, pairs[:, i, j]], 1)
        for layer in self.top:
            x = layer(x)
        return x


def _dlrm_loss(model: nn.Module) -> Iterator[torch.Tensor]:
    batch, hot = 16384, 10
    ids, offsets = torch.empty(batch * hot, dtype=torch.long), torch.empty(batch, dtype=torch.long)
    yield f.binary_cross_entropy_with_logits(model(torch.empty(batch, 13), ids, offsets), torch.empty(batch, 1))


class Moe(nn.Module):
    """A transformer whose feed-forward layers are eight experts of which each token takes two, capacity-bound."""

    def __init__(self, width: int = 1024, depth: int = 12, experts: int = 8, words: int = 32000) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.attend = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 16, 4, 0.0, batch_first=True) for _ in range(depth)
        )
        self.experts = nn.ModuleList(
            nn.ModuleList(
                nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
                for _ in range(experts)
            )
            for _ in range(depth)
        )

    def forward(self, input_ids: torch.Tensor):  # type: ignore[no-untyped-def]
        x = self.embed(input_ids)
        for attend, experts in zip(self.attend, self.experts, strict=True):
            x = attend(x)
            flat = x.flatten(0, 1)
            share = len(flat) * 2 // len(experts)
            y = torch.zeros_like(flat)
            for number, expert in enumerate(experts):
                low = number * (len(flat) - share) // max(len(experts) - 1, 1)
                y[low : low + share] += expert(flat[low : low + share])
            x = x + y.view_as(x)
        return tf.modeling_outputs.CausalLMOutput(logits=self.head(x))


def _moe_blocks(model: nn.Module) -> Sequence[nn.Module]:
    assert isinstance(model, Moe)
    experts = [e for layer in model.experts for e in layer]  # type: ignore[union-attr]
    return [model.embed, *model.attend, *experts, model.head]


_EAGER = {"attn_implementation": "eager"}
_BERT = tf.BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, **_EAGER)
_GPT2 = tf.GPT2Config(n_embd=1024, n_layer=24, n_head=16, use_cache=False, **_EAGER)
_GPT2_XL = tf.GPT2Config(n_embd=1600, n_layer=48, n_head=25, use_cache=False, **_EAGER)
_GPT2_719M = tf.GPT2Config(
    n_embd=1280, n_layer=36, n_head=20, vocab_size=8192, n_positions=256, use_cache=False, **_EAGER
)
_LLAMA = tf.LlamaConfig(
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=22,
    num_attention_heads=32,
    num_key_value_heads=4,
    use_cache=False,
    **_EAGER,
)
_T5 = tf.T5Config(d_model=768, d_ff=3072, num_layers=12, num_heads=12, use_cache=False)

MODELS: dict[str, Job] = {
    "resnet32": Job(resnet32, _classify(4096, 32), _leaves(Unit, nn.Linear), adam=False),
    "bert-large": Job(
        lambda: tf.BertForMaskedLM(_BERT),
        _tokens(32, 256, 30522),
        lambda m: [m.bert.embeddings, *_parts(m.bert.encoder.layer), m.cls],
    ),
    "lstm": Job(Lstm, _lstm_loss, lambda m: [m.embed, m.cells, m.head], adam=False),
    "dcgan": Job(Dcgan, dcgan_loss(2048), _dcgan_blocks),
    "mobilenet": Job(mobilenet, _classify(256, 224), _leaves(Unit, nn.Linear), adam=False),
    "gpt2": Job(
        lambda: tf.GPT2LMHeadModel(_GPT2),
        _tokens(8, 512, 50257),
        lambda m: [m.transformer.wte, *_parts(m.transformer.h), m.lm_head],
    ),
    "gpt2-xl": Job(
        lambda: tf.GPT2LMHeadModel(_GPT2_XL),
        _tokens(1, 1024, 50257),
        lambda m: [m.transformer.wte, *_parts(m.transformer.h), m.lm_head],
    ),
    "gpt2-719m": Job(
        lambda: tf.GPT2LMHeadModel(_GPT2_719M),
        _tokens(1, 256, 8192),
        lambda m: [m.transformer.wte, m.transformer.wpe, *m.transformer.h, m.transformer.ln_f, m.lm_head],
    ),
    "llama": Job(
        lambda: tf.LlamaForCausalLM(_LLAMA),
        _tokens(4, 512, 32000),
        lambda m: [m.model.embed_tokens, *_parts(m.model.layers), m.lm_head],
    ),
    "vit": Job(Vit, _classify(128, 224), lambda m: [m.patches, *m.layers, m.head]),
    "t5": Job(lambda: tf.T5ForConditionalGeneration(_T5), _t5_loss, lambda m: [*m.encoder.block, *m.decoder.block]),
    "dlrm": Job(Dlrm, _dlrm_loss, lambda m: [*m.bottom, *m.bags, *m.top], adam=False),
    "moe": Job(Moe, _tokens(8, 512, 32000), _moe_blocks),
    "resnet18-cifar": _cifar(2, 2, 2, 2, deep=False),
    "resnet34-cifar": _cifar(3, 4, 6, 3, deep=False),
    "resnet50-cifar": _cifar(3, 4, 6, 3, deep=True),
    "resnet152-cifar": _cifar(3, 8, 36, 3, deep=True),
}


def _parts(blocks: nn.ModuleList) -> list[nn.Module]:
    """Attention and feed-forward of each transformer block, and the block itself for what is left."""
    found: list[nn.Module] = []
    for block in blocks:
        found += [m for name, m in block.named_children() if name in ("attention", "attn", "self_attn")]
        found.append(block)
    return found
