"""Servers of samples for tests, as `sentinel data serve` starts them."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sentinel.system import peer_server
from tests.processes import LONGEST_S


@dataclass
class Server:
    """One that runs on loopback."""

    process: subprocess.Popen[bytes]
    port: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@contextmanager
def free_port() -> Iterator[int]:
    """A port of loopback that nobody else is given within the block: who asks for it by name may listen there, as
    servers do, which set SO_REUSEADDR."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


def answered(port: int, words: bytes) -> bytes:
    """The first line of what a server says to `words`, once it listens."""
    began = time.monotonic()
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=LONGEST_S) as connection:
                connection.sendall(words + b"\r\n")
                return connection.makefile("rb").readline()
        except OSError:
            assert time.monotonic() - began < LONGEST_S, "no server listens"
            time.sleep(0.02)


@contextmanager
def servers(count: int, memory_bytes: int = 64 << 20, password: str | None = None) -> Iterator[list[Server]]:
    """So many servers, which end with the block."""
    found: list[Server] = []
    with ExitStack() as ports:
        try:
            for _ in range(count):
                port = ports.enter_context(free_port())
                process = subprocess.Popen(
                    [peer_server.program(), "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd="/"
                )
                found.append(Server(process, port))
                assert process.stdin is not None
                process.stdin.write(peer_server.configuration(memory_bytes, port=port, password=password).encode())
                process.stdin.close()
            for server in found:
                answered(server.port, b"PING")
            yield found
        finally:
            for server in found:
                server.process.send_signal(signal.SIGKILL)
                server.process.wait(LONGEST_S)


def placed(pid: int) -> tuple[set[str], Counter[int]]:
    """By the kernel's word, of the memory of a process that is no file's: its policies, and node -> pages."""
    policies, pages = set(), Counter[int]()
    for line in Path(f"/proc/{pid}/numa_maps").read_text().splitlines():
        if "anon=" not in line:
            continue
        policies.add(line.split()[1])
        for node, count in re.findall(r" N(\d+)=(\d+)", line):
            pages[int(node)] += int(count)
    return policies, pages
