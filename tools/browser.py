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
