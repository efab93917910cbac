"""A DCGAN that draws digits: two modules and two optimizers in one step, annotated one by one."""

from __future__ import annotations

import common
import torch
from torch import Tensor, nn

import sentinel

NOISE = 64


def up(inputs: int, outputs: int, stride: int = 2, padding: int = 1) -> nn.Sequential:
    """Twice as many pixels a side (with stride 1 and no padding: 1 to 4)."""
    convolution = nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


def down(inputs: int, outputs: int) -> nn.Sequential:
    """Half as many pixels a side."""
    convolution = nn.Conv2d(inputs, outputs, 4, 2, 1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2, inplace=True))


def generator(width: int) -> nn.Sequential:
    """(rows, NOISE, 1, 1) -> (rows, 1, 32, 32)."""
    last = nn.Sequential(nn.ConvTranspose2d(width, 1, 4, 2, 1), nn.Tanh())
    return nn.Sequential(up(NOISE, 4 * width, 1, 0), up(4 * width, 2 * width), up(2 * width, width), last)


def discriminator(width: int) -> nn.Sequential:
    """(rows, 1, 32, 32) -> (rows, 1, 1, 1)."""
    return nn.Sequential(down(1, width), down(width, 2 * width), down(2 * width, 4 * width), nn.Conv2d(4 * width, 1, 4))


def loss_of(logits: Tensor, truth: float) -> Tensor:
    """How far `logits` are from saying `truth`."""
    return nn.functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, truth))


def train(options: common.Options) -> tuple[list[float], nn.Module]:
    """Losses of `options.steps` steps (both networks' summed), and the trained networks."""
    torch.manual_seed(0)
    width, rows = (112, 2) if options.small else (64, 64)
    g, d = generator(width), discriminator(width)
    g_optimizer = torch.optim.Adam(g.parameters(), lr=2e-4, betas=(0.5, 0.999))
    d_optimizer = torch.optim.Adam(d.parameters(), lr=2e-4, betas=(0.5, 0.999))
    batches = common.digit_batches(rows, pixels=32)
    losses = []

    if not options.stock:
        sentinel.annotate(g, g_optimizer)
        sentinel.annotate(d, d_optimizer)
    for step in range(options.steps):
        if options.begins(step):
            sentinel.start_profile(fast=options.fast, slow=options.slow)
        real, _ = next(batches)
        drawn = g(torch.randn(len(real), NOISE, 1, 1))
        d_optimizer.zero_grad()
        d_loss = loss_of(d(real), 1.0) + loss_of(d(drawn.detach()), 0.0)
        d_loss.backward()
        d_optimizer.step()
        g_optimizer.zero_grad()
        g_loss = loss_of(d(drawn), 1.0)
        g_loss.backward()
        g_optimizer.step()
        losses.append(common.show(step, d_loss + g_loss))
        if options.begins(step):
            sentinel.end_profile()
    return losses, nn.ModuleList([g, d])


if __name__ == "__main__":
    chosen = common.options(__doc__)
    train(chosen)
    common.finish(chosen)
