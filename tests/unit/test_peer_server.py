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
from sentinel.core.errors import CapabilityError, NativeError, SentinelError, UsageError
from sentinel.system import numa, peer_server, probes
from sentinel.system.topology import topology
from tests.resp_servers import answered, free_port, placed

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


# --- where its memory is ---


@pytest.fixture
def placing() -> None:
    try:
        probes.mbind()
    except (probes.Missing, SentinelError) as error:
        pytest.skip(f"needs memory policies, which are refused here: {error}")


@pytest.mark.needs("redis-server")
@pytest.mark.usefixtures("placing")
@pytest.mark.parametrize("where", ["fast", "numa:{}", "auto"])
def test_its_memory_has_the_policy_of_the_node_that_the_word_means(where: str) -> None:
    host = topology()
    node = host.slower[-1] if host.slower and where == "auto" else host.fast
    with free_port() as port:
        words = ["data", "serve", "--memory", "8MiB", "--port", str(port), "--where", where.format(node)]
        process = subprocess.Popen(
            [sys.executable, "-m", "sentinel", *words],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert answered(port, b"PING").startswith(b"+PONG")
            policies, pages = placed(process.pid)
        finally:
            process.kill()
            _, said = process.communicate(timeout=600)
    if where == "auto" and not host.slower:
        assert policies == {"default"}, "there is no choice"
        assert "on node" not in said
        return
    assert policies in ({f"prefer:{node}"}, {f"prefer=static:{node}"})
    assert pages.keys() == {node}
    assert f"memory for samples is on node {node}" in said


@pytest.mark.parametrize(
    ("where", "code", "says"),
    [
        ("here", 2, '"numa:N" or "file:DIR"'),
        ("numa:77", 1, "no memory on a node 77"),
        ("file:/", 2, "a server holds samples in memory"),
        ("fast", 2, "memory for samples takes 1024.00 TiB"),
    ],
)
def test_places_that_are_refused(
    where: str, code: int, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sentinel.system.peer_server.program", lambda: "/bin/false")
    memory = "1024TiB" if where == "fast" else "8MiB"
    assert main(["data", "serve", "--memory", memory, "--where", where]) == code
    assert says in capsys.readouterr().err


def test_a_kernel_that_refuses_policies_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise NativeError("set_mempolicy", 1)

    monkeypatch.setattr(numa, "system_call", refused)
    with pytest.raises(CapabilityError, match=r"memory on node 3.*set_mempolicy.*leave --where out"):
        peer_server.serve("/bin/false", "", 3)
