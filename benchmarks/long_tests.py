"""Whether the tests that are marked long pass, and what each takes: they are in no other run.

    python -m benchmarks.long_tests                                  prints JSON
    python -m benchmarks.long_tests --markdown docs/long-tests.md    writes the page, and the JSON beside it

The exit code is 1 where a test failed."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._bench import told
from benchmarks._page_parts import headings, where
from tools.checks import Job, Lanes, long_jobs

_TOOK = re.compile(r"^([0-9.]+)s call +(\S.*)$", re.MULTILINE)
_VERDICT = re.compile(r"^(PASSED|FAILED|SKIPPED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)
_HEAD = """# The longest tests

`make test-long`, {where}

`.ci/run` does not run these. Each holds for a larger model, more draws or more lines what a shorter test holds there
([decision 188](decisions/0188-long-tests-are-one-command-with-a-dated-table.md)). They ran one after the other, those
of `tests/numa` in a machine whose processors are emulated. Figures in [long-tests.json](long-tests.json).
"""


def results(output: str) -> list[dict[str, Any]]:
    """Of each test in what pytest said: its name, its verdict, and the seconds of its call."""
    took = {name: float(seconds) for seconds, name in _TOOK.findall(output)}
    verdicts = {name: verdict.lower() for verdict, name in _VERDICT.findall(output)}
    return [{"test": name, "verdict": verdict, "took_s": took.get(name, 0.0)} for name, verdict in verdicts.items()]


def results_of(job: Job) -> list[dict[str, Any]]:
    """`results` of a job, and one of the job itself where it has none or failed by none of its tests."""
    found = results(job.output)
    if not found or (job.failed and not any(row["verdict"] in ("failed", "error") for row in found)):
        found.append({"test": job.name, "verdict": "failed" if job.failed else "passed", "took_s": job.took_s})
    return found


def page(made: Mapping[str, Any]) -> str:
    """The page as Markdown."""
    return "\n".join(_lines(made)) + "\n"


def _lines(made: Mapping[str, Any]) -> Iterator[str]:
    yield _HEAD.format(where=where(made))
    yield from headings("test", "verdict", "seconds")
    for test in made["results"]:
        yield f"| {test['test']} | {test['verdict']} | {test['took_s']:.0f} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs them, and prints or writes; 1 where one failed or none ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", type=Path, help="write the page here, and the JSON beside it")
    given = parser.parse_args(arguments)
    jobs = long_jobs()
    Lanes(jobs).run()
    rows = (row for job in jobs for row in results_of(job))
    found = sorted(rows, key=lambda row: -float(row["took_s"]))
    made = told("the longest tests pass", {}, found)
    if given.markdown:
        given.markdown.write_text(page(made))
        given.markdown.with_suffix(".json").write_text(json.dumps(made, indent=2) + "\n")
    else:
        print(json.dumps(made, indent=2))
    return int(not found or any(job.failed for job in jobs))


if __name__ == "__main__":
    sys.exit(main())
