"""A headless Chromium that tests drive through a pair of pipes, by its DevTools protocol.

Debian's package is enough: no driver, no port and no further library.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

LIMIT_SECONDS = 60.0
"""Of a single answer, on a machine that does other things as well."""
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests run as root in containers; the pages are our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-extensions",
    "--no-first-run",
    "--remote-debugging-pipe",
)


def chromium() -> str | None:
    """The browser's file; None where none is installed."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


class Browser:
    """One page of a browser."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._write, self._read = to_browser, from_browser
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer of the browser; events that come meanwhile are noted."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + LIMIT_SECONDS
        while True:
            found = self._receive(deadline)
            if found.get("id") == self._number:
                assert "error" not in found, f"{method}: {found['error']}"
                return dict(found["result"])
            self._note(found)

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            left = deadline - time.monotonic()
            assert left > 0, "the browser does not answer"
            if select.select([self._read], [], [], left)[0]:
                content = os.read(self._read, 1 << 16)
                assert content, "the browser has ended"
                self._rest += content
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(parameters["exceptionDetails"])[:2000])
            case "Log.entryAdded":
                self.errors.append(str(parameters["entry"]["text"]))
            case "Network.requestWillBeSent":
                self.requests.append(str(parameters["request"]["url"]))

    def open(self, path: Path, fragment: str = "", until: str = "true") -> None:
        """Load a file, and wait until the page says that it is interactive."""
        self.call("Page.navigate", url=f"{path.as_uri()}{fragment}")
        self.wait(f"document.documentElement?.dataset.interactive && ({until})")

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript, or the promise that it is, comes to."""
        found = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until the condition holds in the page: asked again with every frame of it."""
        loop = (
            "new Promise((done) => {const look = () => "
            f"({condition}) ? done(true) : setTimeout(look, 20); look();}})"
        )
        assert self.value(loop)

    def screen(self, width: int, height: int, *, dark: bool = False, mobile: bool = False) -> None:
        """The size of the window, and whether light or dark pages are asked for."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """What is seen, or the whole page, as PNG."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def running_browser() -> Iterator[Browser]:
    """A browser with a profile of its own; the test is skipped where none is installed, or fails
    where REQUIRE_CHROMIUM is set, as in `.ci/run`."""
    program = chromium()
    if program is None:
        if os.environ.get("REQUIRE_CHROMIUM"):
            pytest.fail("there is no chromium; install Debian's package chromium")
        pytest.skip("needs chromium; install Debian's package chromium")
    read_end, to_browser = os.pipe()
    from_browser, write_end = os.pipe()
    profile = tempfile.mkdtemp(prefix="tunefarm-browser-")
    # The protocol's pipes are the files 3 and 4 of the browser.
    command = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
    process = subprocess.Popen(
        [
            "bash",
            "-c",
            command,
            "bash",
            str(read_end),
            str(write_end),
            program,
            *_FLAGS,
            f"--user-data-dir={profile}",
        ],
        pass_fds=(read_end, write_end),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(read_end)
    os.close(write_end)
    try:
        yield Browser(to_browser, from_browser)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(LIMIT_SECONDS)
        os.close(to_browser)
        os.close(from_browser)
        shutil.rmtree(profile, ignore_errors=True)
