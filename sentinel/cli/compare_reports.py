"""`sentinel compare BEFORE.json AFTER.json`: what changed between two reports, by tensor."""

from __future__ import annotations

import argparse
from pathlib import Path

from sentinel.cli.common import OK, print_json, saving, telling
from sentinel.core.errors import UsageError


def are_reports(paths: list[str]) -> bool:
    """Whether these are reports and no profiles, by their names."""
    return bool(paths) and all(path.lower().endswith(".json") for path in paths)


def execute(arguments: argparse.Namespace) -> int:
    """Compare, write the page, print the text or the object. Raises UsageError for another number than two."""
    if len(arguments.profiles) != 2:
        raise UsageError(
            f"{len(arguments.profiles)} reports to compare", "give two: `sentinel compare before.json after.json`"
        )
    from sentinel.reports.forms import as_json, write_html
    from sentinel.reports.report_difference import Difference, DifferenceReport
    from sentinel.reports.saved_report import load_report
    from sentinel.reports.text import text_of

    with telling("comparing the reports"):
        before, after = (load_report(path) for path in arguments.profiles)
        document = DifferenceReport(Difference(before, after))
    with saving(arguments.html, lambda path: write_html(document, Path(path))):
        if arguments.json:
            print_json(as_json(document))
        else:
            print(text_of(document), end="")
    return OK
