"""The page of a report of 100,000 tensors over 2,000 layers: its size, how long it takes to draw and to open.

The step is made up (`benchmarks.traces.synthetic`), with long names that are all unlike, so that nothing is folded into
groups; it is planned for a fifth of its footprint, simulated for three steps, and goes through files, as a saved run
does. A Chromium without a window, which is running already, opens the page from a file, as it was written. Times are
the browser's own, from the start of the navigation: `interactive_ms` until the document is read, `loaded_ms` until the
end of its load event, `drawn_ms` until its thread has drawn the first frame after that, when a click is answered.
`mark_ms`, `sort_ms` and `filter_ms` are what a click on a tensor, a click on a heading and a word in a filter take
then, until the next frame is drawn, with all that is folded opened; the slowest heading and filter count.

    python -m benchmarks.report_page > docs/costs/report-page.json
    python -m benchmarks.report_page --tensors 10000 --layers 500 --keep page.html
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import _bench
from benchmarks.traces.synthetic import synthetic
from sentinel import files, machines
from sentinel.core.profile import Profile
from sentinel.planner import footprint_bytes, plan
from sentinel.reports import build_report
from sentinel.simulator import simulate
from tools.browser import Browser

MOST_BYTES, MOST_MS = 15_000_000, 3000.0
"""What the page may take: to send, and to open."""
MACHINE, SHARE, STEPS = "cxl-m5", 0.2, 3
WINDOW = (1440, 900)
_FIRST = """
const frame = () => new Promise(done => requestAnimationFrame(() => setTimeout(() => done(performance.now()))));
const drawn = new Promise(done => addEventListener("load", () => setTimeout(() => done(frame()))));
"""
_MEASURED = """(async () => {
  const told = {drawn_ms: await drawn};
  const navigation = performance.getEntriesByType("navigation")[0];
  told.interactive_ms = navigation.domInteractive;
  told.loaded_ms = navigation.loadEventEnd;
  told.elements = document.querySelectorAll("*").length;
  const took = async what => { const began = performance.now(); what(); return await frame() - began; };
  const slowest = async (selector, what) => {
    let most = 0;
    for (const each of document.querySelectorAll(selector)) most = Math.max(most, await took(() => what(each)));
    return most;
  };
  for (const folded of document.querySelectorAll("details")) folded.open = true;
  await frame();
  told.mark_ms = await took(() => document.querySelector(".ranked .pick").click());
  told.marked = document.querySelectorAll(".lit").length;
  told.sort_ms = await slowest("table.sorts", each => each.querySelector("thead button").click());
  const type = each => { each.value = "7"; each.dispatchEvent(new Event("input")); };
  told.filter_ms = await slowest(".filter input", type);
  return told;
})()"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one JSON object: machine, versions, the page's bytes and times, and whether they are within limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", type=int, default=100_000)
    parser.add_argument("--layers", type=int, default=2000)
    parser.add_argument("--policy", default="lru", help="the one that plans the step (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="how often the page is opened")
    parser.add_argument("--keep", type=Path, help="write the page there, too")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "report.html"
        drawn = _draw(_profile(given.tensors, given.layers), given.policy, path)
        if given.keep:
            shutil.copyfile(path, given.keep)
        opened = [_opened(path) for _ in range(given.rounds)]
    told = {name: statistics.median(each[name] for each in opened) for name in opened[0]}
    within = drawn["page_bytes"] <= MOST_BYTES and told["drawn_ms"] <= MOST_MS
    settings = {"tensors": given.tensors, "layers": given.layers, "policy": given.policy, "rounds": given.rounds}
    limits = {"most_bytes": MOST_BYTES, "most_ms": MOST_MS}
    results = {
        **drawn,
        "opened": told,
        "rounds": opened,
        "within_limits": within,
    }
    _bench.emit((__doc__ or "").splitlines()[0], {**settings, **limits}, results)


def _profile(n_tensors: int, n_layers: int) -> Profile:
    made = synthetic(n_tensors, n_layers)
    names = tuple(f"model.encoder.blocks.{i % 97}.attention.projection{i}.weight" for i in range(n_tensors))
    return dataclasses.replace(made, names=names)


def _draw(profile: Profile, policy: str, path: Path) -> dict[str, Any]:
    """Write the page of a planned and simulated step; what it took."""
    machine = machines.load(MACHINE).with_fast_capacity(int(SHARE * footprint_bytes(profile)))
    began = time.perf_counter()
    made = plan(profile, machine, policy)
    planned = time.perf_counter()
    run = simulate(made, profile, machine, steps=STEPS)
    folder = path.parent
    for noun, name in ((profile, "profile"), (made, "plan.json"), (run, "run")):
        files.save(noun, folder / name)
    read = time.perf_counter()
    report = build_report(
        profile=files.load_profile(folder / "profile"),
        plan=files.load_plan(folder / "plan.json"),
        machine=machine,
        simulated=files.load_run(folder / "run"),
    )
    report.write(path)
    return {
        "migrations": len(run.migrations),
        "plan_s": planned - began,
        "draw_s": time.perf_counter() - read,
        "page_bytes": path.stat().st_size,
    }


def _opened(path: Path) -> dict[str, float]:
    """What a browser says of opening the page, and of what its reader does then."""
    with Browser() as browser:
        browser.open(path, *WINDOW, first=_FIRST)
        told: dict[str, float] = browser.ask(_MEASURED)
    return told


if __name__ == "__main__":
    main()
