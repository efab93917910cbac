"""Writes the reference of the public interface as pages, by pdoc, and fails where one refers to what is not there.

`make docs` writes build/reference. Fails too where pdoc warns, of a module that cannot be imported, say.
"""

from __future__ import annotations

import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

PAGES = Path(__file__).parents[1] / "build" / "reference"
MODULES = (
    "sentinel",
    "sentinel.data",
    "sentinel.integrations",
    "sentinel.planner",
    "sentinel.simulator",
    "sentinel.reports",
    "sentinel.files",
    "sentinel.machines",
    "sentinel.tiers",
    "sentinel.core.machine",
    "sentinel.core.plan",
    "sentinel.core.profile",
    "sentinel.core.run",
    "sentinel.core.trace",
    "sentinel.core.errors",
)
"""What programs import. Names that these modules do not export are not told."""
_NAME = re.compile(r"sentinel(?:\.\w+)+(?=\(|$)")
_FILES = (".toml", ".py", ".md")


class Page(HTMLParser):
    """A page's links to other pages, and what stands in it as code."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.code: list[str] = []
        self._within = False
        self.feed(markup)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See HTMLParser."""
        link = dict(attrs).get("href") if tag == "a" else None
        if link is not None and not urlsplit(link).scheme and urlsplit(link).path:
            self.links.append(unquote(urlsplit(link).path))
        if tag == "code":
            self._within = True
            self.code.append("")

    def handle_endtag(self, tag: str) -> None:
        """See HTMLParser."""
        self._within = self._within and tag != "code"

    def handle_data(self, data: str) -> None:
        """See HTMLParser."""
        if self._within:
            self.code[-1] += data


def main() -> int:
    """Write the pages. Returns 1, having printed why, where something that they refer to is not there."""
    write(MODULES, PAGES)
    found = list(broken(PAGES))
    for sentence in found:
        print(sentence, file=sys.stderr)
    print(f"{PAGES / 'index.html'}: the reference of {len(MODULES)} modules")
    return 1 if found else 0


def write(modules: tuple[str, ...], folder: Path) -> None:
    """Write the pages of `modules`. Raises what pdoc warns of."""
    import pdoc  # takes a second

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # the constructor of a NamedTuple is made in a module of its own, where its types are not imported
        warnings.filterwarnings("ignore", r"Error parsing type annotation ForwardRef.*\.__init__\.")
        shutil.rmtree(folder, ignore_errors=True)
        pdoc.render.configure(docformat="markdown", show_source=False)
        pdoc.pdoc(*modules, output_directory=folder)


def broken(folder: Path) -> Iterator[str]:
    """A sentence for each link that leads nowhere, and each name of Sentinel that there is not."""
    pages = {path: Page(path.read_text()) for path in sorted(folder.resolve().rglob("*.html"))}
    for path, page in pages.items():
        for link in page.links:
            if (path.parent / link).resolve() not in pages:
                yield f"{path.name}: a link leads nowhere: {link}"
        for code in dict.fromkeys(page.code):
            name = _NAME.match(code)
            if name and not name[0].endswith(_FILES) and not there(name[0]):
                yield f"{path.name}: there is no {name[0]}"


def there(name: str) -> bool:
    """Whether a name with dots is a module, or something in one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part, None)
        return found is not None
    return False


if __name__ == "__main__":
    sys.exit(main())
