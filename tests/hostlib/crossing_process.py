# SPDX-License-Identifier: Apache-2.0
"""A process whose device connects to another one that connects to it at the same moment, several times. It exchanges
handles over standard input and output, in hexadecimal; test_tcp.py runs two of them.

usage: crossing_process.py OWN PEER ROUNDS
"""

from __future__ import annotations

import sys

from hostlib import Connection, Device
from tests.ports import free_ports

DEADLINE_S = 60.0


def main(own: str, peer: str, rounds: int) -> None:
    ports = free_ports(2)
    for number in range(rounds):
        with Device(own, backend="tcp", lanes=len(ports), policy="pinned", ports={peer: ports}) as device:
            listener = device.listen()
            print(listener.handle.hex(), flush=True)
            outgoing = device.connect(bytes.fromhex(sys.stdin.readline()))
            incoming = listener.accept(DEADLINE_S)
            check(outgoing, incoming, number=number)


def check(*connections: Connection, number: int) -> None:
    """Send a message on each connection, and receive one."""
    message = number.to_bytes(4, "big") * 10_000
    buffers = [bytearray(len(message)) for _ in connections]
    requests = [connection.recv(buffer) for connection, buffer in zip(connections, buffers, strict=True)]
    requests += [connection.send(message) for connection in connections]
    for request in requests:
        request.wait(DEADLINE_S)
    if any(buffer != message for buffer in buffers):
        raise ValueError(f"round {number}: a message is wrong")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
