# SPDX-License-Identifier: Apache-2.0
"""A link between this network namespace and another one with a receiving process (`sink`)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from emul.virtual_queue import VirtualQueue, mount_bpffs

from . import sink

NEAR = "near"
FAR = "far"
FAR_ADDRESS = "10.99.0.100"
NEAR_IPV6 = "fd99::1"
FAR_IPV6 = "fd99::100"
MTU = 4500  # path MTU 4096
QUEUE_BYTES = 64 << 20  # more than ever waits: what is measured is the sender's control, not loss


def near_address(index: int) -> str:
    return f"10.99.0.{1 + index}"


def run(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


class Link:
    """The near end with `senders` addresses, here, and the far end with a sink. Leaving takes both away."""

    def __init__(
        self, *, senders: int, lanes: int, connections: int, message_bytes: int, far_address: str = FAR_ADDRESS
    ) -> None:
        self._sink = subprocess.Popen(
            [
                *("unshare", "--net", sys.executable, sink.__file__),
                *(far_address, str(lanes), str(connections), str(message_bytes)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.handle = b""
        """Of the sink's listener, once it is open."""
        run("ip", "link", "add", NEAR, "mtu", str(MTU), "type", "veth", "peer", "name", FAR, "mtu", str(MTU))
        # unshare(1) becomes the sink; until it has, the namespace is ours still.
        while run("readlink", f"/proc/{self._sink.pid}/ns/net") == run("readlink", "/proc/self/ns/net"):
            assert self._sink.poll() is None
        run("ip", "link", "set", FAR, "netns", str(self._sink.pid))
        for index in range(senders):
            run("ip", "address", "add", f"{near_address(index)}/24", "dev", NEAR)
        # Without duplicate address detection, which would keep the addresses from use for a second.
        run("ip", "address", "add", f"{NEAR_IPV6}/64", "dev", NEAR, "nodad")
        run("ip", "link", "set", NEAR, "up")
        self.far("ip", "address", "add", f"{FAR_ADDRESS}/24", "dev", FAR)
        self.far("ip", "address", "add", f"{FAR_IPV6}/64", "dev", FAR, "nodad")
        self.far("ip", "link", "set", FAR, "up")

    @property
    def sink_pid(self) -> int:
        return self._sink.pid

    def far(self, *argv: str) -> str:
        """Runs a command in the sink's namespace."""
        return run("nsenter", f"--net=/proc/{self._sink.pid}/ns/net", *argv)

    def shape(self, rate_bps: int, queue_bytes: int = QUEUE_BYTES) -> None:
        """Limits what leaves the near end, and what may wait there."""
        burst = max(10_000, rate_bps // 8 // 500)  # 2 ms
        run(
            *("tc", "qdisc", "replace", "dev", NEAR, "root", "tbf", "rate", f"{rate_bps}bit"),
            *("burst", str(burst), "limit", str(queue_bytes)),
        )

    def mark(self, rate_bps: int, above_bytes: int, bpffs: Path) -> VirtualQueue:
        """Marks what leaves the near end while a queue of an ideal link of that rate would be longer."""
        mount_bpffs(bpffs)
        queue = VirtualQueue(NEAR, bpffs)
        queue.mark(rate_bps, above_bytes, QUEUE_BYTES)
        return queue

    def queue(self) -> dict[str, Any]:
        """The near end's queueing discipline: bytes, packets, drops, backlog."""
        (qdisc,) = [
            qdisc for qdisc in json.loads(run("tc", "-s", "-j", "qdisc", "show", "dev", NEAR)) if qdisc.get("root")
        ]
        assert isinstance(qdisc, dict)
        return qdisc

    def open(self) -> bytes:
        """Lets the sink open its device; its handle."""
        assert self._sink.stdin is not None
        assert self._sink.stdout is not None
        print(file=self._sink.stdin, flush=True)
        self.handle = bytes.fromhex(self._sink.stdout.readline())
        return self.handle

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sink.kill()
        self._sink.communicate()
        subprocess.run(["ip", "link", "delete", NEAR], check=False, capture_output=True)
