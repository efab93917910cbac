"""The paragraph of docs/storage.md on what transfers take from computing, from docs/cap-traffic.json.

python -m benchmarks.cap_traffic --directory DIR --into docs/cap-traffic.json; python -m benchmarks.cap_traffic_page
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks._page_parts import between, goal
from benchmarks.cap_traffic import MOST_OF_A_STEP, MOST_S_PER_GB

DOCS = Path(__file__).resolve().parents[1] / "docs"
BEGIN = "<!-- transfers beside computing: made by `python -m benchmarks.cap_traffic_page` -->"
END = "<!-- end of transfers beside computing -->"

Told = Mapping[str, Any]


def rewritten(page: str, told: Told | None) -> str:
    """The page's text with the paragraph; ValueError without its marks. None: it was not measured."""
    text = "What transfers take from computing is not measured yet." if told is None else _paragraph(told)
    return between(page, BEGIN, END, textwrap.wrap(text, 120, break_on_hyphens=False, break_long_words=False))


def results() -> Told | None:
    """None where there are none."""
    path = DOCS / "cap-traffic.json"
    return json.loads(path.read_text()) if path.exists() else None


def _paragraph(told: Told) -> str:
    machine, found = told["machine"], told["results"]
    layers, width, rows, columns = told["shape"]
    slower, cpu = found["over_a_step_without"], found["processor_s_per_gb"]
    cores, kernel = f"{machine['cores']} cores ({machine['cpu']})", machine["kernel"].split("-")[0]
    step = f"a step at most {MOST_OF_A_STEP:.2f} times as long as one without ({slower['median']:.3f})"
    goals = [
        goal(step, slower["median"] <= MOST_OF_A_STEP),
        *(
            goal(f"at most {MOST_S_PER_GB:.2f} s for each GB {way} ({cpu[way]:.3f})", cpu[way] <= MOST_S_PER_GB)
            for way in ("read", "written")
        ),
    ]
    return (
        f"`python -m benchmarks.cap_traffic --directory DIR`, {told['when'][:10]}, {cores}, Linux {kernel}: while stock"
        f" PyTorch trains a GPT-2 of {layers}×{width}, batch {rows}×{columns}, without a cap, another process moves"
        f" {told['bytes'] >> 20:,} MiB each way by the transfers of a file tier, to no purpose. A step takes"
        f" {slower['median']:.3f} times as long as one without ({slower['least']:.3f} to {slower['most']:.3f}, of"
        f" {told['rounds']} pairs); {found['moved_within']['median']:.0%} of the bytes had moved as it ended. Transfers"
        f" take {cpu['read']:.3f} s of processor time for each GB read, and {cpu['written']:.3f} for each written."
        f" Others had {told['others_share']:.0%} of the processors. Goals: {'; '.join(goals)}."
    )


def main() -> None:
    """Write the page again."""
    page = DOCS / "storage.md"
    page.write_text(rewritten(page.read_text(), results()))


if __name__ == "__main__":
    main()
