"""What `sentinel prove` found, as a page: the answer, what to know, all rows, the host, and what is in the file."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from sentinel.core.units import format_bytes, format_ns
from sentinel.reports.html.shell import badge, caveat_list, document, section
from sentinel.reports.html.svg import escape, tag
from sentinel.reports.html.tables import pairs, table
from sentinel.reports.proof_rows import Proof, rows
from sentinel.reports.proof_tables import HEADS, cells_of, needs, notes, summary, title

_PRIVATE = (
    "Nothing else is in the JSON file, and nothing else is on this page. Host name, user, paths, environment, serial"
    " numbers and addresses are not read, or are taken out of messages."
)


def proof_page(proof: Proof) -> str:
    """The whole document."""
    kind = "injected delays" if proof["injected_delays"] else "executed"
    kind = "emulated machine" if proof["emulated_machine"] else kind
    partial = badge("partial") if proof["partial"] else ""
    frame = pd.DataFrame([dict(zip(HEADS, cells_of(row), strict=True)) for row in rows(proof)], columns=list(HEADS))
    said = "".join(tag("li", escape(sentence)) for sentence in needs(proof))
    parts = (
        f"<header><h1>Proof {badge(kind)}{partial}</h1>{tag('p', escape(title(proof)), class_='script')}</header>",
        section("In short", pairs(summary(proof), "In short")),
        caveat_list(notes(proof), shown=8),
        section("All runs", table(frame, [(name, name, str) for name in HEADS], "All runs")) if len(frame) else "",
        section("Predicted before", pairs(_predictions(proof), "Predicted before")),
        section("Memory, as plans were made for it", pairs(_memory(proof), "Memory")),
        section("Host", pairs(_host(proof), "Host")),
        section("What would need rights or packages", f"<ul>{said}</ul>" if said else ""),
        section("What is in the file", _contents(proof), note=_PRIVATE),
    )
    return document(f"Sentinel · {title(proof)}", "".join(parts))


def _predictions(proof: Proof) -> list[tuple[str, str, str]]:
    return [(name, told["written"], f"sha256 {told['digest']}") for name, told in proof["predictions"].items()]


def _memory(proof: Proof) -> list[tuple[str, str, str]]:
    machine = proof["machine"] or {"tiers": [], "links": []}
    tiers = [(tier["name"], _speeds(tier), tier["source"]) for tier in machine["tiers"]]
    links = [
        (
            f"{link['source']} to {link['target']}",
            _rate(link["bytes_per_s"]),
            "measured" if link["measured"] else "not measured",
        )
        for link in machine["links"]
    ]
    return tiers + links


def _speeds(tier: dict[str, Any]) -> str:
    latency, reads, writes = (tier[name] for name in ("latency_ns", "read_bytes_per_s", "write_bytes_per_s"))
    return f"{format_ns(latency)}, reads {_rate(reads)}, writes {_rate(writes)}"


def _host(proof: Proof) -> list[tuple[str, str]]:
    return [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in proof["host"].items()]


def _contents(proof: Proof) -> str:
    names: list[Any] = proof["contents"]
    return f"<ul>{''.join(tag('li', escape(str(name))) for name in names)}</ul>"


def _rate(bytes_per_s: int) -> str:
    return f"{format_bytes(bytes_per_s)}/s"
