# SPDX-License-Identifier: Apache-2.0
"""A program of somebody else's: sends over several TCP connections, and connects again where one breaks.

`resuming_sender.py take OWN_ADDRESS` answers what it gets, until the sender has ended. `resuming_sender.py send PEER
CONNECTIONS` ends as soon as the successor of a broken connection has had answers, and prints its source port. A
connection is broken when nobody has acknowledged for 1.5 s what it sends.
"""

import os
import socket
import sys
import threading

PORT = 7100
BROKEN_MS = 1500
MESSAGE = bytes(1 << 14)
END = b"E" * len(MESSAGE)
ANSWERS = 10
TIMEOUT_S = 120.0
PAUSE_S = 0.1

came_back: list[int] = []
ended = threading.Event()


def answer(connection: socket.socket) -> None:
    with connection:
        while (message := connection.recv(len(MESSAGE), socket.MSG_WAITALL)) == MESSAGE:
            connection.sendall(b"!")
    if message == END:
        os._exit(0)


def take(own: str) -> None:
    with socket.create_server((own, PORT), backlog=64) as server:
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            threading.Thread(target=answer, args=(connection,), daemon=True).start()


def send(peer: str) -> None:
    broken = False
    while not ended.is_set():
        answers = 0
        try:
            with socket.socket() as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, BROKEN_MS)
                connection.connect((peer, PORT))
                while not ended.is_set():
                    connection.sendall(MESSAGE)
                    connection.recv(1)
                    answers += 1
                    if broken and answers == ANSWERS:
                        came_back.append(connection.getsockname()[1])
                        ended.set()
        except OSError:  # ETIMEDOUT, or what routers have said meanwhile, such as EHOSTUNREACH
            broken = broken or answers > 0
            ended.wait(PAUSE_S)


def main(peer: str, connections: int) -> None:
    sending = [threading.Thread(target=send, args=(peer,), daemon=True) for _ in range(connections)]
    for each in sending:
        each.start()
    if not ended.wait(TIMEOUT_S):
        sys.exit("no broken connection has come back")
    for each in sending:
        each.join()
    with socket.create_connection((peer, PORT)) as connection:
        connection.sendall(END)
    print("came back from", *came_back)


if __name__ == "__main__":
    what, address, *connections = sys.argv[1:]
    if what == "take":
        take(address)
    main(address, int(*connections))
