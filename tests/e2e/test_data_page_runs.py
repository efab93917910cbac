"""What the page on training data shows is run as it stands there: sizes, folders and addresses are those of a test."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tarfile
import textwrap
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.data_files import add
from tests.processes import LONGEST_S, started, until
from tests.resp_servers import free_port
from tests.shown_code import commands, environment, python, shown

pytestmark = [pytest.mark.needs("torch", "compiler"), pytest.mark.slow]

SHARDS, IN_SHARD, WORLD = 3, 200, 3
KEYS = [f"{shard}-{sample}" for shard in range(SHARDS) for sample in range(IN_SHARD)]
SMALLER = [("{000..146}", "{000..002}"), ("8GiB", "16MiB"), ("10GiB", "64MiB")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for shard in range(SHARDS):
        with tarfile.open(tmp_path / f"train-{shard:03}.tar", "w") as tar:
            for sample in range(IN_SHARD):
                add(tar, f"{shard}-{sample}.jpg", bytes(64 + sample))
    return tmp_path


def program(title: str) -> str:
    """The Python below a heading of the page."""
    blocks = shown("data.md", "python", SMALLER)
    (found,) = [block for block in blocks if title in block]
    return found


def command(verb: str) -> list[str]:
    (found,) = [words for words in commands("data.md", SMALLER) if words[2] == verb]
    return found


def run(folder: Path, *words: str) -> str:
    """What Python prints with these words, which must succeed. Indexes are kept in a folder of the test."""
    return python(folder, *words, XDG_CACHE_HOME=str(folder / "cache")).stdout


def test_a_loader_and_what_it_is_expected_to_save(folder: Path) -> None:
    """One process does what three programs of the page do, one after the other: it imports torch once."""
    loads = program("workers=8")
    shared = program('share="imagenet"').replace('"imagenet"', f'"page-{folder.name}-{id(folder)}"')
    keys = "found = [key for keys, _ in loader for key in keys]\nloader.close()\nprint(*sorted(found))"
    own = program("OrderSampler").replace("    pass", "    print(*keys)")
    first, by_share, by_sampler = run(
        folder, "-c", f"{loads}\nprint('==')\n{shared}\n{keys}\nprint('==')\n{own}"
    ).split("==\n")
    assert str(len(KEYS)) in first
    assert by_share.split() == sorted(KEYS)
    assert sorted(by_sampler.split()) == sorted(KEYS)
    assert "20%" in run(folder, "-m", *command("plan"))


SELECTS = """
import torch
from torch.nn.functional import cross_entropy

import sentinel.data

model = torch.nn.Linear(8, 3)


def decode(sample):
    number = len(sample["jpg"])
    return torch.full((8,), number / 100), number % 3


{loader}
for epoch in range(5):
{loop}
    print(loader.report().feed.samples)
"""


def test_samples_that_the_model_gets_right_are_left_out(folder: Path) -> None:
    """After the three epochs of warming up comes a whole one, and then one that selects."""
    loader, word, loop = program("Importance()").partition("for images")
    said = run(folder, "-c", SELECTS.format(loader=loader, loop=textwrap.indent(word + loop, "    ")))
    delivered = [int(line) for line in said.split()]
    assert delivered[:4] == [len(KEYS) * epochs for epochs in range(1, 5)]
    assert len(KEYS) / 2 < delivered[4] - delivered[3] < len(KEYS)


def test_a_folder_of_small_files_is_packed(folder: Path) -> None:
    written = {}
    for kind in ("cats", "dogs"):
        (folder / "photos" / kind).mkdir(parents=True)
        for number in range(50):
            for suffix in ("jpg", "cls"):
                path = folder / "photos" / kind / f"{number}.{suffix}"
                path.write_text(f"{kind} {number} {suffix}")
            written[f"{kind}/{number}"] = [f"{kind} {number} jpg", f"{kind} {number} cls"]
    said = run(folder, "-m", *command("pack"))
    assert said.startswith("100 samples in 1 shard,")
    pattern = said.rpartition(": ")[2].strip()
    reads = (
        f"import json, sentinel.data\nloader = sentinel.data.loader({pattern!r}, batch_size=10, memory='1MiB')\n"
        "print(json.dumps([[key, jpg.decode(), cls.decode()] for batch in loader\n"
        "    for key, jpg, cls in zip(batch['__key__'], batch['jpg'], batch['cls'])]))"
    )
    assert {key: found for key, *found in json.loads(run(folder, "-c", reads))} == written


TRAINS = """
import json, sys
import torch.distributed as dist

dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=int(sys.argv[3]))
{loader}
found = [key for batch in loader for key in batch["__key__"]]
dist.barrier()  # nobody needs another's samples any more
said = loader.report().text()
loader.close()
dist.destroy_process_group()
print(json.dumps([found, said]))
"""


@pytest.mark.needs("valkey", "redis-server")
def test_three_machines_have_one_memory(folder: Path) -> None:
    """Each on a port of loopback, where the page has an address for each."""
    import valkey

    from sentinel.data.feeding import permutation
    from sentinel.samples import Order

    (folder / "secret").write_text("open sesame\n")
    (folder / "secret").chmod(0o600)
    text = program("peers_password_file")
    with ExitStack() as stack:
        ports = [stack.enter_context(free_port()) for _ in range(WORLD)]
        for number, port in enumerate(ports, 1):
            assert f"10.0.0.{number}:6379" in text
            text = text.replace(f"10.0.0.{number}:6379", f"127.0.0.1:{port}")
            words = [word.replace("10.0.0.1", "127.0.0.1") for word in command("serve")]
            serve(stack, folder, [*words, "--port", str(port)], port)
        asked = [valkey.Valkey(port=port, password="open sesame") for port in ports]
        before = [server.info("stats")["total_connections_received"] for server in asked]
        (folder / "rank.py").write_text(TRAINS.format(loader=text))
        ranks = [
            stack.enter_context(
                started(
                    [sys.executable, "rank.py", str(folder / "meeting"), str(rank), str(WORLD)],
                    cwd=folder,
                    env=environment(folder, XDG_CACHE_HOME=str(folder / "cache")),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for rank in range(WORLD)
        ]
        for rank, process in enumerate(ranks):
            out, errors = process.communicate(timeout=LONGEST_S)
            assert process.returncode == 0, errors
            found, said = json.loads(out)
            alone = Order(world=WORLD, rank=rank).of_rank(permutation(len(KEYS), Order(), 0))
            assert found == [KEYS[sample] for sample in alone.tolist()]
            assert "peers" in said
        after = [server.info("stats")["total_connections_received"] for server in asked]
    assert all(late - early >= WORLD for early, late in zip(before, after, strict=True)), "a rank asked no server"


def serve(stack: ExitStack, folder: Path, words: list[str], port: int) -> None:
    """A server by that command, which ends with the stack, once it listens."""
    command = [sys.executable, "-m", *words]
    server = stack.enter_context(started(command, cwd=folder, env=environment(folder), stdout=subprocess.DEVNULL))
    stack.callback(server.kill)

    def listens() -> bool:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return True
        return False

    until(lambda: server.poll() is not None or listens())
    assert server.poll() is None, "the server has ended"
