"""Ranks that share one plan and their memory by servers: order and bytes stay as they are, reads are fewer."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")
valkey = pytest.importorskip("valkey", reason="needs valkey: pip install '.[data]'")

from torch.utils.data import TensorDataset  # noqa: E402

import sentinel.data  # noqa: E402
from sentinel.core.errors import UsageError  # noqa: E402
from sentinel.data.chunk_reader import IN_FLIGHT  # noqa: E402
from sentinel.data.data_index import open_data  # noqa: E402
from sentinel.data.feeding import permutation  # noqa: E402
from sentinel.data.loading import Loader  # noqa: E402
from sentinel.data.peer_exchange import BEGUN, OPEN, note_of  # noqa: E402
from sentinel.data.peer_feeding import cut_for_peers, rooms_within  # noqa: E402
from sentinel.data.peers import Peer, RankHash  # noqa: E402
from sentinel.data.resp_client import RespConnection  # noqa: E402
from sentinel.samples import Epoch, Order, WorldPlan, plan_world  # noqa: E402
from tests.data_files import number_of, rows, shards  # noqa: E402
from tests.processes import LONGEST_S, started  # noqa: E402
from tests.resp_servers import Server, servers  # noqa: E402
from tests.torch.loaders import no_thread_left_at, wait_for_peers  # noqa: E402

pytestmark = pytest.mark.needs("redis-server")

WORLD = 3


@pytest.fixture(autouse=True)
def _patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wait_for_peers(monkeypatch)


@pytest.fixture
def three() -> Iterator[list[Server]]:
    with servers(WORLD) as found:
        yield found


def ranks(source: Any, peers: list[Server], world: int = WORLD, **options: Any) -> list[Loader]:
    addresses = tuple(server.address for server in peers)
    asked = {"batch_size": 32, "memory": "50%", "unit": 16, "transform": number_of, "peers": addresses, **options}
    return [sentinel.data.loader(source, rank=rank, world=world, **asked) for rank in range(world)]


def epoch_of(loaders: list[Loader], at: dict[int, Any] | None = None) -> list[list[int]]:
    """What each of the ranks delivers in an epoch, all at once. `at`: what rank 0 does before so many batches."""
    found: list[list[int]] = [[] for _ in loaders]
    errors: list[BaseException] = []

    def deliver(rank: int) -> None:
        try:
            for number, batch in enumerate(loaders[rank]):
                if not rank and at and number in at:
                    at[number]()
                found[rank] += batch.tolist()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=deliver, args=(rank,)) for rank in range(len(loaders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found


def expected(n: int, epoch: int, world: int = WORLD) -> list[list[int]]:
    return [Order(world=world, rank=rank).of_rank(permutation(n, Order(), epoch)).tolist() for rank in range(world)]


def test_three_ranks_with_a_fifth_each_read_a_chunk_less_than_once(tmp_path: Path, three: list[Server]) -> None:
    n = 6144
    path = rows(tmp_path, n, 1000)
    array = np.load(path)

    def checked(row: np.ndarray) -> int:
        assert np.array_equal(row, array[row[0]])
        return int(row[0])

    loaders = ranks(path, three, transform=checked, memory="20%", unit=64, batch_size=64)
    layout = open_data(path).layout
    _, room = rooms_within(layout.nbytes // 5, layout, WORLD)
    cut, _ = cut_for_peers(layout, room, 64)
    plan: WorldPlan | None = None
    read = 0
    for epoch in range(3):
        assert epoch_of(loaders) == expected(n, epoch)
        now = Epoch(permutation(n, Order(), epoch), permutation(n, Order(), epoch + 1))
        plan = plan_world(cut, Order(world=WORLD), room, epoch, now, plan)
        before, read = read, sum(loader.report().feed.source_reads for loader in loaders)
        assert read - before == len(plan.staging.read_chunk), "each chunk is read by one rank, as planned"
    print(f"reads a chunk of all {WORLD} ranks in the third epoch: {(read - before) / cut.n_chunks:.2f}")
    assert read - before <= 0.9 * cut.n_chunks
    for loader in loaders:
        feed = loader.report().feed
        assert feed.direct_reads == 0
        assert 0.5 < feed.remote_hits / feed.samples < 0.8
        assert set(loader.report().hits_by_tier) <= {"server on this machine"}
        assert any(f"{feed.remote_hits:,}" in line for line in loader.report().text().splitlines() if "peers" in line)
    fields = [name for server in three for key in _keys(server) for name in valkey.Valkey(port=server.port).hkeys(key)]
    assert sum(name not in (BEGUN, OPEN) for name in fields) == len(plan.staging.kept), "what was used last was deleted"
    for loader in loaders:
        loader.close()


def _keys(server: Server) -> list[bytes]:
    found: list[bytes] = valkey.Valkey(port=server.port).keys("sentinel:*")
    return found


def test_a_server_killed_one_stopped_and_one_full_cost_time_only(
    tmp_path: Path, three: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them is waited for: a sample that was would be waited for as long as a test may take. The server that is
    stopped is not waited for long, so it may be silent before, too, where the host is busy; the others answer, or have
    ended."""
    stopped, connect = three[1], Peer.connect

    def connected(peer: Peer, _timeout_s: float | None = None) -> RespConnection:
        return connect(peer, 1.0 if peer.address == stopped.address else 300.0)

    monkeypatch.setattr(Peer, "connect", connected)
    tars = shards(tmp_path, [400, 200], nbytes=16000)
    with servers(1, memory_bytes=2 << 20) as full:
        peers = [three[0], stopped, full[0]]
        loaders = ranks(tars, peers, batch_size=20)
        at = {3: peers[0].process.kill, 5: lambda: stopped.process.send_signal(signal.SIGSTOP)}
        assert epoch_of(loaders, at) == expected(600, 0)
        assert epoch_of(loaders) == expected(600, 1)
    said = "\n".join(line for loader in loaders for line in loader.report().caveats)
    for server, what in ((peers[0], "did not answer"), (stopped, "did not answer"), (peers[2], "refused")):
        assert f"the peer {server.address} {what}" in said
    assert "too late" not in said
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("emptied", [1, WORLD])
def test_servers_that_are_emptied_cost_time_only(tmp_path: Path, three: list[Server], emptied: int) -> None:
    """A rank whose server has lost all names what it had put: nobody waits for that, as long as a test may take."""
    tars = shards(tmp_path, [400, 200], nbytes=4000)
    loaders = ranks(tars, three, batch_size=20)

    def empty() -> None:
        for server in three[:emptied]:
            assert valkey.Valkey(port=server.port).flushall()

    assert epoch_of(loaders, {4: empty}) == expected(600, 0)
    lost = [loader.report().feed.direct_reads for loader in loaders]
    assert sum(lost) > 0
    assert epoch_of(loaders, {0: empty}) == expected(600, 1)
    assert epoch_of(loaders) == expected(600, 2)
    for loader in loaders:
        assert not [line for line in loader.report().caveats if "too late" in line or "did not answer" in line]
        loader.close()


