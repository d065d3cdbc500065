# SPDX-License-Identifier: Apache-2.0
"""The page of `paralet top --serve`, and the server that feeds it. Nothing is fetched from elsewhere."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

from testbed.cli.own_hosts import is_for

_FILES = {
    "/": ("top_page.html", "text/html; charset=utf-8"),
    "/top_page.css": ("top_page.css", "text/css; charset=utf-8"),
    "/top_page.js": ("top_page.js", "text/javascript; charset=utf-8"),
}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_MOST_VIEWERS = 16
_SOCKET_TIMEOUT_S = 30.0
"""A browser that takes nothing for this time is given up."""


class Feed:
    """Updates for the browsers that watch. `look` is called every `interval_s` seconds, and only while one watches.

    The thread that looks takes what others leave of the processors. The process itself does not, or its end would wait
    for a busy machine.
    """

    def __init__(self, look: Callable[[], dict[str, Any]], interval_s: float) -> None:
        self._look, self._interval_s = look, interval_s
        self._changed = threading.Condition()
        self._viewers = 0
        self._number = 0
        self._text = ""
        threading.Thread(target=self._run, daemon=True).start()

    def join(self) -> bool:
        """Count a viewer. False if there are too many."""
        with self._changed:
            if self._viewers == _MOST_VIEWERS:
                return False
            if self._viewers == 0:
                self._text = ""  # of the last viewer's time
            self._viewers += 1
            self._changed.notify_all()
            return True

    def leave(self) -> None:
        """Count one viewer fewer, since a browser has left."""
        with self._changed:
            self._viewers -= 1

    def updates(self) -> Iterator[str]:
        """Every update from the latest on, as JSON, between `join` and `leave`."""
        with self._changed:
            seen = self._number - bool(self._text)
        while True:
            with self._changed:
                while self._number == seen:
                    self._changed.wait()
                seen, text = self._number, self._text
            yield text

    def _run(self) -> None:
        os.nice(19)  # of this thread only: Linux keeps it by thread
        while True:
            with self._changed:
                while not self._viewers:
                    self._changed.wait()
            text = json.dumps(self._look(), separators=(",", ":"))
            with self._changed:
                self._number += 1
                self._text = text
                self._changed.notify_all()
            time.sleep(self._interval_s)


def server(address: str, port: int, feed: Feed) -> ThreadingHTTPServer:
    """A server of the page at this address; port 0 is any free one. Raises OSError.

    It answers only requests that are for it (`own_hosts`).
    """
    files = {
        path: (resources.files(__package__).joinpath(name).read_bytes(), kind) for path, (name, kind) in _FILES.items()
    }
    for_this_host = is_for(address)

    class Handler(BaseHTTPRequestHandler):
        timeout = _SOCKET_TIMEOUT_S

        def do_GET(self) -> None:
            if not for_this_host(self.headers.get("Host", "")):
                self.send_error(HTTPStatus.FORBIDDEN, "The request names another host")
            elif self.path == "/updates":
                self._follow()
            elif self.path in files:
                body, kind = files[self.path]
                self._begin(kind, len(body))
                self.wfile.write(body)
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        def _begin(self, kind: str, length: int | None) -> None:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            if length is not None:
                self.send_header("Content-Length", str(length))
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            self.end_headers()

        def _follow(self) -> None:
            """Server-sent events (HTML Living Standard, 9.2) until the browser is gone."""
            if not feed.join():
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, f"{_MOST_VIEWERS} browsers watch already")
                return
            try:
                self._begin("text/event-stream", None)
                for update in feed.updates():
                    self.wfile.write(b"data: " + update.encode() + b"\n\n")
                    self.wfile.flush()
            except OSError:
                pass  # the browser has gone, or takes nothing
            finally:
                feed.leave()

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    return Server((address, port), Handler)
