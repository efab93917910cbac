"""Peers: the servers that hold the samples of a job's machines, as the processes of one rank know them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sentinel.core.errors import UsageError
from sentinel.core.interrupts import is_interrupt, let_through
from sentinel.core.rules import require
from sentinel.data.resp_client import NotLetInError, Refusal, RespConnection
from sentinel.system.peer_server import PORT, password_in
from sentinel.system.progress import say

TIMEOUT_S = 0.2
"""For each part of an answer."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
"""For so long a peer that did not answer is not asked again; twice as long if it does not answer then either."""
UNWAITED_S = 30.0
"""For so long nothing is waited for that a rank has not put yet, where it came too late."""
_GREETING_S = 2.0
_ALONE_UNTIL, _PAUSE, _SILENCES, _REFUSALS = range(4)
_UNWAITED_UNTIL, _LATE, _SEEN_BEGUN, _CLOSED = range(4)

Row = tuple[torch.Tensor, int]
"""A board in shared memory, and which of its rows."""


def rows(count: int) -> list[Row]:
    """Those of one board: each board takes a descriptor, in each process that has it."""
    board = torch.zeros((count, 4), dtype=torch.int64).share_memory_()
    return [(board, row) for row in range(count)]


def late_counts(board: Sequence[Row]) -> NDArray[np.int64]:
    """(ranks,) How often samples of each rank did not come in time, of ranks that have the rows of one `board` in this
    order: not a copy, but what they count in."""
    counts: NDArray[np.int64] = board[0][0].numpy()[:, _LATE]
    return counts


class _Told:
    """Numbers that a process and its workers share, be they forked or spawned. Two that count at once may count one."""

    def __init__(self, row: Row | None) -> None:
        """`row`: of `rows`; None: of a board of its own."""
        self._board, self._row = row or rows(1)[0]

    @property
    def _told(self) -> NDArray[np.int64]:
        """The row, where it lies: an array of numpy would be a copy in a process that gets it pickled."""
        told: NDArray[np.int64] = self._board.numpy()[self._row]
        return told


class Peer(_Told):
    """One server, which speaks the protocol of Valkey and Redis (RESP). For several threads and processes."""

    def __init__(self, address: str, password: str | None = None, row: Row | None = None) -> None:
        """Does not connect yet. `row`: of `rows`; None: of a board of its own. Raises UsageError for what is no
        `host:port`."""
        super().__init__(row)
        self.address, self._password = address, password
        self._host, self._port = _host_and_port(address)

    @property
    def left_alone(self) -> bool:
        """Whether it is not asked now, for it did not answer."""
        return time.monotonic_ns() < int(self._told[_ALONE_UNTIL])

    @property
    def silences(self) -> int:
        """How often it did not answer."""
        return int(self._told[_SILENCES])

    @property
    def refusals(self) -> int:
        """How often it answered that it does not do what it was asked for, as one does that is full."""
        return int(self._told[_REFUSALS])

    def answered(self) -> None:
        """If it is silent again, it is a first time."""
        self._told[_PAUSE] = 0

    def silent(self) -> None:
        """It did not answer: it is left alone for a while."""
        if not self.left_alone:  # several may have waited for it
            pause = max(round(FIRST_PAUSE_S * 1e9), min(2 * int(self._told[_PAUSE]), round(LONGEST_PAUSE_S * 1e9)))
            self._told[_SILENCES] += 1
            self._told[_PAUSE], self._told[_ALONE_UNTIL] = pause, time.monotonic_ns() + pause

    def refused(self) -> None:
        """It does not do what it was asked for."""
        self._told[_REFUSALS] += 1

    def connect(self, timeout_s: float | None = None) -> RespConnection:
        """A connection of its own. Raises what RespConnection raises."""
        return RespConnection(self._host, self._port, self._password, timeout_s or TIMEOUT_S)

    def greet(self) -> None:
        """Asks whether it is there, and says so if it is not: training goes on without it. Raises UsageError where it
        wants another password."""
        try:
            connection = self.connect(_GREETING_S)
            try:
                connection.send((b"PING",))
                said = connection.reply()
            finally:
                connection.close()
            if isinstance(said, Refusal):
                raise NotLetInError(said.said) if said.said.startswith(("NOAUTH", "NOPERM")) else OSError(said.said)
        except NotLetInError as error:
            raise UsageError(
                f"the peer {self.address} refuses this process ({error})",
                "give a file with the server's password: peers_password_file=",
            ) from error
        except OSError as error:
            let_through(error)
            said = f"the peer {self.address} does not answer ({error}): its samples are read alone until it does"
            say(said, wrong=True)


