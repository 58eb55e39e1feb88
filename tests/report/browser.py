"""Chromium without a window, spoken to through a pipe: one start serves several pages, sizes and colour schemes."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PATH = shutil.which("chromium") or shutil.which("google-chrome")
_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--no-first-run",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]
_READY = """document.readyState == "complete" && location.protocol == "file:" &&
  (!document.getElementById("data") || "drawn" in document.body.dataset || "failed" in document.body.dataset)"""


class Tab:
    """A page in a browser."""

    def __init__(self, to: int, back: int, timeout: float = 100.0):
        self._to, self._back, self._timeout = to, back, timeout
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.said: list[str] = []  # on the console, and uncaught errors
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            if answer.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
                self.said.append(json.dumps(answer["params"]))
        assert "error" not in answer, answer
        found: dict[str, Any] = answer["result"]
        return found

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._back, 1 << 20)
            assert more, "the browser has ended"
            self._rest += more
        text, self._rest = self._rest.split(b"\0", 1)
        answer: dict[str, Any] = json.loads(text)
        return answer

    def open(self, path: Path) -> None:
        """Show a page and wait until it is drawn."""
        self.call("Page.navigate", url=path.as_uri())
        begun = time.monotonic()
        while not self.run(_READY):
            assert time.monotonic() < begun + self._timeout, "the page was not drawn in time"
            time.sleep(0.05)

    def become(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """A window of this size and colour scheme; narrow ones are phones."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 640}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Emulation.setTouchEmulationEnabled", enabled=width < 640)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """What is visible, or the whole page."""
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(picture))


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Tab]:
    """`folder` keeps the browser's own files."""
    assert PATH is not None
    there, to = os.pipe()
    back, away = os.pipe()
    words = [PATH, *_FLAGS, f"--user-data-dir={folder}"]
    # The browser reads from descriptor 3 and writes to 4.
    script = f'exec "$0" "$@" 3<&{there} 4>&{away} 2>/dev/null'
    process = subprocess.Popen(["bash", "-c", script, *words], pass_fds=(there, away), stdin=subprocess.DEVNULL)
    os.close(there)
    os.close(away)
    try:
        yield Tab(to, back)
    finally:
        os.close(to)  # ends the browser
        os.close(back)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
