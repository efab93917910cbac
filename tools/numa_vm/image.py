"""The guest's root file system: interpreter, environment and shared libraries, cached by their content."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools.numa_vm.packages import Missing, busybox, cache_folder, program
from tools.numa_vm.tree import Tree, elf_files, shared_libraries

_FORMAT = 6  # counted up when the image's making changes, so that no older image is taken

# Not needed to run anything, and half of the bytes.
_UNWANTED_IN_STDLIB = {"test", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "site-packages"}
_UNWANTED_IN_TORCH = {"test", "include"}
_LIBRARIES = ("libbpf.so.1", "libelf.so.1", "libz.so.1", "libnss_files.so.2")  # loaded by name, so ldd is silent


@dataclass(frozen=True)
class Environment:
    """A virtual environment and the interpreter that it was made from."""

    prefix: Path
    stdlib: Path
    site_packages: Path
    executable: Path
    """The interpreter's program, all links resolved."""

    @staticmethod
    def of(prefix: Path) -> Environment:
        """Asks an environment's interpreter for its paths.

        Raises:
            Missing: there is no environment.
        """
        python = prefix / "bin" / "python"
        if not python.exists():
            raise Missing(f"{python} is missing: make venv")
        ask = "import json, sysconfig as s; print(json.dumps([s.get_path('stdlib'), s.get_path('platlib')]))"
        stdlib, platlib = json.loads(subprocess.check_output([python, "-I", "-c", ask]))
        return Environment(prefix, Path(stdlib), Path(platlib), python.resolve())

    def unwanted(self, path: Path) -> bool:
        """Whether a path of the environment or of the interpreter stays out of the guest."""
        if path.parent == self.stdlib:
            return path.name in _UNWANTED_IN_STDLIB or path.name.startswith("config-")
        torch = self.site_packages / "torch"
        if path.parent == torch / "bin":
            return path.name != "torch_shm_manager"  # asked for at import; the others are torch's own tests
        return path.parent == torch and path.name in _UNWANTED_IN_TORCH

    def fingerprint(self) -> str:
        """Changes with any file of the environment, and with the C library; not with byte code caches."""
        digest = hashlib.sha256(repr((_FORMAT, self)).encode())
        for folder in (self.prefix, self.stdlib):
            for where, folders, files in os.walk(folder):
                folders[:] = sorted(
                    name for name in folders if name != "__pycache__" and not self.unwanted(Path(where) / name)
                )
                stamps = {name for name in files if Path(where) == self.prefix and name.startswith(".")}  # make's own
                for entry in sorted(set(files) - stamps):
                    status = os.lstat(os.path.join(where, entry))
                    digest.update(f"{where}/{entry} {status.st_size} {status.st_mtime_ns}\n".encode())
        for library in sorted(shared_libraries([self.executable])):
            digest.update(f"{library} {os.stat(library).st_mtime_ns}\n".encode())
        return digest.hexdigest()[:16]


def root_image(environment: Environment) -> Path:
    """The ext4 image for an environment; made at first use and after each change of it, in some ten seconds.

    Raises:
        Missing: a program that makes it is not installed.
    """
    owner = hashlib.sha256(str(environment.prefix).encode()).hexdigest()[:8]
    with (cache_folder() / "root.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        image = cache_folder() / f"root-{owner}-{environment.fingerprint()}.ext4"
        if not image.exists():
            _make(environment, image)
            for older in cache_folder().glob(f"root-{owner}-*.ext4"):
                if older != image:
                    older.unlink()  # a machine that runs from it keeps it open
    return image


def _make(environment: Environment, image: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="root-", dir=cache_folder()) as scratch:
        tree = Tree(Path(scratch) / "root")
        _fill(tree, environment)
        stored = [os.lstat(os.path.join(where, name)) for where, _, names in os.walk(tree.root) for name in names]
        nbytes = sum(file.st_blocks * 512 + 256 for file in stored)  # 256: an inode
        unfinished = image.with_suffix(".part")
        unfinished.unlink(missing_ok=True)
        make = [program("mke2fs", "e2fsprogs"), "-q", "-t", "ext4", "-O", "^has_journal,^metadata_csum", "-m", "0"]
        make += ["-b", "4096"]  # only whole pages can be mapped in place
        # 128 MiB: the unit in which the kernel maps persistent memory
        room_mib = 128 * (nbytes * 21 // 20 // (128 << 20) + 1)
        done = subprocess.run(
            [*make, "-E", "root_owner=0:0", "-d", tree.root, unfinished, f"{room_mib}M"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            unfinished.unlink(missing_ok=True)
            raise Missing(f"mke2fs could not make the root image of {room_mib} MiB: {done.stderr.strip()}")
        unfinished.rename(image)


def _fill(tree: Tree, environment: Environment) -> None:
    tree.add(environment.prefix / "bin" / "python")
    tree.add_folder(environment.stdlib, environment.unwanted)
    tree.add_folder(environment.prefix, environment.unwanted)
    programs = [environment.executable]
    programs += elf_files(environment.stdlib, environment.unwanted)
    programs += elf_files(environment.prefix, environment.unwanted)
    for library in shared_libraries(programs) | _named_libraries():
        tree.add(library)
    for loader in ("/etc/ld.so.cache", "/lib64/ld-linux-x86-64.so.2"):
        if os.path.exists(loader):
            tree.add(loader)
    for found in filter(None, map(shutil.which, ("bash", "valkey-server", "redis-server"))):
        for path in (Path(found), *shared_libraries([Path(found)])):
            tree.add(path)
    # by name only: Sentinel finds what it has compiled before by the compiler's path, among others
    for compiler in filter(None, map(shutil.which, ("c++", "g++", "clang++"))):
        tree.add(compiler)
    _add_busybox(tree)
    tree.write("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")
    tree.write("/etc/group", "root:x:0:\nnogroup:x:65534:\n")
    tree.write("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n")
    tree.write("/etc/hosts", "127.0.0.1 localhost\n")
    for folder in ("proc", "sys", "dev", "run", "tmp", "root", "var/tmp"):
        (tree.root / folder).mkdir(parents=True, exist_ok=True)


def _named_libraries() -> set[Path]:
    listed = subprocess.run([program("ldconfig", "libc-bin"), "-p"], capture_output=True, text=True, check=True).stdout
    words = [line.split() for line in listed.splitlines() if "x86-64" in line]
    named = {Path(line[-1]) for line in words if line[0] in _LIBRARIES}
    return named | shared_libraries(named)


def _add_busybox(tree: Tree) -> None:
    source = busybox()
    target = tree.inside("/usr/bin/busybox")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy2(source, target)
    for applet in subprocess.check_output([source, "--list"], text=True).split():
        if not os.path.lexists(tree.inside("/usr/bin") / applet):
            (tree.inside("/usr/bin") / applet).symlink_to("busybox")
    for folder in ("/bin", "/sbin"):
        if not os.path.lexists(tree.inside(folder)):
            tree.inside(folder).symlink_to("usr/bin")
