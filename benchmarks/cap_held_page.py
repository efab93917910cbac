"""The paragraph of docs/storage.md on a cap that the kernel counts, from docs/cap-held.json.

python -m benchmarks.cap_held --directory DIR > docs/cap-held.json; python -m benchmarks.cap_held_page
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks._page_parts import between, goal
from sentinel.core.units import parse_bytes

DOCS = Path(__file__).resolve().parents[1] / "docs"
BEGIN = "<!-- a cap that the kernel counts: made by `python -m benchmarks.cap_held_page` -->"
END = "<!-- end of a cap that the kernel counts -->"


def rewritten(page: str, told: Mapping[str, Any]) -> str:
    """The page's text with the paragraph; ValueError without its marks."""
    return between(page, BEGIN, END, _lines(told))


def _lines(told: Mapping[str, Any]) -> Iterator[str]:
    machine, found = told["machine"], told["results"]["processes"]
    cap, kernel = parse_bytes(told["cap"]), machine["kernel"].split("-")[0]
    yield (
        f"`python -m benchmarks.cap_held --directory DIR`, {told['when'][:10]}, {machine['cores']} cores"
        f" ({machine['cpu']}), Linux {kernel}: a network of {told['layers']} linear layers, whose tensors"
        f" take {_mib(found['counts']['storage']['tensor_peak_bytes'])}, trains for {told['steps']:,} steps under a cap"
        f" of {_mib(cap)}; every {told['forks_every']} steps two workers are forked. The peak is the memory cgroup's,"
        " page cache and workers included; the cap is that of the process, or the limit of the cgroup."
    )
    yield ""
    yield "| | peak of the cgroup | its limit was met | frames, least to most | they take, of what was promised |"
    yield "| --- | --- | --- | --- | --- |"
    yield f"| stock, no limit | {_mib(found['stock']['peak_bytes'])} | | | |"
    for name, label in (("counts", "`cap=`, in a cgroup of twice as much"), ("enforces", "in a cgroup of that limit")):
        each = found[name]
        fewest, most = (_mib(each["storage"][f"{end}_pool_bytes"]) for end in ("least", "most"))
        top, low = each["resident_over_promised"], each.get("least_resident_over_promised")
        over = f"at most {100 * top:.1f} %" if low is None else f"{100 * low:.1f} to {100 * top:.1f} %"
        yield f"| {label} | {_mib(each['peak_bytes'])} | {each['limit_met']} times | {fewest} to {most} | {over} |"
    yield ""
    missed = told["results"]["missed"]
    same = "; ".join(goal(each, False) for each in missed) or "Losses and parameters of all three are the same"
    faults = max(found[name]["major_faults"] for name in ("counts", "enforces"))
    yield f"{same}. After the fourth step, steps without a fork met {faults} page faults that waited for the disk."


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.0f} MiB"


def main() -> None:
    """Write the page again."""
    page, told = DOCS / "storage.md", json.loads((DOCS / "cap-held.json").read_text())
    page.write_text(rewritten(page.read_text(), told))


if __name__ == "__main__":
    main()
