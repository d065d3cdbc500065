# SPDX-License-Identifier: Apache-2.0
"""The second process of test_processes.py: receives messages of known sizes and answers with their digests. Reads the
handle from standard input, in hexadecimal.

usage: peer_process.py ADDRESS MESSAGES
"""

from __future__ import annotations

import hashlib
import random
import sys

from hostlib import Device

DEADLINE_S = 60.0


def sizes(messages: int) -> list[int]:
    draw = random.Random(messages)
    return [draw.choice((0, 1, 40, 4096, draw.randrange(5000), draw.randrange(200_000))) for _ in range(messages)]


def main(address: str, messages: int) -> None:
    with Device(address, lanes=4) as device:
        print(device.udp_port, flush=True)
        connection = device.connect(bytes.fromhex(sys.stdin.readline()))
        buffers = [bytearray(size) for size in sizes(messages)]
        for tag, buffer in enumerate(buffers):
            assert connection.recv(buffer, tag).wait(DEADLINE_S) == len(buffer)
            connection.send(hashlib.sha256(buffer).digest(), tag)
        connection.recv(bytearray(1), messages).wait(DEADLINE_S)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
