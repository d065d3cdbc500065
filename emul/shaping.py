# SPDX-License-Identifier: Apache-2.0
"""Traffic control for one direction of a link: a token bucket at the link's rate with a bounded queue. Pure.

The queue is a `pfifo_head_drop`, not the token bucket's own tail-drop queue. A qdisc that rejects a packet makes
sendmmsg(2) fail; OVS's userspace datapath then discards the rest of its batch (up to 31 packets), and no counter counts
them: with batches of 32 packets into a full queue, tc counted 248 of 1,119 losses. A queue that drops from its head
accepts every packet, and every loss is counted: 1,121 of 1,121. Other packets of a flow are lost, but equally many.
"""

from typing import Literal

Queue = Literal["head_drop", "bands"]
"""The queue behind a token bucket. `bands` is `pfifo_fast`: packets of priority 6 and 7 leave first, and each band
holds as many packets as the interface's `txqueuelen`. It rejects packets, so it suits ports of routers, whose kernel
forwards.
"""

QUEUE_PACKETS = 96
"""Length of a switch port's queue in packets: 400 KB of 4.2 KB packets, enough for several RoCE windows."""

HOST_QUEUE_PACKETS = 1024
"""Length of a host NIC's queue in packets. It exceeds what socket buffers hold, so a NIC delays senders, not drops."""

_ETHERNET_HEADER_BYTES = 14
_BURST_PACKETS = 3
_BURST_S = 0.001


def burst_bytes(rate_bps: int, mtu_bytes: int) -> int:
    """Bucket size in bytes: three full frames or 1 ms at the rate, whichever is larger.

    A bucket smaller than one frame would never send it.
    """
    return max(_BURST_PACKETS * (mtu_bytes + _ETHERNET_HEADER_BYTES), int(rate_bps / 8 * _BURST_S))


def queue_bytes(mtu_bytes: int, queue_packets: int = QUEUE_PACKETS) -> int:
    """Length in bytes of a queue, by default a switch port's, that is full of full frames."""
    return queue_packets * (mtu_bytes + _ETHERNET_HEADER_BYTES)


def shape_lines(
    interface: str, rate_bps: int, mtu_bytes: int, queue_packets: int, queue: Queue = "head_drop"
) -> list[str]:
    """Lines for `tc -batch` that shape what leaves by `interface`.

    rate_bps: bits of Ethernet frames per second, without preamble, frame check sequence and interframe gap, as in all
    counters.
    """
    # The bucket's own limit is never reached, so only the inner queue drops packets.
    limit = 2 * queue_packets * (mtu_bytes + _ETHERNET_HEADER_BYTES)
    burst = burst_bytes(rate_bps, mtu_bytes)
    return [
        f"qdisc replace dev {interface} root handle 5: tbf rate {rate_bps}bit burst {burst}b limit {limit}b",
        f"qdisc replace dev {interface} parent 5:1 handle 6: "
        + ("pfifo_fast" if queue == "bands" else f"pfifo_head_drop limit {queue_packets}"),
    ]
