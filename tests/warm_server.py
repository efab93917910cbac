"""Forks a process that has torch imported for each program that tests/warm.py asks for: warm_server.py SOCKET.

It imports what a program imports anyway and takes long, nothing of Sentinel, starts no thread and runs no operator.
"""

from __future__ import annotations

import array
import contextlib
import importlib
import json
import os
import random
import runpy
import selectors
import signal
import socket
import struct
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

IMPORTED = ("torch._dynamo", "torch.utils.data", "highspy", "pandas")
"""Besides torch: by a script's first optimizer and its loaders, by plans, by reports."""


def _asked(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A request, and the three streams of the process that it is for."""
    streams = array.array("i")
    space = socket.CMSG_SPACE(3 * streams.itemsize)
    head, ancillary, _, _ = connection.recvmsg(4, space, socket.MSG_WAITALL)
    for _, _, data in ancillary:
        streams.frombytes(data)
    (size,) = struct.unpack("I", head)
    text = b""
    while len(text) < size:
        text += connection.recv(size - len(text))
    return json.loads(text), list(streams)


def _tell_ends(running: dict[int, socket.socket]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with running.pop(pid) as connection, contextlib.suppress(OSError):
            connection.sendall(struct.pack("i", os.waitstatus_to_exitcode(status)))


def serve(path: str) -> dict[str, Any] | None:
    """Returns a request in the process forked for it, and None in the server, once what it reads of has been closed."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.set_wakeup_fd(waking)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, socket.socket] = {}
    print("ready", flush=True)
    with selectors.DefaultSelector() as selector:
        for source in (0, woken, listener.fileno()):
            selector.register(source, selectors.EVENT_READ)
        while True:
            for number in [key.fd for key, _ in selector.select()]:
                if number == 0:
                    return None
                if number == woken:
                    os.read(woken, 1 << 10)
                    _tell_ends(running)
                    continue
                connection, _ = listener.accept()
                request, streams = _asked(connection)
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    selector.close()
                    for one in (listener, connection, *running.values()):
                        one.close()
                    for to, stream in enumerate(streams):
                        os.dup2(stream, to)
                    for descriptor in (woken, waking, *streams):
                        os.close(descriptor)
                    return request
                for stream in streams:
                    os.close(stream)
                running[pid] = connection
                connection.sendall(struct.pack("i", pid))


def _begin(request: dict[str, Any], path: list[str]) -> ModuleType:
    """Makes this process what `python PROGRAM` finds as it starts. Returns its main module."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:] = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *path]
    sys.argv[:] = request["words"]
    for name, descriptor in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        stream = open(descriptor, "w" if descriptor else "r", 1 if descriptor == 2 else -1, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    if threads := os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))
    random.seed()
    np.random.seed()
    sys.modules["the server of this process"] = sys.modules["__main__"]
    main = sys.modules["__main__"] = ModuleType("__main__")
    return main


# At the top, so that nothing of ours comes after the program: its last exception goes to its own hook, its threads are
# waited for and its exit handlers run as Python ends.
if __name__ == "__main__":
    without_this_folder = sys.path[1:]
    for each in IMPORTED:
        importlib.import_module(each)
    request = serve(sys.argv[1])
    if request is not None:
        main = _begin(request, without_this_folder)
        if request["kind"] == "module":
            sys.path.insert(0, os.getcwd())
            runpy._run_module_as_main(request["program"])  # type: ignore[attr-defined]
        elif request["kind"] == "code":
            sys.path.insert(0, "")
            exec(request["program"], main.__dict__)
        else:
            sys.path.insert(0, str(Path(request["program"]).resolve().parent))
            main.__file__ = request["program"]
            exec(compile(Path(request["program"]).read_bytes(), request["program"], "exec"), main.__dict__)
