# SPDX-License-Identifier: Apache-2.0
"""Two processes on one machine, on one address or two."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from hostlib import Device

from . import peer_process
from .conftest import DEADLINE_S, A, B

ROOT = Path(__file__).parents[2]
MESSAGES = 300


@pytest.mark.parametrize("theirs", [A, B], ids=["same-address", "another-address"])
def test_hundreds_of_messages_between_two_processes(theirs: str) -> None:
    with Device(A, lanes=4) as device:
        listener = device.listen()
        with subprocess.Popen(
            [sys.executable, peer_process.__file__, theirs, str(MESSAGES)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as peer:
            assert peer.stdin is not None
            assert peer.stdout is not None
            port = int(peer.stdout.readline())
            if theirs == A:
                assert port != device.udp_port  # the first device of an address gets 4791 if it is free
            peer.stdin.write(listener.handle.hex() + "\n")
            peer.stdin.flush()
            connection = listener.accept(DEADLINE_S)
            assert connection.peer == theirs
            draw = random.Random(5)
            expected, digests, receiving = [], [], []
            for tag, size in enumerate(peer_process.sizes(MESSAGES)):
                message = draw.randbytes(size)
                digest = bytearray(32)
                receiving.append(connection.recv(digest, tag))
                connection.send(message, tag)
                expected.append(hashlib.sha256(message).digest())
                digests.append(digest)
            for request in receiving:
                assert request.wait(DEADLINE_S) == 32
            assert digests == expected
            connection.send(b"!", MESSAGES).wait(DEADLINE_S)
            assert peer.wait(DEADLINE_S) == 0


def test_a_killed_process_fails_pending_requests() -> None:
    with Device(A, lanes=2) as device:
        listener = device.listen()
        with subprocess.Popen(
            [sys.executable, peer_process.__file__, B, "1000"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as peer:
            assert peer.stdin is not None
            assert peer.stdout is not None
            peer.stdout.readline()
            peer.stdin.write(listener.handle.hex() + "\n")
            peer.stdin.flush()
            connection = listener.accept(DEADLINE_S)
            pending = connection.recv(bytearray(32), 999)
            peer.kill()
            with pytest.raises(Exception, match=r"^127\.0\.0\.2 went away: ") as error:
                pending.wait(DEADLINE_S)
            assert type(error.value).__name__ == "ConnectionClosed"
