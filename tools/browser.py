"""Browser: a Chromium without a window, told what to do through pipes (its DevTools protocol)."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PATIENCE_S = 300.0
"""However busy the host is: what Chromium has not answered by then is not answered."""
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
_PLACE = """(() => {{
  const element = {of};
  if (!element) return "it is not there";
  const box = () => element.getBoundingClientRect();
  const place = () => [box().x + box().width * {x}, box().y + box().height * {y}];
  const inside = ([x, y]) => x > 0 && y > 0 && x < innerWidth && y < innerHeight;
  if (!inside(place())) element.scrollIntoView({{block: "center", inline: "center"}});
  if (!box().width || !box().height) return "it has no size";
  const above = document.elementFromPoint(...place());
  const seen = above && (element.contains(above) || above.contains(element));
  return seen ? place() : `${{above?.outerHTML.slice(0, 99)}} lies above it`;
}})()"""
# Chromium reads what it is told from descriptor 3, and answers on 4.
_PIPED = ("bash", "-c", 'exec "${@:3}" 3<&"$1" 4>&"$2"', "bash")


class Browser:
    """One Chromium with one page, as a context: it ends with it. Each call raises SystemExit, with the reason, where
    there is no Chromium or where it does not answer."""

    def __init__(self) -> None:
        program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        if program is None:
            raise SystemExit("no browser: apt-get install chromium")
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # it still writes there as it ends
        theirs, self._to = os.pipe()
        self._from, answers = os.pipe()
        user = f"--user-data-dir={self._folder.name}"
        self._process = subprocess.Popen(
            [*_PIPED, str(theirs), str(answers), program, *_FLAGS, user, "--remote-debugging-pipe"],
            pass_fds=(theirs, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        os.close(answers)
        self._read = bytearray()
        self._number = 0
        self._page: dict[str, str] = {}
        self._reached: set[tuple[str, str]] = set()  # (document, how far it is)

    def __enter__(self) -> Self:
        try:
            self._open_page()
        except BaseException:
            self._end()
            raise
        return self

    def _open_page(self) -> None:
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._page = {"sessionId": session}
        self._call("Page.enable")
        self._call("Page.setLifecycleEventsEnabled", enabled=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._folder.cleanup()

    def open(self, page: Path, width: int, height: int, *, dark: bool = False, first: str = "") -> None:
        """Open `page` in a window of that size, in CSS pixels, and wait until it is loaded. `first`: a script that
        runs before those of the page. Below 640 pixels the window is that of a phone."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 640
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        added = self._call("Page.addScriptToEvaluateOnNewDocument", source=first)
        document = self._call("Page.navigate", url=page.resolve().as_uri())["loaderId"]
        while (document, "load") not in self._reached:
            self._next()
        self._call("Page.removeScriptToEvaluateOnNewDocument", identifier=added["identifier"])

    def ask(self, expression: str) -> Any:
        """What `expression` is within the page, as JSON; where it is a promise, what that comes to."""
        done = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            raise SystemExit(f"the page failed: {done['exceptionDetails']}")
        return done["result"].get("value")

    # ---- a hand at a mouse and a keyboard: the page cannot tell it from a person's --------------------------

    def point(self, of: str, *, at: tuple[float, float] = (0.5, 0.5)) -> None:
        """Move the pointer onto the element that the expression `of` is, which is scrolled into the window if it is not
        in it. `at`: where in it, in shares of its width and height.

        Raises SystemExit where there is none, or where it has no size or lies under another one there.
        """
        self._call("Input.dispatchMouseEvent", type="mouseMoved", **self._place(of, at))

    def click(self, of: str, *, at: tuple[float, float] = (0.5, 0.5)) -> None:
        """`point`, and press and let go of the left button."""
        place = self._place(of, at)
        self._call("Input.dispatchMouseEvent", type="mouseMoved", **place)
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def write(self, words: str) -> None:
        """Write `words` where a click has put the cursor."""
        self._call("Input.insertText", text=words)

    def press(self, key: str) -> None:
        """Press a key by its name, such as `Escape` or `Backspace`, and let go of it."""
        code = {"Escape": 27, "Backspace": 8, "Enter": 13}[key]
        for kind in ("rawKeyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def _place(self, of: str, at: tuple[float, float]) -> dict[str, float]:
        """Where that is in the window."""
        told = self.ask(_PLACE.format(of=of, x=at[0], y=at[1]))
        if isinstance(told, str):
            raise SystemExit(f"no pointer can be on {of}: {told}")
        return {"x": told[0], "y": told[1]}

    def whole_page(self) -> bytes:
        """A PNG of all of the page, as wide as the window."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        return base64.b64decode(self._call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"])

    def window(self) -> bytes:
        """A PNG of what the window shows."""
        return base64.b64decode(self._call("Page.captureScreenshot")["data"])

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        asked = {"id": self._number, "method": method, "params": parameters, **self._page}
        try:
            os.write(self._to, json.dumps(asked).encode() + b"\0")
        except BrokenPipeError:
            raise SystemExit("Chromium ended") from None
        while (told := self._next()).get("id") != self._number:
            pass
        if "error" in told:
            raise SystemExit(f"Chromium refused {method}: {told['error']}")
        result: dict[str, Any] = told["result"]
        return result

    def _next(self) -> dict[str, Any]:
        """The next answer or event."""
        while b"\0" not in self._read:
            ready, _, _ = select.select([self._from], [], [], PATIENCE_S)
            part = os.read(self._from, 1 << 20) if ready else b""
            if not part:
                raise SystemExit(f"Chromium {'ended' if ready else f'did not answer within {PATIENCE_S:.0f} s'}")
            self._read += part
        message, _, self._read = self._read.partition(b"\0")
        told: dict[str, Any] = json.loads(message)
        if told.get("method") == "Page.lifecycleEvent":
            self._reached.add((told["params"]["loaderId"], told["params"]["name"]))
        return told
