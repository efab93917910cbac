"""Two ranks over gloo, of which rank 0 has more rows. After each step each prints its loss, and how many plans it has
applied. With WAIT_FOR, a file, each process that plans for rank 1 waits until rank 0 has trained 10 steps with its
first plan and made that file; training ends once rank 0 has another plan. Without, it ends after MOST steps."""

import os
import sys
import time

import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS, MOST, TRAINED = 96, 3, 1500, 10


def main() -> None:
    torch.distributed.init_process_group("gloo")
    rank, gate, plans = torch.distributed.get_rank(), os.environ.get("WAIT_FOR", ""), []
    if gate:
        import sentinel

        class Applied(sentinel.Observer):
            """Rank 1 plans after rank 0, which so has no more than half of the budget at first."""

            profiles = made = 0

            def profile_made(self, profile: object) -> None:
                self.profiles += 1
                while rank == 1 and not os.path.exists(f"{gate}.{self.profiles}"):
                    time.sleep(0.05)

            def plan_made(self, plan: object) -> None:
                self.made += 1
                if rank == 0:
                    open(f"{gate}.{self.made}", "w").close()

            def plan_applied(self, plan: object, machine: object, ranges: object) -> None:
                plans.append(plan)

        sentinel.observe(Applied())
    torch.manual_seed(0)
    net = nn.Sequential(*[layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())])
    model = DistributedDataParallel(net, bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    torch.manual_seed(rank)
    since = 0
    for step in range(MOST):
        loss = model(torch.randn(2048 if rank == 0 else 64, WIDTH)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{rank} {step} {loss.item().hex()} {len(plans)}\n", end="", flush=True)
        if not gate:
            continue
        since += len(plans) == 1
        if rank == 0 and since == TRAINED:
            open(gate, "w").close()
        if since > TRAINED:
            time.sleep(0.1)  # the process that plans begins only now
        done = torch.tensor(int(len(plans) > 1 or rank != 0))
        torch.distributed.all_reduce(done, torch.distributed.ReduceOp.MIN)
        if done.item():
            break
    del model, net, optimizer
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
