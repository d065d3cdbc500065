# SPDX-License-Identifier: Apache-2.0
"""A process of test_stat_why.py with one device, which does what the lines of standard input say:

listen             prints the handle of a listener, in hexadecimal
connect HANDLE     connects to a listener
accept             accepts a connection
send N TAG         starts a send of 100,000 bytes on the N-th connection
receive N TAG      starts a receive of as much on the N-th connection
wait               waits for all sends

Prints `ok` after each. usage: waiting_process.py ADDRESS OPTIONS, where OPTIONS are a JSON object of the device's.
"""

from __future__ import annotations

import json
import sys

from hostlib import Device, Faults

BYTES = 100_000
DEADLINE_S = 60.0


def main(address: str, options: dict[str, object]) -> None:
    faults = Faults(**options.pop("faults", {}))  # type: ignore[arg-type]
    with Device(address, faults=faults, **options) as device:  # type: ignore[arg-type]
        listener = device.listen()
        connections, sends = [], []
        receives = []
        for line in sys.stdin:
            answer = "ok"
            match line.split():
                case ["listen"]:
                    answer = listener.handle.hex()
                case ["connect", handle]:
                    connections.append(device.connect(bytes.fromhex(handle), DEADLINE_S))
                case ["accept"]:
                    connections.append(listener.accept(DEADLINE_S))
                case ["send", number, tag]:
                    sends.append(connections[int(number)].send(bytes(BYTES), int(tag)))
                case ["receive", number, tag]:
                    receives.append(connections[int(number)].recv(bytearray(BYTES), int(tag)))
                case ["wait"]:
                    for send in sends:
                        send.wait(DEADLINE_S)
            print(answer, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
