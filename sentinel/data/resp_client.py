"""A connection to a server that speaks the protocol of Valkey and Redis (RESP 2), made for large values.

Commands are sent, and their replies are read later: who needs something of several servers asks all of them first.
"""

from __future__ import annotations

import socket
import weakref
from typing import Any, NamedTuple

from sentinel.core.interrupts import let_through

_BUFFER_BYTES = 1 << 18
_LONGEST_LINE = 1 << 16
_MOST_BYTES = 512 << 20
"""Of a value: the protocol's own limit."""
_TOO_MANY = "ERR max number of clients"
"""What a server that has no room for a connection says to whatever it is asked first."""


class Refusal(NamedTuple):
    """The server does not do what it was asked for."""

    said: str


class NotLetInError(OSError):
    """The server wants another password."""


class RespConnection:
    """One connection. For one thread at a time."""

    def __init__(self, host: str, port: int, password: str | None, timeout_s: float) -> None:
        """Connects, and gives the password if there is one. `timeout_s`: for each part that is sent or received.

        Raises OSError where nobody answers in that time, or has no room, NotLetInError for a wrong password.
        """
        self._socket = socket.create_connection((host, port), timeout_s)
        self._received = self._socket.makefile("rb", _BUFFER_BYTES)
        self.close = weakref.finalize(self, _close, self._received, self._socket)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if password is not None:
            self.send((b"AUTH", password.encode()))
            said = self.reply()
            if isinstance(said, Refusal):
                self.close()
                raise ConnectionError(said.said) if said.said.startswith(_TOO_MANY) else NotLetInError(said.said)

    def send(self, *commands: tuple[bytes, ...]) -> None:
        """All of them at once; each has a reply. Raises OSError."""
        parts: list[bytes] = []
        for command in commands:
            parts.append(b"*%d\r\n" % len(command))
            for part in command:
                parts += (b"$%d\r\n" % len(part), part, b"\r\n")
        left = memoryview(b"".join(parts))
        while left:  # sendall would have one timeout for all of it
            left = left[self._socket.send(left) :]

    def reply(self) -> Any:
        """Of the first command that has none yet: bytes, int, Refusal, a list of such, or None. Raises OSError where
        it does not come, or is none."""
        try:
            return self._reply()
        except (ValueError, OverflowError, MemoryError, RecursionError) as error:
            let_through(error)
            raise ConnectionError("what listens there is not a server of samples") from error

    def _reply(self) -> Any:
        line = self._received.readline(_LONGEST_LINE)
        if line[-2:] != b"\r\n":
            raise ConnectionError("the server has ended the connection")
        kind, said = line[:1], line[1:-2]
        if kind == b"$":
            return self._bytes(int(said))
        if kind == b"*":
            return [self._reply() for _ in range(int(said))]
        if kind == b":":
            return int(said)
        if kind == b"-":
            return Refusal(said.decode(errors="replace"))
        if kind == b"+":
            return said
        raise ValueError(line)

    def _bytes(self, nbytes: int) -> bytes | None:
        if nbytes < 0:
            return None
        if nbytes > _MOST_BYTES:
            raise ValueError(nbytes)
        data: bytes = self._received.read(nbytes + 2)
        if len(data) != nbytes + 2:
            raise ConnectionError("the server has ended the connection")
        return data[:-2]


def _close(*streams: Any) -> None:
    for stream in streams:
        stream.close()
