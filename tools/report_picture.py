"""Pictures of a report in a real browser: that of the README, and the whole page in the four forms to look at.

    python -m tools.report_picture [PAGE]                  # the top of the page, as docs/report.png
    python -m tools.report_picture [PAGE] --whole FOLDER   # report-390-light.png, report-1440-dark.png and so on

PAGE is by default runs/demo.html, which `make demo` writes. Needs chromium.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tools.browser import Browser

ROOT = Path(__file__).resolve().parents[1]
PAGE, PICTURE = ROOT / "runs" / "demo.html", ROOT / "docs" / "report.png"
SIZE = (1440, 1080)
WIDTHS = (390, 1440)
"""CSS pixels of a phone and of a desk."""


def top(page: Path, picture: Path) -> list[Path]:
    """Write `picture`, of the page's top."""
    with Browser() as browser:
        browser.open(page, *SIZE)
        picture.write_bytes(browser.window())
    return [picture]


def whole(page: Path, folder: Path) -> list[Path]:
    """Write a picture of the whole page in each form into `folder`: light and dark, of each width."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    with Browser() as browser:
        for width in WIDTHS:
            for scheme in ("light", "dark"):
                browser.open(page, width, 900, dark=scheme == "dark")
                made.append(folder / f"report-{width}-{scheme}.png")
                made[-1].write_bytes(browser.whole_page())
    return made


def main(words: Sequence[str] | None = None) -> None:
    """As the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, nargs="?", default=PAGE)
    parser.add_argument("--whole", type=Path, metavar="FOLDER", help="the whole page in four forms, into this folder")
    given = parser.parse_args(words)
    if not given.page.exists():
        raise SystemExit(f"{given.page} is not there: run `make demo`")
    for picture in whole(given.page, given.whole) if given.whole else top(given.page, PICTURE):
        print(f"{picture}: {picture.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
