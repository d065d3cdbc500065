# SPDX-License-Identifier: Apache-2.0
"""The second process of test_stats.py: two devices that exchange messages. Answers each line of standard input:

counters    with Device.counters() of both devices, in one line of JSON
ports       with the ports that the second device pins
fork        with the process id of a fork, which sleeps until it is killed

usage: stats_process.py MESSAGES [NETWORK]

NETWORK is the first three numbers of the devices' addresses: 127.0.0 without it.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from hostlib import Device
from tests.ports import free_ports

DEADLINE_S = 60.0


def main(messages: int, network: str = "127.0.0") -> None:
    first, second = f"{network}.1", f"{network}.2"
    ports = {first: free_ports(2)}
    with Device(first, lanes=4) as one, Device(second, lanes=2, policy="pinned", ports=ports) as two:
        listener = two.listen()
        to = one.connect(listener.handle)
        back = listener.accept(DEADLINE_S)
        for number in range(messages):
            receiving = back.recv(bytearray(100_000))
            to.send(bytes(50_000 + number)).wait(DEADLINE_S)
            receiving.wait(DEADLINE_S)
        print("ready", flush=True)
        for line in sys.stdin:
            match line.strip():
                case "counters":
                    print(json.dumps([one.counters(), two.counters()]), flush=True)
                case "ports":
                    print(json.dumps(ports[first]), flush=True)
                case "fork":
                    if (child := os.fork()) == 0:
                        signal.pause()
                    print(child, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
