"""Training by several ranks over gloo, as torchrun starts it: ranks.py ddp|view|hook|sharded|plain ROWS ..., one
training after another; of rows that end in + rank 0 has 8 times as many. With LATE_RANK=1 rank 1 takes 2 s for each
plan, with KILL_RANK=1 it is killed. With AWAIT_PLANS=1 no rank goes beyond step 9 before its second plan is made."""

import gc
import hashlib
import os
import signal
import sys
import time

import torch
import torch.distributed
import torch.distributed.nn  # here, or it holds the process group too: see examples/10_three_ranks.py
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS, STEPS = 192, 4, 14


def watch_late(rank: int) -> None:
    if os.environ.get("LATE_RANK") == str(rank):
        import sentinel

        class Late(sentinel.Observer):
            def plan_made(self, plan: object) -> None:
                time.sleep(2)

        sentinel.observe(Late())


def await_plan() -> None:
    """Training does not wait for a plan that is being made, and here it would be over before that is."""
    from sentinel.session import current

    session = current()
    for pending in [] if session is None else session.context.planning.pending:
        while pending._process is not None and not pending._process.has_ended:
            time.sleep(0.01)


def averaged(state: None, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """What DDP does with a GradBucket where there is no hook: it divides, then sums."""
    del state
    flat = bucket.buffer().div_(torch.distributed.get_world_size())
    done = torch.distributed.all_reduce(flat, async_op=True).get_future()
    return done.then(lambda future: future.value()[0])


def wrapped(kind: str, net: nn.Module) -> nn.Module:
    if kind == "plain":
        return net
    if kind != "sharded":
        model = DistributedDataParallel(net, gradient_as_bucket_view=kind == "view", bucket_cap_mb=0.3)
        if kind == "hook":
            model.register_comm_hook(None, averaged)
        return model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for layer in net.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def here(tensor: torch.Tensor) -> torch.Tensor:
    return getattr(tensor, "_local_tensor", tensor).detach()


def train(kind: str, told: str) -> None:
    rank = torch.distributed.get_rank()
    rows = int(told.rstrip("+")) * (8 if told.endswith("+") and rank == 0 else 1)
    torch.manual_seed(0)
    net = nn.Sequential(*[layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())])
    model = wrapped(kind, net)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(rank)
    losses = []
    for step in range(STEPS):
        loss = model(torch.randn(rows, WIDTH)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
        if os.environ.get("AWAIT_PLANS") and step == 9 and "sentinel" in sys.modules:
            await_plan()
        if os.environ.get("KILL_RANK") == str(rank) and step == 9:
            os.kill(os.getpid(), signal.SIGKILL)
    digest = hashlib.sha256(b"".join(here(param).numpy().tobytes() for param in net.parameters())).hexdigest()
    print(f"{rank} {' '.join(losses)} {digest}\n", end="", flush=True)  # in one piece: ranks print side by side


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    watch_late(torch.distributed.get_rank())
    for kind, told in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        train(kind, told)
    gc.collect()  # the model, which holds the process group and with it gloo's threads
    torch.distributed.destroy_process_group()
