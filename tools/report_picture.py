"""The picture of a report in the README: the top of the page that `make demo` wrote, in a real browser.

`python -m tools.report_picture [PAGE [PICTURE [WIDTH HEIGHT]]]`, by default runs/demo.html as docs/report.png. Needs
chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE, PICTURE = ROOT / "runs" / "demo.html", ROOT / "docs" / "report.png"
WIDTH, HEIGHT = 1440, 1080


def take(page: Path, picture: Path, width: int, height: int) -> None:
    """Write `picture`, of so many pixels. Raises SystemExit where there is no browser, no page or no picture."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        raise SystemExit("no browser: apt-get install chromium")
    if not page.exists():
        raise SystemExit(f"{page} is not there: run `make demo`")
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}/user"]
        made = Path(folder) / "picture.png"
        asked = [f"--window-size={width},{height}", f"--screenshot={made}", page.resolve().as_uri()]
        done = subprocess.run([program, *flags, *asked], capture_output=True, text=True, timeout=120)
        if not made.exists():
            raise SystemExit(f"{program} made no picture: {done.stderr[-500:]}")
        shutil.copyfile(made, picture)


def main(words: list[str]) -> None:
    """As the command line says."""
    page = Path(words[0]) if words else PAGE
    picture = Path(words[1]) if len(words) > 1 else PICTURE
    width, height = (int(word) for word in (words[2:4] or (WIDTH, HEIGHT)))
    take(page, picture, width, height)
    print(f"{picture}: {picture.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main(sys.argv[1:])
