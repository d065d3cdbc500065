# SPDX-License-Identifier: Apache-2.0
"""One of two processes of test_last_release.py, by whichever release of the host library is on its path.

usage: talk.py ADDRESS (listen | connect), with the other one's handle on standard input, in hexadecimal

Both send and check as many messages. What `PARALET_*` say holds.
"""

import hashlib
import json
import os
import random
import sys

from hostlib import Device
from hostlib.parameters import read_parameters

DEADLINE_S = 60.0
MESSAGES = 20


def data(seed: int, tag: int) -> bytes:
    draw = random.Random(f"{seed} {tag}")
    return draw.randbytes(draw.choice((0, 1, 4096, 100_000, 3_000_000)))


def main(address: str, role: str) -> None:
    with Device(address, **{"lanes": 4, **read_parameters(os.environ).options}) as device:
        if role == "listen":
            listener = device.listen()
            print(listener.handle.hex(), flush=True)
            connection = listener.accept(DEADLINE_S)
        else:
            connection = device.connect(bytes.fromhex(sys.stdin.readline()))
        mine, theirs = (0, 1) if role == "listen" else (1, 0)
        digest = hashlib.sha256()
        for tag in range(MESSAGES):
            expected = data(theirs, tag)
            buffer = bytearray(len(expected))
            receive = connection.recv(buffer, tag)
            send = connection.send(data(mine, tag), tag)
            receive.wait(DEADLINE_S)
            send.wait(DEADLINE_S)
            assert buffer == expected, f"message {tag} differs"
            digest.update(buffer)
        counters = device.counters()
        served = counters.get("path_client") or counters.get("controller") or {}
        print(json.dumps({"sha256": digest.hexdigest(), "assigned": served.get("assigned", 0)}), flush=True)
        sys.stdin.read()  # the other one may still send


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
