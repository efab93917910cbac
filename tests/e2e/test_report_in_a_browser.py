"""The page in a real browser: a click marks, headings sort, words filter, and nothing is fetched."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import threading
import zlib
from functools import cache
from html import escape, unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report_page
from sentinel.reports import build_report
from sentinel.reports.html.terms import MEANINGS
from sentinel.reports.session_report import Report
from sentinel.simulator import simulate
from tests.builders import MIB, make_machine, make_profile, param, persistent_plan
from tools import report_picture
from tools.browser import Browser

pytestmark = pytest.mark.needs("browser")


@cache
def report() -> Report:
    """Sixteen tensors of two kinds, four of which move."""
    names = [f"h.{k}.{kind}" for kind in ("attention", "mlp") for k in range(8)]
    profile = make_profile([param(name, (1 + i % 3) * MIB, [i % 6]) for i, name in enumerate(names)], 8)
    moves = [(b, 0, 1, b + 1, b + 2) for b in range(4)] + [(b, 1, 0, (b + 6) % 8, (b + 6) % 8 + 2) for b in range(4)]
    machine = make_machine(64 * MIB)
    plan = persistent_plan(profile, [0] + [1] * 11 + [0] * 4, moves)
    return build_report(
        profile=profile, plan=plan, machine=machine, simulated=simulate(plan, profile, machine, steps=2)
    )


def browsed(page: str, script: str, folder: Path, *flags: str) -> Any:
    """What `script`, the body of a function, returns in that page, opened from a file, as JSON."""
    asked = f"const told = (() => {{ {script} }})(); document.title = JSON.stringify(told);"
    path = folder / "page.html"
    path.write_text(page.replace("</body>", f"<script>addEventListener('load', () => {{ {asked} }})</script></body>"))
    title = re.search(r"<title>(.*?)</title>", _dom(path.as_uri(), folder, *flags), re.S)
    assert title
    return json.loads(unescape(title[1]))


def _dom(url: str, folder: Path, *more: str) -> str:
    """The document after its scripts have run."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={folder}/user"]
    done = subprocess.run(
        [program, *flags, *more, "--dump-dom", url], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.stdout, done.stderr[-2000:]
    return done.stdout


def written(folder: Path) -> str:
    report().write(folder / "r.html")
    return (folder / "r.html").read_text()


LIT = """[...document.querySelectorAll(".lit")].map(e => ({
  part: e.closest("section").querySelector("h2").textContent, keys: e.dataset.k.split(" ")}))"""


def test_a_click_marks_tensors_in_every_picture_until_it_comes_again(tmp_path: Path) -> None:
    written(tmp_path)
    second = 'document.querySelectorAll(".ranked")[1].querySelector(".pick")'
    marked = 'document.getElementById("marked")'
    with Browser() as browser:
        browser.open(tmp_path / "r.html", 1440, 900)
        assert browser.ask(LIT) == []
        browser.click(second)
        name, key = browser.ask(f'[{second}.textContent, {second}.closest("[data-k]").dataset.k]')
        lit = browser.ask(LIT)
        assert {
            "Which tensors hurt",
            "What moved, and why",
            "Tensors over the layers",
            "Tensors",
            "Migrations on a timeline",
        } <= {each["part"] for each in lit}
        assert all(key in each["keys"] for each in lit)
        assert f"{name}: marked in {len(lit)} places" in browser.ask(f"{marked}.hidden ? '' : {marked}.textContent")
        browser.click(second)
        assert browser.ask(LIT) == []
        for end in (
            lambda: browser.press("Escape"),
            lambda: browser.click(f'{marked}.querySelector("button")'),
        ):
            browser.click(second)
            assert browser.ask(LIT)
            end()
            assert browser.ask(LIT) == []
        browser.click('document.querySelector("svg g[data-k] :is(path, text)")')
        assert browser.ask(LIT)


TENSORS = '[...document.querySelectorAll("section h2")].find(h => h.textContent === "Tensors").closest("section")'


def column_shown(browser: Browser, name: str) -> list[str]:
    """The values of a column of the table of tensors, in the rows that are to be seen."""
    script = f"""(() => {{
      const section = {TENSORS}, heads = [...section.querySelectorAll("thead th")];
      const column = heads.findIndex(h => h.textContent === "{name}");
      const rows = [...section.querySelectorAll("tbody tr")].filter(row => row.getClientRects().length);
      return rows.map(row => row.cells[column]).map(cell => cell.dataset.v ?? cell.textContent);
    }})()"""
    found: list[str] = browser.ask(script)
    return found


def test_a_heading_sorts_and_a_word_filters(tmp_path: Path) -> None:
    written(tmp_path)
    with Browser() as browser:
        browser.open(tmp_path / "r.html", 1440, 900)
        head = f'[...{TENSORS}.querySelectorAll("thead button")].find(b => b.textContent === "bytes")'
        browser.click(head)
        up = [int(value) for value in column_shown(browser, "bytes")]
        browser.click(head)
        down = [int(value) for value in column_shown(browser, "bytes")]
        assert up == sorted(up) != down == sorted(down, reverse=True)
        assert len(up) == 16
        browser.click(f'{TENSORS}.querySelector("input")')
        browser.write("MLP")
        assert sorted(column_shown(browser, "tensor")) == [f"h.{k}.mlp" for k in range(8)]
        for _ in "MLP":
            browser.press("Backspace")
        assert len(column_shown(browser, "tensor")) == 16


def test_a_pointer_is_told_what_it_is_on(tmp_path: Path) -> None:
    written(tmp_path)
    tip = """(() => {
      const tip = document.getElementById("tip"), box = tip.getBoundingClientRect();
      const within = box.left >= 0 && box.right <= innerWidth && box.top >= 0 && box.bottom <= innerHeight;
      return tip.hidden ? null : [tip.textContent, box.width > 0 && within];
    })()"""
    on = 'document.querySelector(":hover:not(:has(:hover))")?.closest("[data-t]")?.dataset.t'
    with Browser() as browser:
        browser.open(tmp_path / "r.html", 1440, 900)
        marks = browser.ask('document.querySelectorAll("[data-t]").length')
        assert marks > 20
        told = 0
        for number in range(0, marks, max(marks // 40, 1)):  # a hand does not go to hundreds
            mark = f'document.querySelectorAll("[data-t]")[{number}]'
            if min(browser.ask(f"(b => [b.width, b.height])({mark}.getBoundingClientRect())")) < 2:
                continue  # too fine for a hand
            browser.point(mark)
            assert browser.ask(tip) == [browser.ask(on), True], mark
            told += 1
        assert told > 10
        browser.point('document.querySelector("h1")')
        assert browser.ask(tip) is None


def test_a_word_of_ours_has_its_meaning_under_the_pointer(tmp_path: Path) -> None:
    written(tmp_path)
    with Browser() as browser:
        browser.open(tmp_path / "r.html", 1440, 900)
        browser.click('[...document.querySelectorAll("summary")].find(s => s.textContent === "All figures")')
        word = '[...document.querySelectorAll(".pairs th abbr")].find(a => a.textContent === "managed")'
        browser.point(word)
        assert browser.ask('document.querySelector("abbr:hover").title') == MEANINGS["managed"]


def test_what_is_folded_is_printed(tmp_path: Path) -> None:
    script = """
      const folded = () => document.querySelectorAll("details:not([open])").length;
      const before = folded();
      dispatchEvent(new Event("beforeprint"));
      const printed = folded();
      dispatchEvent(new Event("afterprint"));
      return {before, printed, after: folded()};
    """
    told = browsed(written(tmp_path), script, tmp_path)
    assert told["printed"] == 0 < told["before"] == told["after"]


CONTRAST = """
  const context = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const parts = colour => {
    context.clearRect(0, 0, 1, 1); context.fillStyle = colour; context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const light = colour => {
    const [r, g, b] = parts(colour).map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const behind = element => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (parts(colour)[3] === 255) return colour;
    }
    return "white";
  };
  for (const folded of document.querySelectorAll("details")) folded.open = true;
  const found = {};
  for (const element of document.querySelectorAll("main *")) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.getClientRects().length || element.closest("caption")) continue;
    const style = getComputedStyle(element), [a, b] = [
      light(element instanceof SVGElement ? style.fill : style.color), light(behind(element))].sort((a, b) => b - a);
    const ratio = (a + .05) / (b + .05), name = element.tagName + "." + (element.getAttribute("class") || "");
    found[name] = Math.min(found[name] ?? 99, ratio);
  }
  return {dark: matchMedia("(prefers-color-scheme:dark)").matches, found};
"""


@pytest.mark.parametrize("dark", [False, True])
def test_all_words_stand_out_from_what_is_behind_them(dark: bool, tmp_path: Path) -> None:
    """By 4.5 to 1, as WCAG 2.1 has it (AA, 1.4.3)."""
    told = browsed(written(tmp_path), CONTRAST, tmp_path, f"--blink-settings=preferredColorScheme={int(not dark)}")
    assert told["dark"] == dark
    assert len(told["found"]) > 10
    assert {name: ratio for name, ratio in told["found"].items() if ratio < 4.5} == {}


class _Server(ThreadingHTTPServer):
    """Serves `page` as /page.html, and keeps what it is asked for."""

    page = b""

    def __init__(self) -> None:
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Answers)


class _Answers(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.send_response(200 if self.path == "/page.html" else 404)
        self.end_headers()
        if self.path == "/page.html":
            self.wfile.write(self.server.page)

    def log_message(self, *_: object) -> None:
        pass


def asked_for(page: str, folder: Path) -> set[str]:
    """The paths that a browser asks for, but for the icon that it asks any server for."""
    with _Server() as server:
        server.page = page.encode()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/page.html"
        _dom(url, folder)
        server.shutdown()
    return set(server.asked) - {"/favicon.ico"}


def test_nothing_is_fetched(tmp_path: Path) -> None:
    page = written(tmp_path)
    assert asked_for(page, tmp_path) == {"/page.html"}
    free = re.sub(r"<meta http-equiv[^>]*>", "", page).replace("<main>", '<main><img src="picture.svg">')
    assert asked_for(free, tmp_path) == {"/page.html", "/picture.svg"}, "the control: what is fetched is seen"


def test_nothing_is_cut_off_where_it_is_printed(tmp_path: Path) -> None:
    """On A4, whose width within Chromium's margins is 718 pixels."""
    page = escape(written(tmp_path).replace("@media print", "@media screen"), quote=True)
    outer = f'<!doctype html><title></title><body><iframe srcdoc="{page}" style="width:718px;height:900px;border:0">'
    script = """
      const page = document.querySelector("iframe").contentDocument;
      for (const folded of page.querySelectorAll("details")) folded.open = true;
      const parts = [page.documentElement, ...page.querySelectorAll(".wide, section")];
      return parts.filter(each => each.scrollWidth > each.clientWidth).map(each => each.textContent.slice(0, 60));
    """
    assert browsed(outer + "</iframe></body>", script, tmp_path) == []


@pytest.mark.parametrize("width", [390, 1440])
def test_no_page_is_wider_than_the_window(width: int, tmp_path: Path) -> None:
    page = escape(written(tmp_path), quote=True)
    outer = (
        f'<!doctype html><title></title><body><iframe srcdoc="{page}" style="width:{width}px;height:900px;border:0">'
    )
    script = """
      const page = document.querySelector("iframe").contentDocument.documentElement;
      return {inner: page.clientWidth, whole: page.scrollWidth};
    """
    told = browsed(outer + "</iframe></body>", script, tmp_path)
    assert told["whole"] <= told["inner"] <= width
    assert told["inner"] > width - 30, "but for a scroll bar"


def test_the_whole_page_is_pictured_in_four_forms(tmp_path: Path) -> None:
    written(tmp_path)
    made = {path.stem: path.read_bytes() for path in report_picture.whole(tmp_path / "r.html", tmp_path / "pictures")}
    assert set(made) == {f"report-{width}-{scheme}" for width in (390, 1440) for scheme in ("light", "dark")}
    for name, data in made.items():
        _, wanted, scheme = name.split("-")
        width, height = struct.unpack(">II", data[16:24])
        assert width == int(wanted)
        assert height > 1800, "twice the window, so not the window alone"
        at = data.index(b"IDAT")
        first = zlib.decompressobj().decompress(data[at + 4 : at + 4 + struct.unpack(">I", data[at - 4 : at])[0]])
        assert first[1:4].hex() == {"light": "f6f7f9", "dark": "12161c"}[scheme], "the page's background"


def test_the_benchmark_of_a_large_page_says_when_it_was_drawn_and_answered(capsys: pytest.CaptureFixture[str]) -> None:
    report_page.main(["--tensors", "200", "--layers", "20", "--rounds", "1"])
    told = json.loads(capsys.readouterr().out)
    (seen,) = told["results"]["rounds"]
    assert 0 < seen["interactive_ms"] <= seen["loaded_ms"] <= seen["drawn_ms"]
    assert seen["marked"] > 1, "the click was answered, in the list and in pictures"
    assert min(seen["mark_ms"], seen["sort_ms"], seen["filter_ms"]) > 0
    assert told["results"]["page_bytes"] > 10_000
