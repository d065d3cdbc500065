# SPDX-License-Identifier: Apache-2.0
"""A device in a process of its own: echoes messages, then reports the counters of its lanes.

usage: device_process.py BACKEND ADDRESS MESSAGES

Prints the listener's handle in hexadecimal and, when MESSAGES have come and gone, the rows of its lanes as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import cast

from hostlib import Device
from hostlib.device import Backend

MOST_BYTES = 4 << 20
TIMEOUT_S = 120.0


def main(backend: str, address: str, messages: str) -> None:
    with Device(address, backend=cast(Backend, backend), lanes=2, min_timeout_s=0.5, retry_time_s=TIMEOUT_S) as device:
        listener = device.listen()
        print(listener.handle.hex(), flush=True)
        with listener.accept(TIMEOUT_S) as connection:
            buffer = bytearray(MOST_BYTES)
            for _ in range(int(messages)):
                moved = connection.recv(buffer).wait(TIMEOUT_S)
                connection.send(bytes(buffer[:moved])).wait(TIMEOUT_S)
            print(json.dumps(device.counters()["lanes"]), flush=True)
            sys.stdin.read()  # until the parent process closes it


if __name__ == "__main__":
    main(*sys.argv[1:])
