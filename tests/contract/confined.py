"""Trains a small model under Sentinel as a user without rights, or in a sandbox, and prints what it was told as JSON.

    python confined.py TRACKER [SYSTEM_CALL...]    gives up all rights; from then on seccomp refuses each SYSTEM_CALL
    python confined.py TRACKER keep-rights         gives up nothing
    python confined.py WORDS -- WORDS ...          each in a process of its own, forked before; a line each

All that is imported and compiled is so before: the files may not be everybody's to read.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import pkgutil
import platform
import re
import struct
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

import sentinel
from sentinel import session
from sentinel.cli.doctor_watchers import examine
from sentinel.profiler import operators
from sentinel.profiler.pages import PageTracker, choose
from sentinel.system.capabilities import probe_all
from sentinel.system.kernel import _NUMBERS
from tests.without_rights import draw_a_report, read_beforehand

NOBODY = 65534
_MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}
_IOCTL = {"x86_64": 16, "aarch64": 29}
_USERFAULTFD_IOC_NEW = 0xAA00
_SECOND_ARGUMENT = 24  # of the system call, its lower half in seccomp's data
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 4, 24, 22, 38, 47
_LOAD, _EQUALS, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EPERM = 1
_libc = ctypes.CDLL(None, use_errno=True)


def give_up_rights() -> None:
    """Another user, no capability in any set, and none to come back."""
    for capability in range(64):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    _libc.prctl(_PR_CAP_AMBIENT, 4, 0, 0, 0)
    _must(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    _must(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0))  # /proc/self is this user's again


def refuse(names: list[str]) -> None:
    """Each of these system calls fails with EPERM from now on, in all threads to come and this one."""
    if not names:
        return
    numbers = {**_NUMBERS[platform.machine()], "memfd_create": _MEMFD_CREATE[platform.machine()]}
    program = [struct.pack("=HBBI", _LOAD, 0, 0, 0)]
    for name in names:
        program.append(struct.pack("=HBBI", _EQUALS, 0, 1, numbers[name]))
        program.append(struct.pack("=HBBI", _RETURN, 0, 0, _ERRNO | _EPERM))
    program.append(struct.pack("=HBBI", _RETURN, 0, 0, _ALLOW))
    _filter(program)


def _filter(program: list[bytes]) -> None:
    """`program` decides on every system call of this thread, and of those that it begins."""
    code = ctypes.create_string_buffer(b"".join(program))
    filtering = ctypes.create_string_buffer(struct.pack("=H6xQ", len(program), ctypes.addressof(code)))
    _must(_libc.prctl(_PR_SET_SECCOMP, 2, ctypes.c_void_p(ctypes.addressof(filtering)), 0, 0))


def refuse_userfaultfd() -> None:
    """As `refuse(["userfaultfd"])`, and nothing can be made of /dev/userfaultfd either, which root may open."""
    machine = platform.machine()
    refusing = struct.pack("=HBBI", _RETURN, 0, 0, _ERRNO | _EPERM)
    _filter(
        [
            struct.pack("=HBBI", _LOAD, 0, 0, 0),
            struct.pack("=HBBI", _EQUALS, 0, 1, _NUMBERS[machine]["userfaultfd"]),
            refusing,
            struct.pack("=HBBI", _EQUALS, 0, 3, _IOCTL[machine]),
            struct.pack("=HBBI", _LOAD, 0, 0, _SECOND_ARGUMENT),
            struct.pack("=HBBI", _EQUALS, 0, 1, _USERFAULTFD_IOC_NEW),
            refusing,
            struct.pack("=HBBI", _RETURN, 0, 0, _ALLOW),
        ]
    )


def import_all() -> None:
    """Every module of the package, but those that import other trainers, which takes seconds and is not used here."""
    for module in pkgutil.walk_packages(sentinel.__path__, "sentinel."):
        if module.name.rpartition(".")[2] in ("__main__", "_native", "shared_imports"):
            continue
        if not module.name.startswith("sentinel.integrations."):
            importlib.import_module(module.name)


def _must(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def train(tracker: str | None) -> list[float]:
    """The losses of eight steps; with a tracker, under Sentinel from the third step on."""
    torch.manual_seed(5)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(3)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = torch.linspace(-1, 1, 64 * 256).view(64, 256)
    losses = []
    annotation = sentinel.annotate(model, optimizer)
    for step in range(8):
        if tracker is not None and step == 2:
            sentinel.start_profile(model, optimizer, fast="50%", slow="emulated:cxl-asic-x8", tracker=tracker)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        if tracker is not None and step == 2:
            sentinel.end_profile()
        losses.append(loss.item())
    annotation.remove()
    return losses


def status(field: str) -> str:
    """A field of /proc/self/status, "" where there is none."""
    try:
        found = re.search(rf"^{field}:\s*(\S+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        return ""
    return found.group(1) if found else ""


def main() -> None:
    """See the module's docstring."""
    torch.set_num_threads(1)
    import_all()
    read_beforehand()
    draw_a_report()
    operators.start()
    operators.stop()
    stock = train(None)
    kinds = [words.split() for words in " ".join(sys.argv[1:]).split(" -- ")]
    for tracker, *refused in kinds[:-1]:
        if (child := os.fork()) == 0:
            tell(stock, tracker, refused)
            return
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{tracker} {refused}: failed")
    tell(stock, kinds[-1][0], kinds[-1][1:])


def tell(stock: list[float], tracker: str, refused: list[str]) -> None:
    """Gives the rights up, trains, and prints a line of what it was told."""
    if refused != ["keep-rights"]:
        give_up_rights()
        refuse(refused)
    losses = train(tracker)
    report, current = sentinel.report(), session.current()
    assert current is not None
    assert current.profile is not None
    sentinel.stop()
    quality = current.profile.quality
    accesses, extents = current.profile.accesses, current.profile.extents
    touched = accesses["pages_touched"]
    tensor = extents["tensor"][accesses["extent"]]
    managed = current.profile.tensors["managed"][tensor]  # what the tracker watches
    # pages that went on within their layer have one touch, and are unknown of the later tenants: the notes count them
    went_on = [note for note in current.profile.notes if "page touches could be" in note or "touches were of" in note]
    told = sum(int(note.split()[0]) for note in went_on)
    seen = examine()
    chosen: PageTracker | None = choose("auto")[0]
    print(
        json.dumps(
            {
                "uid": os.geteuid(),
                **{name: status(name) for name in ("CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")},
                "identical": stock == losses,
                "tracker": report.headline["tracker"],
                "blind_to": quality.blind_to,
                "sees": quality.sees,
                "granularity_bytes": quality.granularity_bytes,
                "touched_pages": int(touched[touched > 0].sum()),
                "known_rows": int((touched >= 0).sum()),
                "unknown_rows": int((touched[managed] < 0).sum()),
                "told_of_unknown": told,
                "text": report.text(),
                "auto": chosen.name if chosen else "ops",
                "doctor": seen.as_json(),
                "capabilities": [asdict(found) for found in probe_all()],
            }
        )
    )


if __name__ == "__main__":
    main()
