"""The folder of a proof: whatever is known is on disk at once, so that it can be gone on with."""

from __future__ import annotations

import fcntl
import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentinel.core.errors import FormatError, UsageError
from sentinel.files.disk import write_whole

PAGE, OBJECT = "sentinel-proof.html", "sentinel-proof.json"
"""What is sent back. The rest is in the folder `work`, and has paths of this host in its logs."""
_WORK = ("cells", "plans", "predictions", "logs")


class ProofFolder:
    """`path`/work with a file for each thing that is known, and the lock that keeps another proof out."""

    def __init__(self, path: Path) -> None:
        self.path, self.work = path, path / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        self._lock = open(self.work / "lock", "w")  # closed with the process, or by `close`  # noqa: SIM115
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise UsageError(
                f"another `sentinel prove` is at work in {path}", "wait for it, or give another folder with -o"
            ) from None
        for name in _WORK:
            (self.work / name).mkdir(exist_ok=True)

    @classmethod
    def begin(cls, path: Path, settings: Mapping[str, Any]) -> ProofFolder:
        """A new proof. Raises UsageError for a folder that has one."""
        if (path / "work" / "settings.json").exists():
            raise UsageError(f"{path} has a proof already", "add --resume to go on with it, or give another folder")
        folder = cls(path)
        folder.save("settings", {**settings, "began": now()})
        return folder

    @classmethod
    def resume(cls, path: Path, settings: Mapping[str, Any]) -> ProofFolder:
        """Go on. Raises UsageError where there is no proof, or one that was begun otherwise or on another host."""
        if not (path / "work" / "settings.json").exists():
            raise UsageError(f"{path} has no proof to go on with", "leave --resume out")
        folder = cls(path)
        before = folder.load("settings") or {}
        otherwise = [f"{name}={before.get(name)}" for name, value in settings.items() if before.get(name) != value]
        if otherwise:
            folder.close()
            raise UsageError(
                f"{path} was begun with {', '.join(otherwise)}", "ask for the same, or give another folder"
            )
        return folder

    def close(self) -> None:
        """Another proof may use the folder."""
        self._lock.close()

    def __enter__(self) -> ProofFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def save(self, name: str, value: Any) -> None:
        """Write `value` as work/NAME.json, whole or not at all."""
        write_whole(self.work / f"{name}.json", (json.dumps(value, indent=1) + "\n").encode())

    def load(self, name: str) -> Any:
        """What `save` wrote, None without it. Raises FormatError for a file that is none of ours."""
        path = self.work / f"{name}.json"
        try:
            return json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise FormatError(path, "file", f"is no JSON: {error}; remove it, and go on with --resume") from error

    def next_number(self) -> int:
        """1, then 2, and so on as long as the folder is there: what came first, whatever a clock says."""
        number = int(self.load("numbers") or 0) + 1
        self.save("numbers", number)
        return number

    def remove(self, name: str) -> None:
        """Forget it."""
        (self.work / f"{name}.json").unlink(missing_ok=True)

    def log(self, name: str) -> Path:
        """Where a process writes what it says."""
        return self.work / "logs" / f"{name}.log"


def now() -> str:
    """Seconds are enough, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def digest_of(value: Any) -> str:
    """sha256 of JSON values, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
