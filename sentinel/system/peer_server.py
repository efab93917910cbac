"""A server of samples: Valkey or Redis, configured to hold what it is given in memory, and nothing else."""

from __future__ import annotations

import errno
import ipaddress
import os
import shutil
import socket
from pathlib import Path

from sentinel.core.errors import CapabilityError, NativeError, UsageError
from sentinel.core.rules import require
from sentinel.core.units import format_bytes
from sentinel.system import numa
from sentinel.system.limits import available_bytes

PROGRAMS = ("valkey-server", "redis-server")
LOOPBACK = "127.0.0.1"
PORT = 6379
_LEAST_BYTES = 2 << 20
"""What the server takes for itself, and something beside it."""
_NOT_NEEDED = (
    *("CONFIG", "DEBUG", "MIGRATE", "MODULE", "REPLICAOF", "SLAVEOF", "SYNC", "PSYNC"),
    *("SAVE", "BGSAVE", "BGREWRITEAOF", "SHUTDOWN"),
)
"""Commands with which who can connect could write files (SHUTDOWN SAVE, and SYNC before version 7, write a dump), or
send what is here elsewhere. Each is known to all versions: the server does not start with one that it does not know."""


def program() -> str:
    """Path of the server. Raises CapabilityError, naming what to install, where there is none."""
    for name in PROGRAMS:
        found = shutil.which(name)
        if found:
            return found
    raise CapabilityError(
        "a server of samples",
        f"there is no {' or '.join(PROGRAMS)}",
        "apt-get install valkey-server, or redis-server where that is not known",
    )


def configuration(memory_bytes: int, address: str = LOOPBACK, port: int = PORT, password: str | None = None) -> str:
    """The server's configuration: at most `memory_bytes`, nothing is evicted, nothing is written to disk.

    Raises UsageError for an address that others can reach without a password, for memory that this machine does not
    have, and where nothing can listen at `address` and `port`.
    """
    there = available_bytes()
    require(
        (
            password is None and not _is_loopback(address),
            f"{address} can be reached by other machines, and no password is given",
            "write one into a file that only you can read, and give --password-file",
        ),
        (
            password is not None and (not password.isprintable() or '"' in password or "\\" in password),
            "the password has quotes, backslashes or control characters",
            "give letters and digits",
        ),
        (
            not _LEAST_BYTES <= memory_bytes <= there,
            f"{format_bytes(memory_bytes)} of memory is {'too little' if memory_bytes < there else 'too much'} here",
            f"give {format_bytes(_LEAST_BYTES)} to {format_bytes(there)}",
        ),
    )
    _check_listening(address, port)
    lines = [
        f"bind {address}",
        f"port {port}",
        f"maxmemory {memory_bytes}",
        "maxmemory-policy noeviction",
        'save ""',
        "appendonly no",
        "daemonize no",
        *(f'rename-command {command} ""' for command in _NOT_NEEDED),
    ]
    if password is not None:
        lines.append(f'requirepass "{password}"')
    return "\n".join(lines) + "\n"


def serve(server: str, configured: str, node: int | None = None) -> None:
    """Becomes the program `server`, whose memory comes from `node` where that has room. Its configuration goes there by
    a pipe: nobody sees the password among the arguments of processes. Does not return.

    Raises CapabilityError where the kernel refuses that policy.
    """
    if node is not None:
        try:
            numa.prefer_from_now_on(node)  # exec keeps it, and each thread of the server has it
        except NativeError as error:
            raise CapabilityError(
                f"placing the server's memory on node {node}",
                str(error),
                "allow memory policies (docker: --cap-add SYS_NICE), or leave --where out",
            ) from error
    read, write = os.pipe()
    os.write(write, configured.encode())  # less than a pipe holds
    os.close(write)
    os.dup2(read, 0)
    os.set_inheritable(0, True)
    if read:  # 0 where stdin was closed
        os.close(read)
    os.execv(server, [server, "-"])


def password_in(path: str) -> str:
    """The first line of a file. Raises UsageError where there is none."""
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeError) as error:
        raise UsageError(f"the password in {path} cannot be read ({error})", "write it there, in a line") from error
    if not lines or not lines[0]:
        raise UsageError(f"{path} has no password", "write it there, in its first line")
    return lines[0]


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _check_listening(address: str, port: int) -> None:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except (OSError, OverflowError, UnicodeError) as error:
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        raise UsageError(
            f"nothing can listen at {address}, port {port} ({error})",
            "another program does: give another --port" if taken else "give an address of this machine, and a port",
        ) from error
