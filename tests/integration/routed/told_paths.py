# SPDX-License-Identifier: Apache-2.0
"""Connects several times, and prints the path of each connection by its source port, as `paralet pin --check` has it.

`told_paths.py take OWN_ADDRESS CONNECTIONS` is the other end of `told_paths.py connect PEER CONNECTIONS`.
"""

import json
import os
import socket
import sys

from paralet_pin.check import agent_of, ask

PORT = 7200
DATA = bytes(10_000)


def take(own: str, connections: int) -> None:
    with socket.create_server((own, PORT), backlog=connections) as server:
        print("ready", flush=True)
        taken = [server.accept()[0] for _ in range(connections)]
    for each in taken:
        each.sendall(DATA)
    for each in taken:
        each.recv(1)


def connect(peer: str, connections: int) -> None:
    made = [socket.create_connection((peer, PORT)) for _ in range(connections)]
    for each in made:
        each.recv(len(DATA), socket.MSG_WAITALL)
    print(json.dumps({flow.port: flow.path for flow in ask(agent_of(os.getpid())).pinned}))
    for each in made:
        each.close()


if __name__ == "__main__":
    {"take": take, "connect": connect}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
