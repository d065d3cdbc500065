# SPDX-License-Identifier: Apache-2.0
"""A process that sends over lanes whose packets pass given nodes.

    python segment_sender.py NEAR FAR HANDLE BYTES PORTS SEGMENTS

PORTS and SEGMENTS are JSON: the source port of each lane, and the nodes that its packets pass. It prints the user that
it runs as, and by source port the packets that were sent.
"""

from __future__ import annotations

import json
import os
import sys

from hostlib import Device

TIMEOUT_S = 60.0


def main(near: str, far: str, handle: str, message_bytes: int, ports: list[int], segments: list[list[str]]) -> None:
    options = {"policy": "pinned", "ports": {far: ports}, "segments": {far: segments}, "flowlet_bytes": 16_384}
    with Device(near, lanes=len(ports), **options) as device:
        connection = device.connect(bytes.fromhex(handle), TIMEOUT_S)
        connection.send(bytes(range(256)) * (message_bytes // 256)).wait(TIMEOUT_S)
        lanes = device.counters()["lanes"]
    print(json.dumps({"user": os.getuid(), "packets": {lane["port"]: lane["tx_packets"] for lane in lanes}}))


if __name__ == "__main__":
    near, far, handle, message_bytes, ports, segments = sys.argv[1:]
    main(near, far, handle, int(message_bytes), json.loads(ports), json.loads(segments))
