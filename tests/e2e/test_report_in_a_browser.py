"""The page in a real browser: a click marks, headings sort, words filter, and nothing is fetched."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from functools import cache
from html import escape, unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sentinel.reports import build_report
from sentinel.reports.session_report import Report
from sentinel.simulator import simulate
from tests.builders import MIB, make_machine, make_profile, param, persistent_plan

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


def browsed(page: str, script: str, folder: Path) -> Any:
    """What `script`, the body of a function, returns in that page, opened from a file, as JSON."""
    asked = f"const told = (() => {{ {script} }})(); document.title = JSON.stringify(told);"
    path = folder / "page.html"
    path.write_text(page.replace("</body>", f"<script>addEventListener('load', () => {{ {asked} }})</script></body>"))
    title = re.search(r"<title>(.*?)</title>", _dom(path.as_uri(), folder), re.S)
    assert title
    return json.loads(unescape(title[1]))


def _dom(url: str, folder: Path) -> str:
    """The document after its scripts have run."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={folder}/user"]
    done = subprocess.run(
        [program, *flags, "--dump-dom", url], capture_output=True, text=True, timeout=120, check=False
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
