# SPDX-License-Identifier: Apache-2.0
"""A process that sends back every message, until it is killed. Reads the handle from standard input, in hexadecimal.

usage: echo_process.py ADDRESS
"""

from __future__ import annotations

import sys

from hostlib import Device

MAX_BYTES = 1 << 20


def main(address: str) -> None:
    with Device(address, lanes=2, min_timeout_s=0.02) as device:
        connection = device.connect(bytes.fromhex(sys.stdin.readline()))
        buffer = bytearray(MAX_BYTES)
        while True:
            moved = connection.recv(buffer).wait()
            connection.send(bytes(buffer[:moved])).wait()


if __name__ == "__main__":
    main(sys.argv[1])
