"""Samples that a rank has put into a server, as others get them: what is asked for, deleted, and waited for."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")
valkey = pytest.importorskip("valkey", reason="needs valkey: pip install '.[data]'")

from sentinel.data.data_index import open_data  # noqa: E402
from sentinel.data.feeding import permutation  # noqa: E402
from sentinel.data.peer_exchange import BEGUN, OPEN, ChunkProvider, Progress, names_of  # noqa: E402
from sentinel.data.peer_feeding import cut_for_peers, rooms_within  # noqa: E402
from sentinel.data.peer_samples import FromPeers  # noqa: E402
from sentinel.data.peers import _ALONE_UNTIL, Peer, RankHash  # noqa: E402
from sentinel.data.sample_arena import RUNNING, SampleArena  # noqa: E402
from sentinel.data.served_samples import Served  # noqa: E402
from sentinel.data.source_files import SourceFiles  # noqa: E402
from sentinel.data.staged_samples import Held, Request  # noqa: E402
from sentinel.samples import Epoch, Order, WorldPlan, plan_world  # noqa: E402
from sentinel.samples.world_plan import RankShare  # noqa: E402
from tests.data_files import number_of, shards  # noqa: E402
from tests.processes import until  # noqa: E402
from tests.resp_servers import Server, servers  # noqa: E402
from tests.torch.loaders import wait_for_peers  # noqa: E402

pytestmark = pytest.mark.needs("redis-server")


@pytest.fixture(autouse=True)
def _patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wait_for_peers(monkeypatch)


@pytest.fixture
def server() -> Iterator[Server]:
    with servers(1) as (found,):
        yield found


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
        self.source = FromPeers(self.files, self.board, [self.rank], data.source, self.provider.token)

    def request(self, begin: int, stop: int, following: Request | None = None) -> Request:
        share, cut = self.share, slice(begin, stop)
        held = Held(share.reader, share.name, share.last, np.zeros(len(share.order), np.bool_)).cut(cut)
        return Request(begin, share.order[cut], share.first[cut], share.direct[cut], held, following)


def test_wrong_bytes_in_a_server_are_no_samples(tmp_path: Path, server: Server) -> None:
    one = One(tmp_path, server, 96)
    assert (one.provider.log.counts.reads, one.provider.failed) == (len(one.plan.staging.read_chunk), 0)
    client, key = valkey.Valkey(port=server.port), one.rank.key
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


def test_a_rank_whose_epoch_ends_repeats_the_token_of_one_that_has_just_asked(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.data.peer_exchange._LOOKED_AGAIN_S", 3600.0)
    one, token = One(tmp_path, server, 96), bytes(range(8))
    client, key = valkey.Valkey(port=server.port), one.rank.key
    one.provider.begin(replace(one.plan, epoch=1, world=2), one.share.reads[:0], one.plan)
    one.provider.start(1)
    client.append(one.rank.asked, token)
    one.provider.finish()
    assert token in client.hget(key, BEGUN)
    client.close()


def test_what_nobody_has_deleted_goes_once_all_ranks_have_ended_the_epoch(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As what a worker that was lost was to delete. A server that is silent then is asked an epoch later."""
    monkeypatch.setattr("sentinel.data.peers.FIRST_PAUSE_S", 3600.0)
    one = One(tmp_path, server, 96)
    client, key, none = valkey.Valkey(port=server.port), one.rank.key, one.share.reads[:0]
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


def test_a_server_is_asked_once_for_each_batch(tmp_path: Path, server: Server) -> None:
    one = One(tmp_path, server, 128)
    requests: list[Request] = []
    for begin in range(96, -1, -32):
        requests.insert(0, one.request(begin, begin + 32, requests[0]._replace(following=None) if requests else None))
    found, served = [], [Served() for _ in requests]
    for number in (0, 1, 2):
        found += [number_of(sample) for sample in one.source.fetch(requests[number], served[number])]
    client = valkey.Valkey(port=server.port)
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
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch would cost the more, the more ranks there are."""
    one = One(tmp_path, server, 64)
    one.source._ranks += [RankHash(Peer(server.address), b"sentinel:other") for _ in range(3)]
    looked: list[RankHash | Peer] = []

    def watched(told: Any) -> property:
        def ask(of: RankHash | Peer) -> bool:
            looked.append(of)
            return bool(told.fget(of))

        return property(ask)

    for kind, name in ((RankHash, "waited_for"), (Peer, "left_alone")):
        monkeypatch.setattr(kind, name, watched(vars(kind)[name]))
    client, key = valkey.Valkey(port=server.port), one.rank.key
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


def test_what_a_full_server_refused_is_not_waited_for(tmp_path: Path, server: Server) -> None:
    one = One(tmp_path, server, 64)
    client, key = valkey.Valkey(port=server.port), one.rank.key
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
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.data.peer_samples.LATE_S", 0.0)  # if it is waited for, it comes too late
    one = One(tmp_path, server, 64)
    client, key = valkey.Valkey(port=server.port), one.rank.key
    client.hdel(key, OPEN, *names_of(one.share.name[:8]))
    served = Served()
    request = one.request(0, 8)
    assert [number_of(sample) for sample in one.source.fetch(request, served)] == request.samples.tolist()
    assert (served.lost, served.direct_reads, one.rank.late) == (8, 8, 0)
    one.source.hang_up()
    client.close()


def test_reads_that_a_silent_server_was_not_told_are_named_after_the_last_one(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others wait for them, be it the last ones of an epoch, or after this rank's last batch."""
    monkeypatch.setattr("sentinel.data.peers.FIRST_PAUSE_S", 3600.0)
    one = One(tmp_path, server, 64)
    client, key = valkey.Valkey(port=server.port), one.rank.key
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
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.data.peers.FIRST_PAUSE_S", 3600.0)  # however long the next lines take
    one = One(tmp_path, server, 64)
    client, key, lost = valkey.Valkey(port=server.port), one.rank.key, int(one.share.name["read"][20])
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


def test_an_outage_is_waited_for_by_who_needs_the_samples_and_by_no_other_thread(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python would end only after the threads that read."""
    one, waits = One(tmp_path, server, 96), list[str]()
    right = [bytes(found) for found in one.files.alone(np.arange(3))]
    real = os.pread

    def sleep(seconds: float) -> None:
        if seconds >= 1:
            waits.append(threading.current_thread().name)
            monkeypatch.setattr(os, "pread", real)

    def fails(*_: Any) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("sentinel.data.retries.time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    monkeypatch.setattr(os, "pread", fails)
    assert [bytes(found) for found in one.source._alone(np.arange(3))] == right
    assert waits == [threading.current_thread().name]
