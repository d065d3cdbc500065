# SPDX-License-Identifier: Apache-2.0
"""One direction of a link as traffic control sees it: a token bucket at the link's rate over a bounded queue. Pure.

The queue is a `pfifo_head_drop` and not the token bucket's own tail-drop queue for a measured reason. A qdisc that
refuses a packet makes sendmmsg(2) fail; OVS's userspace datapath then throws the rest of its burst away (up to 31
packets) and no counter anywhere sees these: with 32-packet bursts into a full queue, tc counted 248 of 1,119 losses. A
queue that drops from its head accepts every packet and says so, and every loss is counted: 1,121 of 1,121. Which packet
of a flow is lost differs, how many does not.
"""

QUEUE_PACKETS = 96
"""Packets a switch port's queue holds before it drops: 400 KB of 4.2 KB packets, enough for several RoCE windows."""

HOST_QUEUE_PACKETS = 1024
"""Packets a host NIC's queue holds: a NIC exerts back-pressure rather than drop, so sockets' buffers fill first."""

_ETHERNET_HEADER_BYTES = 14
_BURST_PACKETS = 3
_BURST_S = 0.001


def burst_bytes(rate_bps: int, mtu_bytes: int) -> int:
    """Bucket size in bytes: three full packets (a bucket below one packet would never send it) or 1 ms of the rate."""
    return max(_BURST_PACKETS * (mtu_bytes + _ETHERNET_HEADER_BYTES), int(rate_bps / 8 * _BURST_S))


def shape_lines(interface: str, rate_bps: int, mtu_bytes: int, queue_packets: int) -> list[str]:
    """Lines for `tc -batch` that shape what leaves by `interface`.

    rate_bps counts Ethernet frames without preamble, check sequence and gap, as every counter does.
    """
    # The bucket's own limit is out of reach, so that the inner queue is the only one that ever drops.
    limit = 2 * queue_packets * (mtu_bytes + _ETHERNET_HEADER_BYTES)
    burst = burst_bytes(rate_bps, mtu_bytes)
    return [
        f"qdisc replace dev {interface} root handle 5: tbf rate {rate_bps}bit burst {burst}b limit {limit}b",
        f"qdisc replace dev {interface} parent 5:1 handle 6: pfifo_head_drop limit {queue_packets}",
    ]
