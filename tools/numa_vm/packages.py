"""Debian packages unpacked into the user's cache: nothing is installed, so no rights are needed."""

from __future__ import annotations

import lzma
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

INSTALL = "sudo tools/numa_vm/install"


class Missing(Exception):
    """Something that the machine is built of is not here; the message says how to get it."""


def cache_folder() -> Path:
    """Where kernels and root images are kept; removing it costs only the time to make them again."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "sentinel-numa-vm"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def program(name: str, package: str) -> str:
    """The path of a program, also where /usr/sbin is not on the caller's path."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if not found:
        raise Missing(f"{name} is missing: apt-get install {package}")
    return found


@dataclass(frozen=True)
class Kernel:
    """A Debian kernel, unpacked."""

    folder: Path

    @property
    def image(self) -> Path:
        return next((self.folder / "boot").glob("vmlinuz-*"))

    def modules(self, wanted: Sequence[str]) -> list[tuple[str, bytes]]:
        """(name, ELF bytes) of the wanted modules after those they depend on; what is built in is left out."""
        files = {
            path.name.split(".ko")[0].replace("-", "_"): path
            for path in (self.folder / "lib" / "modules").rglob("*.ko*")
        }
        ordered: dict[str, bytes] = {}

        def add(name: str) -> None:
            if name in ordered or name not in files:
                return
            content = files[name].read_bytes()
            if files[name].suffix == ".xz":
                content = lzma.decompress(content)
            for needed in _dependencies(content):
                add(needed)
            ordered[name] = content

        for name in wanted:
            add(name)
        return list(ordered.items())


def _dependencies(module: bytes) -> list[str]:
    """The `depends=` line of a module's .modinfo: Debian's packages come without modules.dep."""
    found = re.search(rb"\0depends=([^\0]+)\0", module)
    return [name.replace("-", "_") for name in found[1].decode().split(",")] if found else []


def kernel(series: str) -> Kernel:
    """The newest Debian cloud kernel of a series such as "6.12", downloaded at first use.

    The cloud flavour has NUMA, HMAT, CXL, BTF and eBPF, and a third of the other's size.

    Raises:
        Missing: the package lists have none, or it cannot be downloaded.
    """
    pattern = re.compile(rf"linux-image-{re.escape(series)}\..*-cloud-amd64")
    ready = [path for path in cache_folder().iterdir() if pattern.fullmatch(path.name)]
    if not ready:
        names = [name for name in _package_names(f"linux-image-{series}.") if pattern.fullmatch(name)]
        if not names:
            raise Missing(
                f"no Debian cloud kernel {series} is in the package lists; run apt-get update,"
                f" and on Debian 12, whose backports have those after 6.1: {INSTALL}"
            )
        ready = [unpacked(max(names, key=_version))]
    return Kernel(max(ready, key=lambda path: _version(path.name)))


def busybox() -> Path:
    """A busybox without shared libraries, for the first process and the shell."""
    folder = unpacked("busybox-static")
    return next(path for path in (folder / "bin/busybox", folder / "usr/bin/busybox") if path.exists())


def unpacked(package: str) -> Path:
    """The folder that holds a package's files, downloaded by apt at first use."""
    target = cache_folder() / package
    if target.is_dir():
        return target
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="download-") as scratch:
        apt = [program("apt-get", "apt"), "download", "-qq", "-o", "APT::Sandbox::User=root", package]
        got = subprocess.run(apt, cwd=scratch, capture_output=True, text=True, check=False)
        archives = list(Path(scratch).glob("*.deb"))
        if got.returncode or not archives:
            raise Missing(f"apt-get download {package} failed: {got.stderr.strip()}; try apt-get update")
        tree = Path(scratch) / "tree"
        subprocess.run([program("dpkg-deb", "dpkg"), "-x", archives[0], tree], check=True)
        tree.chmod(0o755)
        try:
            tree.rename(target)
        except OSError:
            if not target.is_dir():  # else another run of ours was first
                raise
    return target


def _package_names(prefix: str) -> list[str]:
    listed = subprocess.run(
        [program("apt-cache", "apt"), "pkgnames", prefix], capture_output=True, text=True, check=False
    )
    return listed.stdout.split()


def _version(name: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", name)))
