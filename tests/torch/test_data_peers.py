"""Ranks that share one plan and their memory by servers: order and bytes stay as they are, reads are fewer."""

from __future__ import annotations

import gc
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")
valkey = pytest.importorskip("valkey", reason="needs valkey: pip install '.[data]'")

from torch.utils.data import TensorDataset  # noqa: E402

import sentinel.data  # noqa: E402
from sentinel.core.errors import UsageError  # noqa: E402
from sentinel.data.data_index import open_data  # noqa: E402
from sentinel.data.feeding import permutation  # noqa: E402
from sentinel.data.loading import Loader  # noqa: E402
from sentinel.data.peer_exchange import BEGUN, OPEN, ChunkProvider, Progress, names_of, note_of  # noqa: E402
from sentinel.data.peer_feeding import cut_for_peers, rooms_within  # noqa: E402
from sentinel.data.peer_samples import FromPeers  # noqa: E402
from sentinel.data.peers import _ALONE_UNTIL, Peer, RankHash  # noqa: E402
from sentinel.data.resp_client import NotLetInError, Refusal, RespConnection  # noqa: E402
from sentinel.data.sample_arena import RUNNING, SampleArena  # noqa: E402
from sentinel.data.served_samples import Served  # noqa: E402
from sentinel.data.source_files import SourceFiles  # noqa: E402
from sentinel.data.staged_samples import Held, Request  # noqa: E402
from sentinel.samples import Epoch, Order, WorldPlan, plan_world  # noqa: E402
from sentinel.samples.world_plan import RankShare  # noqa: E402
from tests.data_files import number_of, rows, shards  # noqa: E402
from tests.processes import LONGEST_S, started, until  # noqa: E402
from tests.resp_servers import Server, servers  # noqa: E402
from tests.torch.loaders import no_thread_left_at  # noqa: E402

pytestmark = pytest.mark.needs("redis-server")

WORLD = 3


@pytest.fixture(autouse=True)
def _patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sentinel.data.staged_samples.PATIENCE_S", 600.0)  # however busy the host is
    monkeypatch.setattr("sentinel.data.peer_samples.LATE_S", 300.0)
    for name in ("peers.TIMEOUT_S", "peers._GREETING_S", "peer_exchange._PATIENT_S"):
        monkeypatch.setattr(f"sentinel.data.{name}", 300.0)


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


def test_a_server_that_takes_what_is_sent_and_says_nothing_is_waited_for_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sentinel.data.peers.TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connection = Peer(f"127.0.0.1:{silent.getsockname()[1]}").connect()
        connection.send((b"PING",))
        with pytest.raises(TimeoutError):
            connection.reply()
        connection.close()


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


class One:
    """A rank that is alone with a server, which has all samples that it needs."""

    def __init__(self, tmp_path: Path, server: Server, n: int) -> None:
        data = open_data(shards(tmp_path, [n]))
        shape, room = rooms_within(1 << 20, data.layout, 1)
        self.layout, _ = cut_for_peers(data.layout, room, 16)
        self.files, self.board = SourceFiles(self.layout, data.root), SampleArena(shape)
        self.rank, progress = RankHash(Peer(server.address), b"sentinel:test"), Progress(self.board)
        now = Epoch(permutation(n, Order(), 0), permutation(n, Order(), 1))
        self.plan = plan_world(self.layout, Order(), room, 0, now)
        self.share: RankShare = self.plan.share(self.layout, 0)
        progress.begin(n)
        self.board.taken[:] = 1  # so all reads are due
        self.provider = ChunkProvider(self.files, self.board, self.rank, 0, progress, threading.Event())
        self.provider.begin(self.plan, self.share.reads, None)
        self.provider.start(2)
        self.provider.finish()
        self.board.taken[:] = 0
        self.board.counters[RUNNING] = 1
        self.source = FromPeers(self.files, self.board, [self.rank], data.source)

    def request(self, begin: int, stop: int, following: Request | None = None) -> Request:
        share, cut = self.share, slice(begin, stop)
        held = Held(share.reader, share.name, share.last, np.zeros(len(share.order), np.bool_)).cut(cut)
        return Request(begin, share.order[cut], share.first[cut], share.direct[cut], held, following)


