# SPDX-License-Identifier: Apache-2.0
"""The far end of a link: waits for a line on standard input (its interface is up by then), opens a device, prints its
handle in hexadecimal, and receives messages from all peers until standard input ends.

usage: sink.py ADDRESS LANES CONNECTIONS MESSAGE_BYTES
"""

from __future__ import annotations

import sys
import threading

from hostlib import Connection, Device, Request, TransportError, wait_any

DEPTH = 16  # a lane that dies may hold some of them


def receive(connections: list[Connection], size: int) -> None:
    """Keeps DEPTH receives open on every connection. Ends when all are closed."""
    buffers = [[bytearray(size) for _ in range(DEPTH)] for _ in connections]
    under_way: list[tuple[int, int, Request]] = [
        (c, slot, connection.recv(buffers[c][slot]))
        for c, connection in enumerate(connections)
        for slot in range(DEPTH)
    ]
    while under_way:
        done = wait_any([request for _, _, request in under_way])
        c, slot, request = under_way.pop(done)
        try:
            request.wait()
        except TransportError:
            continue
        under_way.append((c, slot, connections[c].recv(buffers[c][slot])))


def main(address: str, lanes: int, connections: int, size: int) -> None:
    sys.stdin.readline()
    with Device(address, lanes=lanes, min_timeout_s=0.05, retry_time_s=60.0) as device:
        listener = device.listen()
        print(listener.handle.hex(), flush=True)
        accepted = [listener.accept(60) for _ in range(connections)]
        threading.Thread(target=receive, args=(accepted, size)).start()
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
