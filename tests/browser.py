# SPDX-License-Identifier: Apache-2.0
"""Chromium without a window, driven over a pipe by the Chrome DevTools Protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PROGRAM = shutil.which("chromium")
_QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-component-update",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
]


class Browser:
    """One page. A context manager; `folder` gets the browser's own files.

    Calls block until the browser answers: the test's time limit ends them.
    """

    def __init__(self, folder: Path, width: int = 1000, height: int = 800) -> None:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        # The browser reads commands from descriptor 3 and writes answers to 4.
        command = [
            "bash",
            "-c",
            f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}',
            "browser",
            str(PROGRAM),
            *_QUIET,
            f"--window-size={width},{height}",
            f"--user-data-dir={folder}",
            "--remote-debugging-pipe",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            command, pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._to, self._from = os.fdopen(ours_out, "wb"), os.fdopen(ours_in, "rb")
        self._left = b""
        self._number = 0
        self.requested: list[str] = []
        """Addresses that the page has asked for."""
        self.errors: list[str] = []
        """Errors of the page's programs, and what its policy refused."""
        target = next(
            target for target in self.call("Target.getTargets", session=None)["targetInfos"] if target["type"] == "page"
        )
        self._session: str | None = None
        attached = self.call("Target.attachToTarget", session=None, targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._to.close()
        self._from.close()

    def call(self, method: str, session: str | None = "page", **parameters: Any) -> dict[str, Any]:
        """The result of a method of the protocol, on the page unless `session` is None."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        self._to.flush()
        while (answer := self._read()).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, url: str) -> None:
        """Load a page and wait for it."""
        self.call("Page.navigate", url=url)
        while self._number and self.value("document.readyState") != "complete":
            pass

    def value(self, expression: str) -> Any:
        """What JavaScript makes of the expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str, holds: Callable[[Any], bool] = bool) -> Any:
        """The value of the expression once it `holds`."""
        pause = "new Promise((resume) => setTimeout(resume, 20))"
        while not holds(found := self.value(expression)):
            self.value(pause)
        return found

    def press(self, key: str) -> None:
        """Press and release a key that makes this character."""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def picture(self, selector: str) -> bytes:
        """An element as PNG."""
        clip = self.value(
            f"(({{x, y, width, height}}) => ({{x: x + scrollX, y: y + scrollY, width, height, scale: 1}}))"
            f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
        )
        taken = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(taken["data"])

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            more = os.read(self._from.fileno(), 1 << 16)
            assert more, "the browser has ended"
            self._left += more
        text, _, self._left = self._left.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        if message["method"] == "Network.requestWillBeSent":
            self.requested.append(parameters["request"]["url"])
        elif message["method"] == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"]))
        elif message["method"] == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])