def test_wrong_bytes_in_a_server_are_no_samples(tmp_path: Path, three: list[Server]) -> None:
    one = One(tmp_path, three[0], 96)
    assert (one.provider.log.counts.reads, one.provider.failed) == (len(one.plan.staging.read_chunk), 0)
    client, key = valkey.Valkey(port=three[0].port), one.rank.key
    assert client.hlen(key) == 2 + len(one.plan.names)
    names = names_of(one.share.name[:8])
    values = client.hmget(key, names)
    flipped = bytearray(values[0])
    flipped[10] ^= 1
    client.hset(key, mapping={names[0]: bytes(flipped), names[1]: values[2], names[3]: values[3][:-1], names[4]: b""})
    served = Served(samples=8)
    found = [number_of(sample) for sample in one.source.fetch(one.request(0, 8), served)]
    assert found == one.share.order[:8].tolist()
    assert (served.direct_reads, served.lost) == (4, 4), "what is no sample is read from its file"
    client.close()


def test_what_nobody_has_deleted_goes_once_all_ranks_have_ended_the_epoch(
    tmp_path: Path, three: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As what a worker that was lost was to delete. A server that is silent then is asked an epoch later."""
    monkeypatch.setattr("sentinel.data.peers.FIRST_PAUSE_S", 3600.0)
    one = One(tmp_path, three[0], 96)
    client, key, none = valkey.Valkey(port=three[0].port), one.rank.key, one.share.reads[:0]
    ends = one.plan.staging.stay_until.copy()
    ends[:10] = 0  # nobody keeps them
    plans = [replace(one.plan, epoch=epoch) for epoch in range(4)]
    plans[0] = replace(one.plan, staging=replace(one.plan.staging, stay_until=ends))
    one.provider.begin(plans[1], none, plans[0])
    assert client.hlen(key) == 2 + len(one.plan.names), "other ranks may be at the end of that epoch"
    one.rank.peer.silent()
    one.provider.begin(plans[2], none, plans[1])
    assert client.hlen(key) == 2 + len(one.plan.names)
    one.rank.peer._told[_ALONE_UNTIL] = 0
    one.provider.begin(plans[3], none, plans[2])
    assert set(client.hkeys(key)) == {BEGUN, OPEN, *names_of(one.plan.names[10:])}
    client.close()


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


def test_a_server_is_asked_once_for_each_batch(tmp_path: Path, three: list[Server]) -> None:
    one = One(tmp_path, three[0], 128)
    requests: list[Request] = []
    for begin in range(96, -1, -32):
        requests.insert(0, one.request(begin, begin + 32, requests[0]._replace(following=None) if requests else None))
    found, served = [], [Served() for _ in requests]
    for number in (0, 1, 2):
        found += [number_of(sample) for sample in one.source.fetch(requests[number], served[number])]
    client = valkey.Valkey(port=three[0].port)
    one.source.settle()
    assert client.info("commandstats")["cmdstat_hmget"]["calls"] == 3 + 1, "for each batch, and the next one"
    again = Served()  # a worker that was lost is asked once more, and nobody wants what this one was asked for
    assert [number_of(sample) for sample in one.source.fetch(requests[0], again)] == requests[0].samples.tolist()
    assert again.again == int((one.share.last & ~one.share.direct)[:32].sum()), "what was deleted is not waited for"
    assert found == one.share.order[:96].tolist()
    assert sum(each.direct_reads for each in served) == sum(int(each.direct.sum()) for each in requests[:3])
    assert one.board.taken[:96].all()
    one.source.hang_up()
    client.close()


def test_of_ranks_whose_samples_are_all_there_nothing_is_looked_at(
    tmp_path: Path, three: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch would cost the more, the more ranks there are."""
    one = One(tmp_path, three[0], 64)
    one.source._ranks += [RankHash(Peer(server.address), b"sentinel:other") for server in three]
    looked: list[RankHash | Peer] = []

    def watched(told: Any) -> property:
        def ask(of: RankHash | Peer) -> bool:
            looked.append(of)
            return bool(told.fget(of))

        return property(ask)

    for kind, name in ((RankHash, "waited_for"), (Peer, "left_alone")):
        monkeypatch.setattr(kind, name, watched(vars(kind)[name]))
    client, key = valkey.Valkey(port=three[0].port), one.rank.key
    request = one.request(0, 8, one.request(8, 16))
    assert [number_of(sample) for sample in one.source.fetch(request, Served())] == request.samples.tolist()
    assert set(looked) == {one.rank.peer}
    client.hdel(key, OPEN, *names_of(one.share.name[16:24]))
    one.source.hang_up()
    served, request = Served(), one.request(16, 24)
    assert [number_of(sample) for sample in one.source.fetch(request, served)] == request.samples.tolist()
    assert served.lost == 8
    assert set(looked) == {one.rank.peer, one.rank}
    one.source.hang_up()
    client.close()


def test_what_a_full_server_refused_is_not_waited_for(tmp_path: Path, three: list[Server]) -> None:
    one = One(tmp_path, three[0], 64)
    client, key = valkey.Valkey(port=three[0].port), one.rank.key
    request = one.request(0, 8, one.request(8, 16))
    assert [number_of(sample) for sample in one.source.fetch(request, Served())] == request.samples.tolist()
    client.hdel(key, OPEN, *names_of(one.share.name[8:24]))
    one.source.hang_up()
    served = Served()
    request = one.request(16, 24)
    assert [number_of(sample) for sample in one.source.fetch(request, served)] == request.samples.tolist()
    assert served.lost == served.direct_reads == 8
    assert not one.rank.waited_for
    client.close()


def test_a_server_that_was_full_before_it_was_asked_is_not_waited_for(
    tmp_path: Path, three: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.data.peer_samples.LATE_S", 0.0)  # if it is waited for, it comes too late
    one = One(tmp_path, three[0], 64)
    client, key = valkey.Valkey(port=three[0].port), one.rank.key
    client.hdel(key, OPEN, *names_of(one.share.name[:8]))
    served = Served()
    request = one.request(0, 8)
    assert [number_of(sample) for sample in one.source.fetch(request, served)] == request.samples.tolist()
    assert (served.lost, served.direct_reads, one.rank.late) == (8, 8, 0)
    one.source.hang_up()
    client.close()


def test_reads_that_a_silent_server_was_not_told_are_named_after_the_last_one(
    tmp_path: Path, three: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others wait for them, be it the last ones of an epoch, or after this rank's last batch."""
    monkeypatch.setattr("sentinel.data.peers.FIRST_PAUSE_S", 3600.0)
    one = One(tmp_path, three[0], 64)
    client, key = valkey.Valkey(port=three[0].port), one.rank.key
    lost = int(one.share.reads[-1])
    one.rank.peer.silent()
    one.provider.begin(one.plan, np.array([lost]), one.plan)
    one.board.taken[:] = 1
    one.provider.start(2)
    one.provider.finish()
    assert client.hget(key, OPEN) == b""
    one.rank.peer._told[_ALONE_UNTIL] = 0  # that pause has ended
    until(lambda: client.hget(key, OPEN) == np.array([0, lost], ">u4").tobytes())
    until(lambda: one.provider._teller is None)
    client.close()


def test_a_rank_names_the_reads_that_it_has_not_put(
    tmp_path: Path, three: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.data.peers.FIRST_PAUSE_S", 3600.0)  # however long the next lines take
    one = One(tmp_path, three[0], 64)
    client, key, lost = valkey.Valkey(port=three[0].port), one.rank.key, int(one.share.name["read"][20])
    of_read = np.flatnonzero(one.share.name["read"] == lost)
    client.hdel(key, *names_of(one.share.name[of_read]))
    one.rank.peer.silent()  # when this chunk is to be put
    one.provider.begin(one.plan, np.array([lost]), one.plan)
    one.board.taken[:] = 1
    one.provider.start(1)
    one.provider.finish()
    one.board.taken[:] = 0
    assert one.rank.peer.left_alone
    one.rank.peer._told[_ALONE_UNTIL] = 0
    one.provider.begin(one.plan, one.share.reads[:0], one.plan)
    served = Served()
    request = one.request(0, 64)
    assert [number_of(sample) for sample in one.source.fetch(request, served)] == request.samples.tolist()
    assert served.lost == served.direct_reads == len(of_read), "of others nothing is read alone"
    assert one.rank.waited_for
    later = WorldPlan(one.plan.staging, 1, 3, one.plan.reader, one.plan.names)
    one.provider.begin(later, one.share.reads[:0], later)
    assert client.hget(key, OPEN) == np.array([0, lost], ">u4").tobytes(), "a stay may be used epochs later"
    one.source.hang_up()
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


def test_a_silent_server_is_asked_more_and_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr("sentinel.data.peers.time.monotonic_ns", lambda: now[0])
    peer, pauses = Peer("127.0.0.1:1"), []
    for _ in range(9):
        peer.silent()
        peer.silent()  # another thread waited too
        before = now[0]
        while peer.left_alone:
            now[0] += 10**8
        pauses.append((now[0] - before) / 1e9)
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert peer.silences == 9
    peer.answered()
    peer.silent()
    now[0] += 5 * 10**8
    assert not peer.left_alone


def answering(said: bytes) -> tuple[socket.socket, int]:
    """A server that says this to whoever connects, and its port."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = listening.accept()
        with connection, suppress(OSError):
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1 << 16)  # to close before would lose what was said

    threading.Thread(target=answer, daemon=True).start()
    return listening, int(listening.getsockname()[1])


def test_replies_are_read_as_the_protocol_has_them() -> None:
    said = b"*3\r\n$3\r\na\r\n\r\n$-1\r\n:12\r\n+OK\r\n-OOM no room\r\n$0\r\n\r\n"
    listening, port = answering(said)
    with listening:
        connection = RespConnection("127.0.0.1", port, None, 300.0)
        read = [connection.reply() for _ in range(4)]
        assert read == [[b"a\r\n", None, 12], b"OK", Refusal("OOM no room"), b""]
        with pytest.raises(ConnectionError, match="has ended"):
            connection.reply()
        connection.close()
    for wrong in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"$9999999999\r\n", b"$x\r\n", b"*2\r\n" * 5_000):
        listening, port = answering(wrong)
        with listening:
            connection = RespConnection("127.0.0.1", port, None, 300.0)
            with pytest.raises(ConnectionError, match="not a server of samples"):
                connection.reply()
            connection.close()
    listening, port = answering(b"-WRONGPASS no\r\n")
    with listening, pytest.raises(NotLetInError, match="WRONGPASS"):
        RespConnection("127.0.0.1", port, "secret", 300.0)


def test_a_server_that_has_no_room_for_a_connection_is_given_the_right_password(
    capsys: pytest.CaptureFixture[str],
) -> None:
    listening, port = answering(b"-ERR max number of clients reached\r\n")
    with listening:
        Peer(f"127.0.0.1:{port}", "secret").greet()
    assert "does not answer (ERR max number of clients reached)" in capsys.readouterr().err
    listening, port = answering(b"-ERR AUTH <password> called without any password configured\r\n")
    with listening, pytest.raises(UsageError, match="refuses this process"):
        Peer(f"127.0.0.1:{port}", "secret").greet()