RANK_1 = """
import sys
import sentinel.data
from tests.data_files import number_of

if __name__ == "__main__":
    *tars, first, second = sys.argv[1:]
    loader = sentinel.data.loader(
        tars, number_of, batch_size=20, memory="50%", unit=16, rank=1, world=2, peers=(first, second)
    )
    for batch in loader:
        print(len(batch), flush=True)
        sys.stdin.readline()
"""


def test_a_rank_that_is_killed_costs_the_others_time_only(
    tmp_path: Path, three: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has put what the first batches need into its server, and nothing comes after."""
    monkeypatch.setattr("sentinel.data.peer_samples.LATE_S", 0.2)
    tars = shards(tmp_path, [400, 200], nbytes=4000)
    (tmp_path / "rank.py").write_text(RANK_1)
    addresses = tuple(server.address for server in three[:2])
    command = [sys.executable, str(tmp_path / "rank.py"), *tars, *addresses]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with started(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "20\n"
        first = sentinel.data.loader(
            tars, number_of, batch_size=20, memory="50%", unit=16, rank=0, world=2, peers=addresses
        )
        found = []
        for batch in first:
            found += batch.tolist()
            if other.poll() is None:
                other.kill()
                other.wait(LONGEST_S)
        assert found == expected(600, 0, 2)[0]
        assert [number for batch in first for number in batch.tolist()] == expected(600, 1, 2)[0]
    feed = first.report().feed
    assert 0 < feed.direct_reads < feed.samples
    assert "too late" in "\n".join(first.report().caveats)
    first.close()


def test_a_job_goes_on_with_other_ranks(tmp_path: Path, three: list[Server]) -> None:
    tars = shards(tmp_path, [300, 301])
    loaders = ranks(tars, three)
    states = []
    at = {2: lambda: states.append(loaders[0].state_dict())}
    whole = epoch_of(loaders, at)
    assert whole == expected(601, 0)
    assert states[0]["delivered"] == 3 * 32 * WORLD
    for world, peers in ((2, three[:2]), (4, three[:2]), (3, [])):
        again = ranks(tars, peers, world)
        for loader in again:
            loader.load_state_dict(states[0])
        rest = Order(world=world)
        want = [
            Order(world=rest.world, rank=rank).of_rank(permutation(601, rest, 0), states[0]["delivered"]).tolist()
            for rank in range(world)
        ]
        assert epoch_of(again) == want
        assert epoch_of(again) == expected(601, 1, world)


def test_workers_copy_what_servers_have_and_threads_end_with_the_loader(tmp_path: Path, three: list[Server]) -> None:
    tars = shards(tmp_path, [300])
    (loader,) = ranks(tars, three[:1], 1, workers=2, multiprocessing_context="fork")
    for epoch in range(2):
        assert [number for batch in loader for number in batch.tolist()] == expected(300, epoch, 1)[0]
    feed = loader.report().feed
    assert (feed.direct_reads, feed.remote_hits) == (0, 0)
    assert feed.hits + feed.source_reads == feed.samples
    next(batches := iter(loader))
    del loader, batches
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("sentinel"):
            thread.join(LONGEST_S)
            assert not thread.is_alive()


def test_a_server_that_is_not_there_or_wants_a_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tars = shards(tmp_path, [60])
    with servers(1, password="secret") as locked:
        with pytest.raises(UsageError, match="refuses this process"):
            ranks(tars, locked, memory="1MiB")
        (tmp_path / "secret").write_text("secret\n")
        loaders = ranks(tars, locked, memory="1MiB", peers_password_file=str(tmp_path / "secret"))
        assert epoch_of(loaders) == expected(60, 0)
        assert sum(loader.report().feed.direct_reads for loader in loaders) == 0
    loaders = ranks(tars, locked, memory="1MiB")  # it has ended
    assert "does not answer" in capsys.readouterr().err
    assert epoch_of(loaders) == expected(60, 0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"memory": "60%"}, r"was given memory=\d+, here \d+; give all ranks the same"),
        ({"unit": 8}, r"was given chunks=75, here 38; give all ranks the same"),
        ({"seed": 7}, r"was given seed=7, here 0; give all ranks the same"),
        ({"source": "others"}, r"was given another data set, or files of other sizes; give all ranks the same"),
        ({"world": 4}, r"was given world=4, .*here"),
        ({"older": True}, r"was given plans_version=0, here \d+; give all ranks the same"),
        ({}, ""),
    ],
)
def test_a_rank_that_was_given_something_else_is_named_where_its_samples_do_not_come(
    tmp_path: Path,
    three: list[Server],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, Any],
    said: str,
) -> None:
    """Ranks that nothing joins but their servers, as rank= and world= by hand."""
    monkeypatch.setattr("sentinel.data.peer_samples.LATE_S", 0.0)
    (tmp_path / "others").mkdir()
    tars, others = shards(tmp_path, [600]), shards(tmp_path / "others", [500])
    peers = three[:1]
    asked = {"batch_size": 20, "memory": "50%", "unit": 16, "transform": number_of, "peers": (peers[0].address,)}
    second = {"source": tars, "world": 2, **asked, **given}
    second["source"] = others if given.get("source") else tars
    with monkeypatch.context() as patch:
        if second.pop("older", False):  # it did not say what its plans are like
            named = ("world", "memory", "chunks", "peers")
            patch.setattr(
                "sentinel.data.peer_feeding.note_of", lambda **given: note_of(**{name: given[name] for name in named})
            )
        other = sentinel.data.loader(second.pop("source"), rank=1, **second)
    batches = iter(other)
    next(batches)  # it has begun, and left a note
    first = sentinel.data.loader(tars, rank=0, world=2, **asked)
    assert [number for batch in first for number in batch.tolist()] == expected(600, 0, 2)[0]
    told = "\n".join(first.report().caveats)
    found = f"samples of rank 1 do not come: the peer {peers[0].address} has those of a rank 1 that {said}"
    if said:
        assert re.search(found, told)
        assert re.search(found, capsys.readouterr().err)
    else:
        assert "do not come" not in told + capsys.readouterr().err
    for loader in (first, other):
        loader.close()


def test_what_has_no_meaning_is_refused(tmp_path: Path) -> None:
    tars = shards(tmp_path, [60])
    for options, says in (
        ({"peers": "127.0.0.1:1"}, "are not addresses"),
        ({"peers": ("a:1", "a:1", "b:1")}, "twice"),
        ({"peers": ("a:1", "b:1")}, "2 peers cannot be divided among 3 ranks"),
        ({"peers": ("a:port",)}, "'a:port' is not an address"),
        ({"peers": ("node..rack:6379",)}, "'node..rack:6379' is not an address"),
        ({"share": "mine"}, "two ways to read once"),
        ({"order": "windowed"}, "windowed reads each chunk once"),
        ({"memory": 8192}, "too little to keep samples with peers; give at least"),
        ({"source": TensorDataset(torch.arange(3))}, "a Dataset reads by itself"),
    ):
        asked = {"source": tars, "batch_size": 4, "memory": "1MiB", "peers": ("127.0.0.1:1",), **options}
        with pytest.raises(UsageError, match=says):
            sentinel.data.loader(asked.pop("source"), rank=0, world=3, **asked)


def test_a_server_is_never_asked_for_a_list_of_all_that_it_has(tmp_path: Path, three: list[Server]) -> None:
    """It would serve nobody else meanwhile."""
    (loader,) = ranks(shards(tmp_path, [300]), three[:1], 1)
    for epoch in range(3):
        assert epoch_of([loader]) == expected(300, epoch, 1)
    loader.close()
    client = valkey.Valkey(port=three[0].port)
    asked = client.info("commandstats")
    assert "cmdstat_hdel" in asked
    assert not asked.keys() & {f"cmdstat_{name}" for name in ("hkeys", "hgetall", "hvals", "hscan", "keys")}
    client.close()


def test_samples_stay_in_a_server_as_long_as_batches_are_delivered(
    tmp_path: Path, three: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank whose samples all have room puts no chunk after the first epoch."""
    (loader,) = ranks(shards(tmp_path, [96]), three[:1], 1)
    for _ in loader:
        pass
    client = valkey.Valkey(port=three[0].port)
    (key,) = client.keys("sentinel:*")
    client.expire(key, 600)
    loader._feeding.tend(0, 0)
    assert client.ttl(key) <= 600
    monkeypatch.setattr("sentinel.data.peer_exchange._RENEWED_S", 0.0)
    loader._feeding.tend(0, 0)
    assert client.ttl(key) > 600
    client.close()


def test_only_ranks_that_were_late_are_looked_at_as_batches_are_delivered(
    tmp_path: Path, three: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a thousand ranks each batch would look at a thousand."""
    feeding = ranks(shards(tmp_path, [96]), three)[0]._feeding
    looked: list[bytes] = []
    late = vars(RankHash)["late"]

    def watched(rank: RankHash) -> int:
        looked.append(rank.key)
        return int(late.fget(rank))

    monkeypatch.setattr(RankHash, "late", property(watched))
    feeding.tend(0, 0)
    assert not looked
    feeding._ranks[2].came_late()
    feeding.tend(0, 0)
    assert set(looked) == {feeding._ranks[2].key}
    looked.clear()
    feeding.tend(0, 0)
    assert not looked, "its server was asked"


@pytest.mark.parametrize("fails", [1, 2])
def test_where_a_thread_cannot_be_started_a_loader_with_peers_closes(
    fails: int, tmp_path: Path, three: list[Server]
) -> None:
    loaders = ranks(shards(tmp_path, [300]), three)
    with no_thread_left_at(fails) as begun:
        next(iter(loaders[0]))
    for loader in loaders:
        loader.close()
    assert not any(thread.is_alive() for thread in begun)


def test_what_a_job_leaves_in_a_server_goes_soon_after_its_end(tmp_path: Path, three: list[Server]) -> None:
    (loader,) = ranks(shards(tmp_path, [96]), three[:1], 1)
    client = valkey.Valkey(port=three[0].port)
    loader.close()
    assert not client.keys("sentinel:*")
    for _ in loader:
        pass
    (key,) = client.keys("sentinel:*")
    assert client.ttl(key) > 60
    loader.close()
    assert client.ttl(key) <= 60
    next(iter(loader))
    assert client.ttl(key) > 60, "it goes on"
    for _ in loader:  # the epoch that was begun is left
        pass
    assert client.ttl(key) > 60
    loader.close()
    client.close()


def test_many_ranks_take_no_more_descriptors_than_few(tmp_path: Path, three: list[Server]) -> None:
    tars = shards(tmp_path, [600])
    addresses = tuple(server.address for server in three)
    kept: list[Loader] = []

    def taken(world: int) -> int:
        before = len(os.listdir("/proc/self/fd"))
        asked = {"batch_size": 1, "memory": "50%", "peers": addresses}
        kept.append(sentinel.data.loader(tars, number_of, rank=0, world=world, **asked))
        return len(os.listdir("/proc/self/fd")) - before

    few = taken(3)
    assert taken(300) <= few


def test_workers_of_a_forkserver_know_300_ranks(tmp_path: Path, three: list[Server]) -> None:
    """A forkserver passes on at most 251 descriptors."""
    loader = sentinel.data.loader(
        shards(tmp_path, [600]),
        number_of,
        batch_size=1,
        memory="50%",
        unit=16,
        rank=0,
        world=300,
        peers=(three[0].address,),
        workers=1,
        multiprocessing_context="forkserver",
    )
    batches = iter(loader)
    assert next(batches).tolist() == expected(600, 0, 300)[0][:1]
    del batches
    loader.close()


@pytest.mark.parametrize("killed", [False, True])
def test_what_an_earlier_job_has_left_is_never_delivered(
    tmp_path: Path, three: list[Server], monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """Other bytes of the same sizes, under the same seed; the other rank of the new job begins later, or never."""
    folders = [tmp_path / name for name in ("earlier", "now")]
    for value, folder in enumerate(folders):
        folder.mkdir()
        np.save(folder / "rows.npy", np.full((600, 64), value, np.int32))
    first, second = (str(folder / "rows.npy") for folder in folders)
    asked: dict[str, Any] = {"transform": lambda row: int(row[0])}
    earlier = ranks(first, three[:2], 2, **asked)
    assert epoch_of(earlier) == [[0] * 300] * 2
    for loader in () if killed else earlier:
        loader.close()
    monkeypatch.setattr("sentinel.data.peer_samples.LATE_S", 0.1)
    (alone, _) = ranks(second, three[:2], 2, **asked)
    assert epoch_of([alone]) == [[1] * 300], "rank 1 has not begun"
    monkeypatch.setattr("sentinel.data.peer_samples.LATE_S", 300.0)
    now = ranks(second, three[:2], 2, **asked)
    for _ in range(2):
        assert epoch_of(now) == [[1] * 300] * 2
    assert all(loader.report().feed.remote_hits for loader in now), "the ranks of a job know one another"
    for loader in (alone, *now, *earlier):
        loader.close()


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("hanging", [1, IN_FLIGHT])
def test_a_read_that_never_ends_holds_up_no_end_with_peers(
    tmp_path: Path, three: list[Server], monkeypatch: pytest.MonkeyPatch, hanging: int, leaves: bool
) -> None:
    """Of an epoch, of an iteration that is left, and of a loader; what it brings later is put nowhere. Where all reads
    at once hang, nobody waits for what they would have read."""
    monkeypatch.setattr("sentinel.data.peer_samples.LATE_S", 0.1)
    monkeypatch.setattr("sentinel.data.peer_exchange.LONGEST_READ_S", 0.3)
    loaders = ranks(shards(tmp_path, [600]), three[:1], 2)
    provider = loaders[0]._feeding._provider
    files, ends, held = provider._files, threading.Event(), []
    real, numbers = files.chunk, count()

    def chunk(*given: Any) -> Any:
        if threading.current_thread().name == "sentinel provider" and next(numbers) < hanging:
            held.append(threading.current_thread())
            ends.wait(2 * LONGEST_S)
        return real(*given)

    monkeypatch.setattr(files, "chunk", chunk)
    began = time.monotonic()
    if leaves:
        next(iter(loaders[0]))
        for loader in loaders:
            loader.set_epoch(1)
    else:
        assert epoch_of(loaders) == expected(600, 0, 2)
    read, first = loaders[0].report().feed.source_reads, provider._reads.tolist()
    assert epoch_of(loaders) == expected(600, 1, 2)
    report = loaders[0].report()
    assert report.feed.source_reads > read, "other threads read"
    if hanging == IN_FLIGHT and not leaves:
        named = valkey.Valkey(port=three[0].port).hget(provider._own.key, OPEN)
        lacking = np.frombuffer(named, ">u4").reshape(-1, 2).tolist()
        assert sorted(read for epoch, read in lacking if not epoch) == sorted(first)
    assert "not provided to other ranks (the last: a read takes longer than 0.3 s)" in "".join(report.caveats)
    for loader in loaders:
        loader.close()
    assert time.monotonic() - began < LONGEST_S, "it was waited for"
    assert len(held) == hanging
    assert all(thread.is_alive() for thread in held)
    before = {key: sorted(valkey.Valkey(port=three[0].port).hkeys(key)) for key in _keys(three[0])}
    assert before
    ends.set()
    for thread in held:
        thread.join(LONGEST_S)
    assert {key: sorted(valkey.Valkey(port=three[0].port).hkeys(key)) for key in _keys(three[0])} == before
