# SPDX-License-Identifier: Apache-2.0
"""Commands to a daemon of Open vSwitch, against a server that answers in pieces, refuses, or says nothing."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from emul import unixctl


class Daemon:
    """Takes one request on the socket `path`, and answers with the given pieces."""

    def __init__(self, path: Path, *pieces: bytes, closes: bool = True) -> None:
        self.path = path
        self.request: dict[str, object] = {}
        self._closes = closes
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=[pieces])
        self._thread.start()

    def _serve(self, pieces: Sequence[bytes]) -> None:
        connection, _ = self._listener.accept()
        with connection:
            self.request = json.loads(connection.recv(10_000))
            for piece in pieces:
                connection.sendall(piece)
            if not self._closes:
                self._done.wait(60)

    def stop(self) -> None:
        self._done.set()
        self._thread.join()
        self._listener.close()


def test_an_answer_in_pieces_is_put_together(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "ctl", b'{"id": 0, "result": "{a}', b' {b}\\n"', b"}", closes=False)
    assert unixctl.ask(daemon.path, "ofproto/trace", "--names", "leaf1", timeout_s=60) == "{a} {b}\n"
    daemon.stop()
    assert daemon.request == {"id": 0, "method": "ofproto/trace", "params": ["--names", "leaf1"]}


def test_a_refusal_is_told_in_the_daemons_words(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "ctl", b'{"id": 0, "error": "leaf9: unknown bridge\\n", "result": null}')
    with pytest.raises(ValueError, match=r"^leaf9: unknown bridge$"):
        unixctl.ask(daemon.path, "ofproto/trace", "leaf9", timeout_s=60)
    daemon.stop()


def test_a_daemon_that_ends_is_an_error(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "ctl", b'{"id": 0, "result": "a')
    with pytest.raises(ConnectionResetError, match="closed the connection"):
        unixctl.ask(daemon.path, "version", timeout_s=60)
    daemon.stop()


def test_a_daemon_that_says_nothing_is_an_error(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "ctl", closes=False)
    with pytest.raises(TimeoutError):
        unixctl.ask(daemon.path, "version", timeout_s=0.05)
    daemon.stop()


def test_a_daemon_that_does_not_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        unixctl.ask(tmp_path / "ctl", "version", timeout_s=60)
