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
from sentinel.reports.session_report import Report
from sentinel.simulator import simulate
from tests.builders import MIB, make_machine, make_profile, param, persistent_plan
from tools import report_picture

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


def test_a_click_marks_tensors_in_every_picture_until_it_comes_again(tmp_path: Path) -> None:
    script = """
      const pick = document.querySelectorAll(".ranked")[1].querySelector(".pick");
      const key = pick.closest("[data-k]").dataset.k;
      const part = e => e.closest("section").querySelector("h2").textContent;
      const lit = () => [...document.querySelectorAll(".lit")].map(part);
      const before = lit();
      pick.click();
      const after = [...new Set(lit())], all = lit().length;
      const same = [...document.querySelectorAll(".lit")].every(e => e.dataset.k.split(" ").includes(key));
      const said = document.getElementById("marked").hidden ? "" : document.getElementById("marked").textContent;
      pick.click();
      const again = lit();
      pick.click();
      document.dispatchEvent(new KeyboardEvent("keydown", {key: "Escape"}));
      const escaped = lit();
      document.querySelector("svg g[data-k]").dispatchEvent(new MouseEvent("click", {bubbles: true}));
      return {name: pick.textContent, before, after, all, same, said, again, escaped, picture: lit().length};
    """
    told = browsed(written(tmp_path), script, tmp_path)
    assert told["before"] == told["again"] == told["escaped"] == []
    assert told["same"]
    assert {
        "Which tensors hurt",
        "What moved, and why",
        "Tensors over the layers",
        "Tensors",
        "Migrations on a timeline",
    } <= set(told["after"])
    assert f"{told['name']}: marked in {told['all']} places" in told["said"]
    assert told["picture"] > 0


def test_a_heading_sorts_and_a_word_filters(tmp_path: Path) -> None:
    script = """
      const title = [...document.querySelectorAll("section h2")].find(h => h.textContent === "Tensors");
      const section = title.closest("section"), body = section.querySelector("tbody");
      const column = name => [...section.querySelectorAll("thead th")].findIndex(h => h.textContent === name);
      const value = cell => cell.dataset.v ?? cell.textContent;
      const values = name => [...body.rows].filter(r => !r.hidden).map(r => value(r.cells[column(name)]));
      const head = section.querySelectorAll("thead button")[column("bytes")];
      head.click();
      const up = values("bytes").map(Number);
      head.click();
      const down = values("bytes").map(Number);
      const input = section.querySelector("input");
      input.value = "MLP";
      input.dispatchEvent(new Event("input"));
      const left = values("tensor");
      input.value = "";
      input.dispatchEvent(new Event("input"));
      return {up, down, left, all: values("tensor").length};
    """
    told = browsed(written(tmp_path), script, tmp_path)
    assert told["up"] == sorted(told["up"])
    assert told["down"] == sorted(told["down"], reverse=True)
    assert told["up"] != told["down"]
    assert sorted(told["left"]) == [f"h.{k}.mlp" for k in range(8)]
    assert told["all"] == 16


def test_a_pointer_is_told_what_it_is_on_and_what_is_folded_is_printed(tmp_path: Path) -> None:
    script = """
      const tip = document.getElementById("tip"), told = [];
      const move = (mark, clientX, clientY) =>
        mark.dispatchEvent(new PointerEvent("pointermove", {bubbles: true, clientX, clientY}));
      for (const mark of document.querySelectorAll("[data-t]")) {
        move(mark, innerWidth - 2, innerHeight - 2);
        const box = tip.getBoundingClientRect();
        told.push(!tip.hidden && tip.textContent === mark.dataset.t && box.width > 0
                  && box.left >= 0 && box.right <= innerWidth && box.top >= 0 && box.bottom <= innerHeight);
      }
      move(document.querySelector("h1"), 5, 5);
      const away = tip.hidden, folded = () => document.querySelectorAll("details:not([open])").length;
      const before = folded();
      dispatchEvent(new Event("beforeprint"));
      const printed = folded();
      dispatchEvent(new Event("afterprint"));
      return {marks: told.length, wrong: told.filter(each => !each).length, away, before, printed, after: folded()};
    """
    told = browsed(written(tmp_path), script, tmp_path)
    assert told["marks"] > 20
    assert told["wrong"] == 0
    assert told["away"]
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
