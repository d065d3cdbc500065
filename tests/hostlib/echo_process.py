# SPDX-License-Identifier: Apache-2.0
"""A process that sends back every message, until it is killed. Reads the handle from standard input, in hexadecimal.

usage: echo_process.py ADDRESS BACKEND
"""

from __future__ import annotations

import sys
from typing import cast

from hostlib import Device
from hostlib.device import Backend

MAX_BYTES = 1 << 20


def main(address: str, backend: Backend) -> None:
    with Device(address, backend=backend, lanes=2, min_timeout_s=0.02) as device:
        connection = device.connect(bytes.fromhex(sys.stdin.readline()))
        buffer = bytearray(MAX_BYTES)
        while True:
            moved = connection.recv(buffer).wait()
            connection.send(bytes(buffer[:moved])).wait()


if __name__ == "__main__":
    main(sys.argv[1], cast(Backend, sys.argv[2]))
