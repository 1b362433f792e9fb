"""A headless Chromium for tests: pages opened, looked at and clicked over its DevTools protocol.

Only what the tests need: one page, expressions evaluated in it, a screenshot. Where there is no Chromium, tests skip.
"""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

LOOK_S = 20
"""How long the page itself looks before it is asked again, seconds: a page that was left never answers."""
NAMES = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-allow-origins=*",
    "--remote-debugging-port=0",
)


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One page of the browser."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._last = 0

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One DevTools command and its result. Raises AssertionError with the browser's own words."""
        self._last += 1
        self._socket.send(json.dumps({"id": self._last, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(timeout=60))
            if answer.get("id") == self._last:
                assert "error" not in answer, f"{method}: {answer['error']}"
                found: dict[str, Any] = answer["result"]
                return found

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; a promise is awaited."""
        answer = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, f"{expression}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def wait(self, expression: str, what: str, *, deadline_s: float = 120.0) -> Any:
        """Wait inside the page until the expression is truthy; its value (true for an object)."""
        script = f"""new Promise((done) => {{
          const until = Date.now() + {LOOK_S * 1000};
          const look = () => {{
            let found = null;
            try {{ found = {expression}; }} catch (error) {{ found = null; }}
            if (found || Date.now() > until) done(typeof found === 'object' ? !!found : found);
            else setTimeout(look, 100);
          }};
          look();
        }})"""
        until = time.monotonic() + deadline_s
        while time.monotonic() < until:
            with contextlib.suppress(AssertionError):  # the page was navigated away: its context is gone, look again
                found = self.evaluate(script)
                if found:
                    return found
        raise AssertionError(f"{what}: not within {deadline_s:.0f} s; the page says: {self.text()[:2000]}")

    def text(self) -> str:
        return str(self.evaluate("document.body ? document.body.innerText : ''"))

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)

    def screenshot(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))


@contextlib.contextmanager
def chromium(profile: Path, *, width: int = 1500, height: int = 1000) -> Iterator[Page]:
    """A browser with a fresh profile folder and one page; ended afterwards."""
    command = find_chromium()
    assert command is not None
    with subprocess.Popen(
        [command, *_OPTIONS, f"--user-data-dir={profile}", f"--window-size={width},{height}", "about:blank"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as browser:
        try:
            assert browser.stderr is not None
            # It says where it listens: "DevTools listening on ws://127.0.0.1:PORT/devtools/browser/ID".
            said = next((line for line in browser.stderr if "DevTools listening on" in line), "")
            port = said.partition("127.0.0.1:")[2].partition("/")[0]
            assert port, "the browser did not start"
            pages = httpx.get(f"http://127.0.0.1:{port}/json/list", timeout=30).json()
            address = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
            with connect(address, max_size=None, open_timeout=30) as socket:
                page = Page(socket)
                page.send("Page.enable")
                page.resize(width, height)
                yield page
        finally:
            browser.terminate()
            try:
                browser.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                browser.kill()
                browser.communicate()
