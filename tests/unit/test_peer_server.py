"""A server of samples: on loopback or with a password, in the memory that was named, and with nothing on disk."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.cli import main
from sentinel.core.errors import UsageError
from sentinel.system import peer_server
from tests.resp_servers import answered, free_port

ROOT = Path(__file__).parents[2]


def test_what_cannot_be_served_is_refused_in_a_sentence(tmp_path: Path) -> None:
    for arguments, says in (
        ({"address": "192.0.2.1"}, "no password is given; .*--password-file"),
        ({"memory_bytes": 1000}, "too little here"),
        ({"memory_bytes": 1 << 60}, "too much here"),
        ({"address": "192.0.2.1", "password": "x"}, "nothing can listen at 192.0.2.1.*an address of this machine"),
        ({"password": 'a"b'}, "quotes"),
    ):
        with free_port() as port, pytest.raises(UsageError, match=says):
            peer_server.configuration(**{"memory_bytes": 8 << 20, "port": port, **arguments})
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError, match="another program does"):
        peer_server.configuration(8 << 20, port=taken.getsockname()[1])
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(UsageError, match="has no password"):
        peer_server.password_in(str(tmp_path / "empty"))
    with pytest.raises(UsageError, match="cannot be read"):
        peer_server.password_in(str(tmp_path / "none"))


def test_without_a_server_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["data", "serve", "--memory", "8MiB"]) == 1
    assert "apt-get install" in capsys.readouterr().err


@pytest.mark.needs("redis-server")
def test_it_serves_until_it_is_ended(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("open sesame\n")
    with free_port() as port:
        said = served(port, secret, tmp_path)
    assert f"holds up to 8.00 MiB at 127.0.0.1:{port}" in said
    assert [path.name for path in tmp_path.iterdir()] == ["secret"], "nothing is written"


def served(port: int, secret: Path, folder: Path) -> str:
    """What a server with that password says, that answered as it should."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "sentinel", "data", "serve", "--memory", "8MiB"),
            *("--port", str(port), "--password-file", str(secret)),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        login = b'AUTH "open sesame"\r\n'
        assert answered(port, b"PING").startswith(b"-NOAUTH")
        assert answered(port, login).startswith(b"+OK")
        for words in (b"CONFIG GET maxmemory", b"SHUTDOWN SAVE", b"SYNC", b"PSYNC ? -1"):
            assert b"unknown command" in answered(port, words)
        assert "sesame" not in Path(f"/proc/{process.pid}/cmdline").read_text()
        with socket.create_connection(("127.0.0.1", port)) as connection:
            lines = connection.makefile("rb")
            connection.sendall(login + b"INFO memory\r\n")
            assert lines.readline() == b"+OK\r\n"
            told = lines.read(int(lines.readline()[1:]))
            assert b"maxmemory:8388608" in told
            assert b"maxmemory_policy:noeviction" in told
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=600)
    return said
