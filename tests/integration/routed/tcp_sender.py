# SPDX-License-Identifier: Apache-2.0
"""A program of somebody else's: sends bytes to a peer over one TCP connection, and takes a peer's.

Run as `tcp_sender.py OWN_ADDRESS PEER BYTES`, on all hosts at once.
"""

import socket
import sys
import threading
import time

PORT = 7000
TIMEOUT_S = 60.0


def send(peer: str, size: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            with socket.create_connection((peer, PORT), timeout=TIMEOUT_S) as connection:
                connection.sendall(bytes(size))
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)
                return
        except ConnectionRefusedError:  # the peer is not up yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def main(own: str, peer: str, size: int) -> None:
    with socket.create_server((own, PORT)) as server:
        sender = threading.Thread(target=send, args=(peer, size))
        sender.start()
        connection, _ = server.accept()
        with connection:
            taken = 0
            while more := len(connection.recv(1 << 16)):
                taken += more
        sender.join()
    if taken != size:
        raise SystemExit(f"{taken} bytes arrived, not {size}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
