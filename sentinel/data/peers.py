"""Peers: the servers that hold the samples of a job's machines, as one process reaches them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, TypeVar

from sentinel.core.errors import CapabilityError, UsageError
from sentinel.system.peer_server import PORT, password_in
from sentinel.system.progress import say

T = TypeVar("T")

TIMEOUT_S = 0.5
"""For each part of an answer."""
LEFT_ALONE_S = 30.0
"""For so long a peer that did not answer is not asked again."""


class Peer:
    """One server, which speaks the protocol of Valkey and Redis (RESP). For several threads."""

    def __init__(self, address: str, password: str | None = None) -> None:
        """Does not connect yet. Raises UsageError for what is no `host:port`, CapabilityError without the client."""
        try:
            import valkey
        except ImportError as error:
            raise CapabilityError(
                "peers=", "the package valkey is missing", "pip install 'sentinel-hm[data]'"
            ) from error
        self.address = address
        host, port = _host_and_port(address)
        self._client = valkey.Valkey(
            host=host,
            port=port,
            password=password,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
        )
        errors = valkey.exceptions
        self._silent = (errors.ConnectionError, errors.TimeoutError, OSError)
        self._unwelcome = errors.AuthenticationError
        self._refused = errors.ValkeyError
        self._lock = Lock()
        self._alone_until = 0.0
        self.silences = self.refusals = 0
        """How often it did not answer, and how often it answered that it does not do what it was asked for."""

    @property
    def left_alone(self) -> bool:
        """Whether it is not asked now, for it did not answer."""
        return time.monotonic() < self._alone_until

    def ask(self, what: Callable[[Any], T]) -> T | None:
        """What `what` makes of the client; None where the peer is left alone, does not answer or refuses, as one does
        that is full."""
        if self.left_alone:
            return None
        try:
            return what(self._client)
        except self._silent:
            with self._lock:
                self.silences += not self.left_alone  # several threads may have waited for it
                self._alone_until = time.monotonic() + LEFT_ALONE_S
        except self._refused:
            with self._lock:
                self.refusals += 1
        return None

    def greet(self) -> None:
        """Asks whether it is there, and says so if it is not: training goes on without it. Raises UsageError where it
        wants another password."""
        try:
            self._client.ping()
        except self._unwelcome as error:
            raise UsageError(
                f"the peer {self.address} does not let this process in ({error})",
                "give the password that it was started with, in a file: peers_password_file=",
            ) from error
        except (*self._silent, self._refused) as error:
            said = f"the peer {self.address} does not answer ({error}): its samples are read alone until it does"
            say(said, wrong=True)


def peers_named(peers: Sequence[str], world: int, password_file: str | None = None) -> list[Peer]:
    """One for each address, all of which were greeted. Raises UsageError for addresses that do not suit `world` ranks,
    and what Peer raises."""
    if isinstance(peers, str) or not all(isinstance(peer, str) for peer in peers):
        raise UsageError(f"peers={peers!r} are no addresses", 'give peers=("host:port", ...)')
    if len(set(peers)) != len(peers):
        raise UsageError(f"peers={tuple(peers)!r} names one server twice", "name each once")
    if world % len(peers):
        raise UsageError(
            f"{len(peers)} peers cannot be divided among {world} ranks",
            "name one server a machine, in the order of its ranks, with as many ranks on each machine",
        )
    password = None if password_file is None else password_in(password_file)
    found = [Peer(peer, password) for peer in peers]
    for peer in found:
        peer.greet()
    return found


def _host_and_port(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or (host.count(":") and not host.startswith("[")):
        host, port = address, str(PORT)
    if not host.strip("[]") or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 1 << 16:
        raise UsageError(f"{address!r} is no address of a peer", 'write "host:port"')
    return host.strip("[]"), int(port)
