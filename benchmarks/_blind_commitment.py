"""The predictions of benchmarks/blind_validation.py: a file that is digested, and committed before it is judged.

`tries.json` beside it has each time that predictions were made, with what the one before was found to be: who predicts
again has seen that.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import _bench

ALL_FAST, OURS = "all-fast", "sentinel"
FORCED = "sentinel-forced"
"""Ours as it is planned where moves take nothing from compute; predicted, and carried out, where they do."""
TRIES = "tries.json"
FIRST = "the first"
"""Why predictions were made where there were none of these examples and policies yet."""
_SAME_HOST = ("cpu", "cores")


def digest_of(path: Path) -> str:
    """SHA-256 of a file, as sha256sum prints it. SystemExit if it is not there."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise SystemExit(
            f"{path} is not there ({error.strerror}): judge on the host and in the checkout that predicted, or predict"
            " again"
        ) from None


def written(path: Path, told: Mapping[str, Any], again: str | None) -> None:
    """Keep what was predicted, its digest beside it, as one more try; `again` says why, where it is not the first.
    Results of the try before are removed: git has them, and `tries.json` what they came to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    results = results_of(path)
    tries = tries_in(path.parent)
    if results.exists():
        judged = json.loads(results.read_text())
        outcome = outcome_of(judged)
        tries = [each | outcome if each["sha256"] == judged["predictions"]["sha256"] else each for each in tries]
        results.unlink()
    path.write_text(json.dumps(told, indent=1) + "\n")
    digest = digest_of(path)
    path.with_suffix(".sha256").write_text(f"{digest}  {path.name}\n")  # as sha256sum writes and checks it
    tries.append({"predictions": path.name, "when": told["when"], "sha256": digest, "why": again or FIRST})
    (path.parent / TRIES).write_text(json.dumps(tries, indent=1) + "\n")


def outcome_of(judged: Mapping[str, Any]) -> dict[str, float | None]:
    """Of results: the mean errors of policies that move, where copies were real and nothing else was changed."""
    same = judged["results"]["summaries"].get("same", {})
    return {name: same.get(name) for name in ("ratio_mean", "added_mean")}


def results_of(path: Path) -> Path:
    """Where what was predicted in `path` is judged."""
    return path.with_name(path.name.replace("predictions", "results"))


def tries_in(folder: Path) -> list[dict[str, Any]]:
    """Each time that predictions were made there, in order."""
    path = folder / TRIES
    found: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    return found


def checked(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The predictions of a file, with its digest. SystemExit if they are not those that were digested, of a run with
    other settings, or of another host."""
    if not path.exists():
        raise SystemExit(f"{path} is not there: predict first, with --predict, and commit what it writes")
    digest, kept = digest_of(path), path.with_suffix(".sha256")
    if not kept.exists() or kept.read_text().split()[0] != digest:
        raise SystemExit(f"{path} is not the file whose digest is in {kept.name}: predict again, with --again WHY")
    told: dict[str, Any] = json.loads(path.read_text())
    otherwise = [f"{name} {told.get(name)}" for name, value in settings.items() if told.get(name) != value]
    if otherwise:
        raise SystemExit(f"{path} was made with {', '.join(otherwise)}: ask for the same, or give another --into")
    here = _bench.machine()
    if elsewhere := [str(told["machine"][name]) for name in _SAME_HOST if told["machine"][name] != here[name]]:
        raise SystemExit(f"{path} was predicted on another host ({', '.join(elsewhere)}): judge there, or predict here")
    return {**told, "sha256": digest}


def committed(path: Path) -> dict[str, str]:
    """The `commit` that has the predictions as they are, and when it was made (`committed`). SystemExit unless there is
    one that has no results: whoever reads the history is to see that the predictions came first."""
    for file in (path, path.with_suffix(".sha256")):
        changed = _git(path.parent, "status", "--porcelain", "--", file.name)
        told = "" if changed else _git(path.parent, "log", "-1", "--format=%H %cI", "--", file.name)
        if not told:
            raise SystemExit(
                f"{file} is not committed as it is: nothing is judged before `git add {path.parent}` and a commit of"
                " the predictions alone"
            )
    commit, when = told.split()
    beside = _git(path.parent, "show", "--format=", "--name-only", commit).splitlines()
    if mixed := [name for name in beside if name.endswith("results.json") and (path.parent / Path(name).name).exists()]:
        raise SystemExit(
            f"commit {commit[:7]} has {', '.join(mixed)} beside predictions: predict again, commit it alone"
        )
    return {"commit": commit, "committed": when}


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", *words], cwd=folder, capture_output=True, text=True, check=False, timeout=60, errors="replace"
        )
    except OSError as error:
        raise SystemExit(f"git cannot be started ({error.strerror}): without it nobody sees what came first") from None
    if done.returncode:
        raise SystemExit(f"{folder} is in no git checkout ({done.stderr.strip()}): what is judged was committed before")
    return done.stdout.strip()
