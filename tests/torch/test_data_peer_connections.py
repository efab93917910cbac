"""One server as one process speaks with it: its replies, how long it is waited for, and when it is asked again."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from sentinel.core.errors import UsageError
from sentinel.data.peers import Peer
from sentinel.data.resp_client import NotLetInError, Refusal, RespConnection
from tests.torch.loaders import wait_for_peers


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_peers(monkeypatch)


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
