"""Three ranks, as on three machines, each with memory for a fifth of the digits: apart, and with one plan for all.

Starts a server of samples for each rank, where other machines would have theirs, then torchrun, which starts this file
once a rank. Prints the losses of rank 0, which are the same bit for bit, and how often the ranks read a chunk of their
file.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

# Before there is a process group: Adam imports it otherwise, and the defaults of its functions would keep the group,
# and gloo's threads, after destroy_process_group(). One that drops a tensor as the interpreter ends aborts the process.
import torch.distributed.nn
from torch import nn

import sentinel.data
from sentinel.core.errors import CapabilityError
from sentinel.system.peer_server import program

WORLD, EPOCHS, BATCH, UNIT = 3, 3, 32, 16


def write_digits(path: Path) -> None:
    """Writes scikit-learn's digits as rows: the class, then an image of 32 x 32."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.kron(digits.images / 8 - 1, np.ones((4, 4))).reshape(len(digits.images), -1)
    np.save(path, np.column_stack([digits.target, images]).astype(np.float32))


def train(path: str, peers: tuple[str, ...]) -> tuple[list[float], list[int]]:
    """(losses, [samples read alone, samples from peers, reads of chunks in the last epoch] of all ranks)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 5, stride=3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 10 * 10, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = sentinel.data.loader(path, batch_size=BATCH, memory="20%", unit=UNIT, seed=1, peers=peers)
    losses, before = [], 0
    for _ in range(EPOCHS):
        before = loader.report().feed.source_reads
        for rows in loader:
            loss = nn.functional.cross_entropy(model(rows[:, 1:].reshape(-1, 1, 32, 32)), rows[:, 0].long())
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            losses.append(loss.item())
    feed = loader.report().feed
    counts = torch.tensor([feed.direct_reads, feed.remote_hits, feed.source_reads - before])
    dist.all_reduce(counts)  # all ranks are at the end: nobody needs another's samples any more
    loader.close()
    return losses, counts.tolist()


def run_rank(folder: str, *peers: str) -> None:
    """Trains as one of torchrun's ranks, apart and with peers; rank 0 writes what was counted."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    told = [train(f"{folder}/digits.npy", who) for who in ((), peers)]
    if not dist.get_rank():
        Path(folder, "told.json").write_text(json.dumps(told))
    dist.destroy_process_group()


def start_server() -> tuple[subprocess.Popen[bytes], str]:
    """A server of samples on loopback that listens, and its address."""
    with socket.socket() as held:  # until the server listens nobody else is given this port
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        command = [sys.executable, "-m", "sentinel", "data", "serve", "--memory", "16MiB", "--port", str(port)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                return process, f"127.0.0.1:{port}"
            except OSError:
                time.sleep(0.05)
    raise SystemExit(f"the server of samples ended with exit code {process.returncode}")


def main() -> int:
    """0 if training is the same with peers, and chunks are read less often."""
    try:
        program()
    except CapabilityError as error:
        print(error, file=sys.stderr)
        return 1
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        write_digits(Path(folder, "digits.npy"))
        try:
            addresses = []
            for _ in range(WORLD):
                process, address = start_server()
                processes.append(process)
                addresses.append(address)
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORLD)]
            environment = {"OMP_NUM_THREADS": "1", **os.environ}  # torchrun would take 1, and say so
            if subprocess.run([*torchrun, __file__, folder, *addresses], env=environment).returncode:
                return 1
        finally:
            for process in processes:
                process.terminate()
                process.wait()
        (apart, (_, _, reads_apart)), (together, (alone, remote, reads)) = json.loads(
            Path(folder, "told.json").read_text()
        )
        chunks = -(-len(np.load(os.path.join(folder, "digits.npy"), mmap_mode="r")) // UNIT)
    for step in range(0, len(together), 10):
        print(f"step {step:3d}  loss {together[step]:.6f}")
    same = apart == together
    print(f"losses with peers are {'the same bit for bit' if same else 'NOT the same'}: {len(together)} steps")
    print(f"reads a chunk of {UNIT} samples by all {WORLD} ranks, in the last epoch:")
    print(f"each for itself {reads_apart / chunks:.2f}, one plan {reads / chunks:.2f}")
    print(f"samples from the memory of peers: {remote}; read alone: {alone}")
    return 0 if same and reads < reads_apart else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_rank(*sys.argv[1:])
    else:
        sys.exit(main())