class RankHash(_Told):
    """The hash in which a rank puts its samples, in the server of its machine, as another rank knows it."""

    def __init__(self, peer: Peer, key: bytes, note: bytes = b"", row: Row | None = None) -> None:
        """`note`: what the plan of all ranks is made of, beside what the key tells; each rank leaves it with its
        samples. `row`: as of a Peer."""
        super().__init__(row)
        self.peer, self.key, self.note = peer, key, note

    @property
    def asked(self) -> bytes:
        """The key of the tokens that this rank is to repeat."""
        return b"sentinel-asked" + self.key.removeprefix(b"sentinel")

    @property
    def waited_for(self) -> bool:
        """Whether samples that are not there may come soon."""
        closed = self.peer.left_alone or bool(self._told[_CLOSED])
        return not closed and time.monotonic_ns() >= int(self._told[_UNWAITED_UNTIL])

    @property
    def late(self) -> int:
        """How often its samples did not come in time."""
        return int(self._told[_LATE])

    def came_late(self) -> None:
        """Its samples are not waited for, for a while."""
        self._told[_LATE] += self.waited_for
        self._told[_UNWAITED_UNTIL] = time.monotonic_ns() + round(UNWAITED_S * 1e9)

    def looked_at(self, has_begun: bool, is_open: bool) -> None:
        """Whether the rank says that it has begun, and that it puts there what it reads. If it has begun and does not,
        its server is full; if it had begun and says nothing any more, its server has lost all."""
        self._told[_SEEN_BEGUN] |= has_begun
        self._told[_CLOSED] = self._told[_SEEN_BEGUN] and not is_open


class Line:
    """A connection to a peer that is made when it is needed, and again after it was lost. For one thread."""

    def __init__(self, peer: Peer, timeout_s: float | None = None) -> None:
        """`timeout_s`: where answers may take long."""
        self.peer, self._timeout_s = peer, timeout_s
        self._connection: RespConnection | None = None
        self._wanted: deque[bool] = deque()
        """Whether somebody reads the replies that are to come, in their order."""

    def send(self, *commands: tuple[bytes, ...], unread: int = 0) -> RespConnection | None:
        """What `reply` is to be given; None where the peer is left alone, or does not take them. Nobody reads the
        replies of the first `unread` commands."""
        if self.peer.left_alone:
            return None
        try:
            if self._connection is None:
                self._connection = self.peer.connect(self._timeout_s)
            self._connection.send(*commands)
        except BaseException as error:
            self._lost(error)
            return None
        self._wanted.extend(number >= unread for number in range(len(commands)))
        return self._connection

    def reply(self, sent: RespConnection | None) -> Any:
        """The next reply; None where it does not come."""
        if sent is None or sent is not self._connection:
            return None
        try:
            while not self._wanted.popleft():
                sent.reply()
            said = sent.reply()
        except BaseException as error:
            self._lost(error)
            return None
        self.peer.answered()
        return said

    def ask(self, *commands: tuple[bytes, ...]) -> list[Any]:
        """The replies; None in place of those that do not come."""
        sent = self.send(*commands)
        return [self.reply(sent) for _ in commands]

    def settle(self) -> None:
        """Waits until the server has done what it was sent, and nobody reads the reply of."""
        while self._connection is not None and self._wanted and not self._wanted[0]:
            try:
                self._connection.reply()
                self._wanted.popleft()
            except BaseException as error:
                self._lost(error)

    def close(self) -> None:
        """Ends the connection."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._wanted.clear()

    def _lost(self, error: BaseException) -> None:
        self.close()  # half of a message may be left unread
        if is_interrupt(error) or not isinstance(error, OSError):
            raise error
        self.peer.silent()


def peers_named(peers: Sequence[str], world: int, password_file: str | None = None) -> list[Peer]:
    """One for each address, all of which were greeted. Raises UsageError for addresses that do not suit `world` ranks,
    and what Peer raises."""
    if isinstance(peers, str) or not isinstance(peers, Sequence) or not all(isinstance(peer, str) for peer in peers):
        raise UsageError(f"peers={peers!r} are not addresses", 'give peers=("host:port", ...)')
    require(
        (len(set(peers)) != len(peers), f"peers={tuple(peers)!r} names one server twice", "name each once"),
        (
            world % len(peers),
            f"{len(peers)} peers cannot be divided among {world} ranks",
            "name one server a machine, in the order of its ranks, with as many ranks on each machine",
        ),
    )
    password = None if password_file is None else password_in(password_file)
    found = [Peer(peer, password, row) for peer, row in zip(peers, rows(len(peers)), strict=True)]
    for peer in found:
        peer.greet()
    return found


def _host_and_port(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or (host.count(":") and not host.startswith("[")):
        host, port = address, str(PORT)
    host = host.strip("[]")
    try:
        host.encode("idna")  # as a connection does: a host has no empty or long part
    except UnicodeError:
        host = ""
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 1 << 16:
        raise UsageError(f"{address!r} is not an address of a peer", 'write "host:port"')
    return host, int(port)
