"""Headless Chromium over the WebDriver protocol: what a person sees of a page, what its console says."""

from __future__ import annotations

import base64
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
MISSING = "needs chromium and chromedriver (Debian: apt install chromium-driver)"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
LONGEST_WAIT = 60.0
COLOURS = """
const picture = new Image();
picture.src = "data:image/png;base64," + arguments[0];
return picture.decode().then(() => {
  const canvas = new OffscreenCanvas(picture.width, picture.height).getContext("2d");
  canvas.drawImage(picture, 0, 0);
  const bytes = canvas.getImageData(0, 0, picture.width, picture.height).data;
  const colours = new Set();
  for (let at = 0; at < bytes.length; at += 4)
    colours.add((bytes[at] << 16) | (bytes[at + 1] << 8) | bytes[at + 2]);
  return [...colours];
});
"""


class Browser:
    """One session of Chromium; as a context manager it ends the driver and the browser."""

    def __init__(self, profile: Path, *, width: int = 1200, height: int = 1600) -> None:
        assert CHROMIUM is not None, MISSING
        self._profile = profile
        self._options = {
            "binary": CHROMIUM,
            "args": [
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--lang=en-US",
                f"--user-data-dir={profile / 'chromium'}",
                f"--window-size={width},{height}",
            ],
        }

    def __enter__(self) -> Self:
        assert DRIVER is not None, MISSING
        log = self._profile / "driver.log"
        with log.open("wb") as sink:
            self._driver = subprocess.Popen([DRIVER, "--port=0"], stdout=sink, stderr=subprocess.STDOUT)
        try:
            port = _until(lambda: _port(log.read_text()), "chromedriver's port")
            self._http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)
            capabilities = {
                "browserName": "chrome",
                "goog:chromeOptions": self._options,
                "goog:loggingPrefs": {"browser": "ALL"},
            }
            answer = self._send("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
            self._session = f"/session/{answer['sessionId']}"
        except BaseException:  # an interrupt too must leave no driver behind
            self._driver.kill()
            self._driver.wait()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            self._send("DELETE", self._session)
        finally:
            self._driver.terminate()
            self._driver.wait()

    def open(self, url: str) -> None:
        """Go to a page and wait until it is loaded."""
        self._call("/url", {"url": url})

    def script(self, body: str, *arguments: Any) -> Any:
        """What the function body returns, run in the page."""
        return self._call("/execute/sync", {"script": body, "args": list(arguments)})

    def until(self, body: str, *arguments: Any) -> Any:
        """The first true value of `script`."""
        return _until(lambda: self.script(body, *arguments), body)

    def into_frame(self, selector: str) -> None:
        """Look at the page inside a frame from here on."""
        found = self._call("/element", {"using": "css selector", "value": selector})
        self._call("/frame", {"id": {ELEMENT: found[ELEMENT]}})

    def out_of_frame(self) -> None:
        self._call("/frame", {"id": None})

    def click(self, selector: str) -> None:
        found = self._call("/element", {"using": "css selector", "value": selector})
        self._call(f"/element/{found[ELEMENT]}/click", {})

    def type(self, selector: str, text: str) -> None:
        """Type into a field, as a person would."""
        found = self._call("/element", {"using": "css selector", "value": selector})
        self._call(f"/element/{found[ELEMENT]}/value", {"text": text})

    def choose(self, selector: str, option: str) -> None:
        """Choose an option of a select by its value."""
        self.click(f"{selector} option[value='{option}']")

    def prefer(self, scheme: str) -> None:
        """Prefer `light` or `dark`, as the system's setting would."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._call(
            "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {"features": [feature]}}
        )

    def cookie(self, name: str, value: str) -> None:
        """Set a cookie of the page's site."""
        self._call("/cookie", {"cookie": {"name": name, "value": value, "httpOnly": True}})

    def forget_cookies(self) -> None:
        self._send("DELETE", f"{self._session}/cookie")

    def screenshot(self) -> bytes:
        """What is seen, as PNG."""
        return base64.b64decode(self._send("GET", f"{self._session}/screenshot"))

    def colours_of(self, png: bytes) -> set[int]:
        """The distinct colours of a picture, as RGB numbers; leaves the page."""
        self.open("about:blank")
        return set(self.script(COLOURS, base64.b64encode(png).decode()))

    def console(self) -> list[str]:
        """Warnings and errors of the console since the last call."""
        lines = self._call("/se/log", {"type": "browser"})
        return [line["message"] for line in lines if line["level"] in ("WARNING", "SEVERE")]

    @contextmanager
    def new_window(self) -> Iterator[None]:
        """Wait for a second window and look at it inside the block; then close it."""
        first = self._send("GET", f"{self._session}/window")
        others = _until(lambda: self._windows() - {first}, "a second window")
        self._call("/window", {"handle": others.pop()})
        yield
        self._send("DELETE", f"{self._session}/window")
        self._call("/window", {"handle": first})

    def _windows(self) -> set[str]:
        return set(self._send("GET", f"{self._session}/window/handles"))

    def _call(self, path: str, body: dict[str, Any]) -> Any:
        return self._send("POST", self._session + path, body)

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        response = self._http.request(method, path, json=body)
        value = response.json()["value"]
        assert response.is_success, f"{method} {path}: {value['error']}: {value['message']}"
        return value


def _port(log: str) -> int | None:
    _, found, rest = log.partition("successfully on port ")
    return int(rest.split(".")[0]) if found and "." in rest else None


def _until(probe: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + LONGEST_WAIT
    while not (value := probe()):
        assert time.monotonic() < deadline, f"{what}: waited {LONGEST_WAIT:.0f} s in vain"
        time.sleep(0.1)
    return value
