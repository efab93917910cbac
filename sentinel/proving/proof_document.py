"""The object that is sent back: all that the folder knows, put together, without anything private."""

from __future__ import annotations

import calendar
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sentinel import files
from sentinel.core.errors import SentinelError
from sentinel.files.disk import write_whole
from sentinel.proving.proof import FAST, Proof
from sentinel.proving.proof_folder import OBJECT, PAGE, ProofFolder, digest_of, now
from sentinel.reports.html.proof_page import proof_page
from sentinel.reports.proof_tables import contents
from sentinel.system.private_words import private_words, without_private_words

FORMAT = 1


class PredictionChanged(SentinelError):
    """A prediction is not the one that a cell was judged by."""


def written(proof: Proof, folder: ProofFolder, settings: dict[str, Any], partial: str) -> dict[str, Any]:
    """Make the object, write it and its page, and return it. `partial`: why it is not all; "" if it is.

    Raises PredictionChanged where a prediction was written again, or after a cell that it judges.
    """
    found = document(folder, settings, not_run=proof.not_run, put_back=proof.put_back, partial=partial)
    write_whole(folder.path / OBJECT, (json.dumps(found, indent=1) + "\n").encode())
    write_whole(folder.path / PAGE, proof_page(found).encode())
    return found


def document(
    folder: ProofFolder,
    settings: dict[str, Any],
    *,
    not_run: dict[str, str],
    put_back: Sequence[str],
    partial: str,
) -> dict[str, Any]:
    """JSON values only; what is unknown is null."""
    predictions = {each["workload"]: each for each in _all(folder, "predictions")}
    cells = [cell for cell in _all(folder, "cells") if "row" not in cell]
    for cell in cells:
        _require_unchanged(cell, predictions.get(cell["workload"]))
    kernel = [
        {"workload": path.name.split(".kernel.")[0], **json.loads(path.read_text())}
        for path in sorted((folder.work / "cells").glob("*.kernel.*.json"))
        if path.name.split(".kernel.")[1] != "kernel.json"
    ]
    host, doctor = folder.load("host") or {}, folder.load("doctor")
    began = (folder.load("settings") or {}).get("began")
    found = {
        "kind": "proof",
        "format": FORMAT,
        "partial": partial,
        "began": began,
        "ended": now(),
        "took_s": _between(began, now()),
        "settings": {**settings, "fast": FAST},
        "emulated_machine": bool(host.get("emulated")),
        "injected_delays": str(settings.get("slow")).startswith("emulated:"),
        "host": host,
        "doctor": doctor,
        "calibration": folder.load("calibration"),
        "machine": _machine(folder),
        "predictions": predictions,
        "cells": cells,
        "kernel_placements": kernel,
        "not_run": dict(sorted(not_run.items())),
        "put_back": list(put_back),
    }
    cleaned = _without_private_words(found, folder)
    return {**cleaned, "contents": contents(cleaned)}


def _without_private_words(found: dict[str, Any], folder: ProofFolder) -> dict[str, Any]:
    """Paths go before names do: else what is below a home directory, such as a client's name, would stay."""
    words = private_words()
    folders = {word: stands for word, stands in words.items() if word.startswith("/") and stands != "<home>"}
    without_paths = without_private_words(found, {str(folder.path): "<proof>", **folders})
    cleaned: dict[str, Any] = without_private_words(without_paths, words)
    return cleaned


def _all(folder: ProofFolder, kind: str) -> list[dict[str, Any]]:
    found = [folder.load(f"{kind}/{path.stem}") for path in sorted((folder.work / kind).glob("*.json"))]
    return sorted(found, key=_number)


def _number(told: Mapping[str, Any]) -> int:
    """The place in the order in which all was written; 0 for what has none."""
    return int(told.get("number", 0))


def _require_unchanged(cell: dict[str, Any], prediction: dict[str, Any] | None) -> None:
    if cell["prediction"] is None:
        return
    where = f"{cell['workload']}, {cell['placement']}"
    if prediction is None or prediction["digest"] != cell["prediction"]:
        raise PredictionChanged(f"{where}: what was predicted was written again after it ran; begin in another folder")
    told = {name: value for name, value in prediction.items() if name != "digest"}
    if digest_of(told) != prediction["digest"]:
        raise PredictionChanged(f"{where}: what was predicted does not have its digest; begin in another folder")
    if _number(prediction) > _number(cell):  # clocks may be set back meanwhile
        raise PredictionChanged(f"{where}: what was predicted is later than the run; begin in another folder")


def _machine(folder: ProofFolder) -> dict[str, Any] | None:
    """Tiers and links that plans were made for."""
    path = folder.work / "machine.json"
    if not path.exists():
        return None
    machine = files.load_machine(path)
    return {
        "name": machine.name,
        "digest": files.digest(machine),
        "tiers": [
            {
                "name": tier.name,
                "kind": tier.kind,
                "latency_ns": tier.latency_ns,
                "read_bytes_per_s": tier.read_bytes_per_s,
                "write_bytes_per_s": tier.write_bytes_per_s,
                "measured": tier.measured,
                "source": tier.source,
            }
            for tier in machine.tiers
        ],
        "links": [
            {
                "source": machine.tiers[link.source].name,
                "target": machine.tiers[link.target].name,
                "bytes_per_s": link.bandwidth_bytes_per_s,
                "measured": link.measured,
            }
            for link in machine.links
        ],
    }


def _between(began: str | None, ended: str) -> float | None:
    if began is None:
        return None
    form = "%Y-%m-%dT%H:%M:%SZ"
    took = float(calendar.timegm(time.strptime(ended, form)) - calendar.timegm(time.strptime(began, form)))
    return took if took >= 0 else None  # the clock was set back
