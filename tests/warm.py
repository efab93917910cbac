"""Programs run in processes that have torch imported already: a new process imports it for some 6 s of a processor.

Each is forked from one server (warm_server.py) that this process starts when it is first asked, and finds its own
arguments, folder, environment, streams and main module. For tests that are about what a program does; those about how
one begins, what it costs or which memory it has use `subprocess`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

from tests.processes import LONGEST_S

_SERVER = Path(__file__).with_name("warm_server.py")


@cache
def _server(pid: int) -> str:
    """The socket of the server of this process; a forked child has one of its own."""
    folder = tempfile.mkdtemp(prefix="warm-")
    path = os.path.join(folder, "socket")
    # One thread of OpenBLAS, so that none is there as it forks.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    server = subprocess.Popen(
        [sys.executable, str(_SERVER), path], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"

    stdin = server.stdin

    def end() -> None:
        if os.getpid() == pid:
            stdin.close()
            server.wait(LONGEST_S)
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return path


def _program(command: Sequence[str | os.PathLike[str]]) -> tuple[str, str, list[str]]:
    """Kind, program and `sys.argv` of `python ...`."""
    python, *words = map(os.fspath, command)
    assert python == sys.executable, command
    if words[0] == "-m":
        return "module", words[1], words[1:]
    if words[0] == "-c":
        return "code", words[1], ["-c", *words[2:]]
    assert not words[0].startswith("-"), "options of Python's need a new process"
    return "file", words[0], words


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = LONGEST_S,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` of a program of this Python, whose output is captured as text."""
    kind, program, words = _program(command)
    request = {
        "kind": kind,
        "program": program,
        "words": words,
        "folder": os.fspath(cwd or os.getcwd()),
        "environment": dict(os.environ if env is None else env),
    }
    text = json.dumps(request).encode()
    command = list(map(os.fspath, command))
    with socket.socket(socket.AF_UNIX) as connection, contextlib.ExitStack() as stack:
        connection.settimeout(timeout)
        connection.connect(_server(os.getpid()))
        nothing = stack.enter_context(open(os.devnull))
        # Pipes, as of `subprocess`: a limit on the size of files does not hold for them.
        pipes = [os.pipe() for _ in range(2)]
        reading = [stack.enter_context(open(source, "rb", buffering=0)) for source, _ in pipes]
        socket.send_fds(connection, [struct.pack("I", len(text))], [nothing.fileno(), *(target for _, target in pipes)])
        for _, target in pipes:
            os.close(target)
        connection.sendall(text)
        (pid,) = struct.unpack("i", connection.recv(4, socket.MSG_WAITALL))
        try:
            said = _all_said(reading, time.monotonic() + timeout)
            (code,) = struct.unpack("i", connection.recv(4, socket.MSG_WAITALL))
        except BaseException as problem:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            if isinstance(problem, TimeoutError):
                raise subprocess.TimeoutExpired(command, timeout) from None
            raise
    done = subprocess.CompletedProcess(command, code, *said)
    if check:
        done.check_returncode()
    return done


def _all_said(pipes: Sequence[IO[bytes]], deadline: float) -> list[str]:
    """What comes through each until its other end is closed."""
    said = [bytearray() for _ in pipes]
    with selectors.DefaultSelector() as selector:
        for number, pipe in enumerate(pipes):
            selector.register(pipe, selectors.EVENT_READ, number)
        while selector.get_map():
            ready = selector.select(max(deadline - time.monotonic(), 0))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                chunk = os.read(key.fd, 1 << 16)
                said[key.data] += chunk
                if not chunk:
                    selector.unregister(key.fileobj)
    return [text.decode() for text in said]
