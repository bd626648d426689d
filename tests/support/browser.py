"""`Browser`: a headless Chromium, driven through chromedriver's plain HTTP."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"

needs_chromium = pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")),
    reason="needs chromium and chromedriver (Debian: chromium, chromium-driver)",
)


class Browser:
    """One window. `folder` takes its profile and the driver's log.

    Attributes:
        messages: every line of the console that `console` has read so far.
    """

    def __init__(self, folder: Path) -> None:
        self.messages: list[str] = []
        self._log = (folder / "chromedriver.log").open("w+")
        self._driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=self._log, stderr=subprocess.STDOUT)
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{self._port(folder)}", timeout=60)
        options = {"binary": shutil.which("chromium"), "args": [*_FLAGS, f"--user-data-dir={folder / 'profile'}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self._http.post("/session", json={"capabilities": {"alwaysMatch": wanted}}).json()["value"]
        self._session = f"/session/{session['sessionId']}"

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.delete(self._session)
        self._http.close()
        self._driver.terminate()
        self._driver.wait(10)
        self._log.close()

    def open(self, url: str) -> None:
        """Load a page; what the console had of another one is forgotten."""
        self.console()
        self.messages.clear()
        self._post("/url", url=url)

    def run(self, script: str, *args: Any) -> Any:
        """What `script`, the body of a function of `args`, returns."""
        return self._post("/execute/sync", script=script, args=list(args))

    def text(self, selector: str) -> str:
        """The text that elements show, or hold while they are folded."""
        return self.run(
            "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent).join('')", selector
        )

    def wait(self, expression: str, seconds: float = 20.0) -> Any:
        """The first value of a JavaScript expression that counts as true."""
        deadline = time.monotonic() + seconds
        while not (value := self.run(f"return {expression}")):
            if time.monotonic() > deadline:
                raise AssertionError(f"after {seconds} s not yet: {expression}; console: {self.console()}")
            time.sleep(0.02)
        return value

    def type(self, selector: str, keys: str) -> None:
        """Press keys in an element; the private characters of WebDriver stand for others than letters."""
        self._post(f"/element/{self._find(selector)}/value", text=keys)

    def click(self, selector: str) -> None:
        """Click in the middle of an element."""
        self._post(f"/element/{self._find(selector)}/click")

    def hover(self, selector: str) -> None:
        """Move the mouse over an element."""
        move = {"type": "pointerMove", "duration": 0, "x": 0, "y": 0, "origin": {_ELEMENT: self._find(selector)}}
        self._post("/actions", actions=[{"type": "pointer", "id": "mouse", "actions": [move]}])

    def command(self, name: str, **arguments: Any) -> Any:
        """A command of the DevTools protocol."""
        return self._post("/goog/cdp/execute", cmd=name, params=arguments)

    def console(self) -> list[str]:
        """Every warning and error so far: what scripts raised, what the policy blocked, what did not load."""
        self.messages += [line["message"] for line in self._post("/se/log", type="browser") if line["level"] != "INFO"]
        return self.messages

    def screenshot(self, path: Path) -> None:
        """What the window shows, as PNG."""
        path.write_bytes(base64.b64decode(self._http.get(self._session + "/screenshot").json()["value"]))

    def _find(self, selector: str) -> str:
        return self._post("/element", using="css selector", value=selector)[_ELEMENT]

    def _post(self, path: str, **body: Any) -> Any:
        answer = self._http.post(self._session + path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["value"]

    def _port(self, folder: Path) -> int:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if found := re.search(r"successfully on port (\d+)", (folder / "chromedriver.log").read_text()):
                return int(found[1])
            time.sleep(0.02)
        raise AssertionError("chromedriver did not start")
