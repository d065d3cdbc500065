# SPDX-License-Identifier: Apache-2.0
"""A process that sends back what it receives, until it is ended. Reads the handle from standard input, in hexadecimal.

usage: echo_process.py ADDRESS
"""

from __future__ import annotations

import sys

from hostlib import Device

MOST_BYTES = 1 << 20


def main(address: str) -> None:
    with Device(address, lanes=2, min_timeout_s=0.02) as device:
        connection = device.connect(bytes.fromhex(sys.stdin.readline()))
        buffer = bytearray(MOST_BYTES)
        while True:
            moved = connection.recv(buffer).wait()
            connection.send(bytes(buffer[:moved])).wait()


if __name__ == "__main__":
    main(sys.argv[1])
