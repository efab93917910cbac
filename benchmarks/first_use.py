"""Claim: from `pip install` to the first watched step takes at most 15 s on two cores, and `sentinel --help` 0.1 s.

A fresh virtual environment gets the wheel by pip. Torch and all else are links to the packages of the environment that
runs this, as `pip install` would have put them there. Then each round has an empty cache of compiled libraries, and
starts fresh processes, one after another:

- `import torch` and no more, twice;
- `sentinel --help`, five times;
- the README's first program by `sentinel run --slow emulated:cxl-asic-x8`, on any host the same, until it says that the
  step begins that is watched, and until it says what was planned for it;
- that once more, with the cache as the one before has left it: what this takes less is compiling.

Seconds are counted from the start of a process. Files that were installed or read before are in the page cache.

    make wheel && python -m benchmarks.first_use dist/*.whl > docs/costs/first-use.json     # two minutes
    python -m benchmarks.first_use dist/*.whl plain/*.whl                                   # and one that compiles
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import _bench

MOST_S, MOST_HELP_S = 15.0, 0.1
RUN = ("run", "--fast", "20%", "--slow", "emulated:cxl-asic-x8")
SAID = {"begins_s": "sentinel: the step after ", "watched_s": "sentinel: planned: "}
"""Moment -> how the line begins that `sentinel run` says then."""
HELPS, IMPORTS = 5, 2
HANGS_S = 600.0
"""However busy the host is: what has not ended by then does not."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one JSON object: machine, versions, and for each wheel the rounds and their medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", type=Path, nargs="+", metavar="WHEEL")
    parser.add_argument("--rounds", type=int, default=5, help="of each wheel (default %(default)s)")
    parser.add_argument("--into", type=Path, help="make the environment here, and leave it; of one wheel")
    given = parser.parse_args(arguments)
    if given.into and len(given.wheels) > 1:
        parser.error("--into is for one wheel")
    found = []
    for wheel in given.wheels:
        with tempfile.TemporaryDirectory() as name:
            scratch = Path(name)
            environment = given.into or scratch / "environment"
            install_s = install(wheel.resolve(), environment)
            rounds = []
            for number in range(given.rounds):
                (folder := scratch / str(number)).mkdir()
                rounds.append(one_round(environment, folder))
                print(f"{wheel}, round {number + 1}: {rounds[-1]}", file=sys.stderr, flush=True)
        found.append({"brings": brought(wheel), "install_s": install_s, "medians": medians(rounds), "rounds": rounds})
    limits = {"most_s": MOST_S, "most_help_s": MOST_HELP_S}
    _bench.emit((__doc__ or "").splitlines()[0], {"rounds": given.rounds, **limits}, found)


def install(wheel: Path, environment: Path) -> float:
    """Make the virtual environment, with links to all packages of ours but Sentinel; the seconds that pip took."""
    subprocess.run([sys.executable, "-m", "venv", environment], check=True, env=_clean(), timeout=HANGS_S)
    python = environment / "bin" / "python"
    where = [_purelib(Path(each)) for each in (sys.executable, python)]
    (others := environment / "others").mkdir()
    for package in Path(where[0]).iterdir():
        if "sentinel_hm" not in package.name:
            (others / package.name).symlink_to(package)
    began = time.perf_counter()
    asked = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", wheel)
    subprocess.run(asked, check=True, env=_clean(), timeout=HANGS_S)
    took = time.perf_counter() - began
    Path(where[1], "others.pth").write_text(f"{others.resolve()}\n")
    return took


def brought(wheel: Path) -> list[str]:
    """The compiled libraries that speak torch's ABI in the wheel."""
    with zipfile.ZipFile(wheel) as inside:
        return sorted(Path(name).name for name in inside.namelist() if name.startswith("sentinel/_compiled/"))


def program() -> str:
    """The first program of the README."""
    found = re.search(r"^```python\n(.*?)^```$", (_bench.ROOT / "README.md").read_text(), re.M | re.S)
    assert found
    return found[1]


def one_round(environment: Path, folder: Path) -> dict[str, Any]:
    """The figures of one round, in `folder`, which is empty."""
    (folder / "program.py").write_text(program())
    cache, bin_folder = folder / "cache", environment.resolve() / "bin"
    others = _bench.others_share()
    imports = [timed([str(bin_folder / "python"), "-c", "import torch"], folder, cache) for _ in range(IMPORTS)]
    sentinel = str(bin_folder / "sentinel")
    helps = [timed([sentinel, "--help"], folder, cache) for _ in range(HELPS)]
    runs = {}
    for name in ("first", "again"):
        runs[name] = moments(timed([sentinel, *RUN, "program.py"], folder, cache))
        runs[name]["compiled"] = sorted(each.name.partition("-")[0] for each in (cache / "sentinel").glob("*-*"))
    return {
        "import_torch_s": [each[-1][0] for each in imports],
        "help_s": [each[-1][0] for each in helps],
        **runs,
        "others_share": others(),
    }


def timed(command: Sequence[str], folder: Path, cache: Path) -> list[tuple[float, str]]:
    """Each line that the process says on stderr with the second at which it came; at last its end, as "". Raises
    SystemExit where it fails, or hangs."""
    began, told = time.perf_counter(), []
    with subprocess.Popen(
        command, cwd=folder, env=_clean(cache), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as running:
        limit = threading.Timer(HANGS_S, running.kill)
        limit.start()
        try:
            for line in running.stderr or ():
                told.append((time.perf_counter() - began, line.rstrip("\n")))
            running.wait()
        finally:
            limit.cancel()
    told.append((time.perf_counter() - began, ""))
    if running.returncode:
        lines = "\n".join(line for _, line in told)
        raise SystemExit(f"{' '.join(command)} ended with {running.returncode}:\n{lines}")
    return told


def moments(told: Sequence[tuple[float, str]]) -> dict[str, Any]:
    """When each of SAID was said, and when all had ended. Raises SystemExit where one was not."""
    found: dict[str, Any] = {}
    for name, begins in SAID.items():
        when = [second for second, line in told if line.startswith(begins)]
        if not when:
            raise SystemExit(f"no line begins with {begins!r}:\n" + "\n".join(line for _, line in told))
        found[name] = when[0]
    return {**found, "whole_s": told[-1][0]}


def medians(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of all rounds. `rest_s`: of `watched_s`, what is neither importing torch nor compiling."""
    every = {name: [second for each in rounds for second in each[name]] for name in ("import_torch_s", "help_s")}
    every |= {name: [each["first"][name] for each in rounds] for name in ("begins_s", "watched_s", "whole_s")}
    every["compiling_s"] = [
        each["first"]["watched_s"] - each["again"]["watched_s"] if each["first"]["compiled"] else 0.0 for each in rounds
    ]
    found = {name: statistics.median(values) for name, values in every.items()}
    found["rest_s"] = found["watched_s"] - found["compiling_s"] - found["import_torch_s"]
    return found


def _purelib(python: Path) -> str:
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return subprocess.run(
        asked, check=True, capture_output=True, text=True, env=_clean(), timeout=HANGS_S
    ).stdout.strip()


def _clean(cache: Path | None = None) -> dict[str, str]:
    """Our environment without what would have a checkout, or settings, found."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SENTINEL_"))}
    kept["PYTHONNOUSERSITE"] = "1"
    return {**kept, "XDG_CACHE_HOME": str(cache)} if cache else kept


if __name__ == "__main__":
    main()
