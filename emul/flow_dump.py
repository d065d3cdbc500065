# SPDX-License-Identifier: Apache-2.0
"""Parsers of OVS's datapath flow table, flow rules and packet traces. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from math import inf

from netmodel import Flow

_FLOW = re.compile(
    r"in_port\((?P<in_port>[^)]+)\).*"
    r"\bipv[46]\(src=(?P<src>[^,/]+),dst=(?P<dst>[^,/]+),(?:label=[^,]+,)?proto=(?P<proto>6|17),[^)]*\).*"
    r"\b(?:tcp|udp)\(src=(?P<sport>\d+),dst=(?P<dport>\d+)\),(?: ?tcp_flags\([^)]*\),)? ?"
    r"packets:(?P<packets>\d+), bytes:(?P<bytes>\d+), used:(?P<used>[\d.]+s|never),.*"
    r"actions:(?P<actions>\S+)"
)
_SET = re.compile(r"set\((?:[^()]|\([^()]*\))*\),")
_COUNTED = re.compile(r"\bn_packets=(?P<packets>\d+),.*\bin_port=(?P<port>\d+)")
_TRACED = re.compile(r"^Datapath actions: (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ObservedFlow:
    """A flow of UDP or TCP in one switch's datapath, with the interfaces (kernel names) by which it enters and leaves.

    `idle_s` is the time since its last packet in seconds, infinity when the datapath has counted none.
    """

    flow: Flow
    in_interface: str
    out_interface: str
    packets: int
    bytes: int
    idle_s: float


def observed_flows(text: str) -> Iterator[ObservedFlow]:
    """The flows of `dpctl/dump-flows --names` that match one 5-tuple of UDP or TCP exactly and send it by one port.

    Flows that wildcard the ports (where a switch has only one egress port) and flows that drop are left out.
    """
    for line in text.splitlines():
        if match := _FLOW.search(line):
            out = single_output(match["actions"])
            if out is None:
                continue
            ends = ip_address(match["src"]), ip_address(match["dst"])
            flow = Flow(*ends, int(match["sport"]), int(match["dport"]), int(match["proto"]))
            idle_s = inf if match["used"] == "never" else float(match["used"][:-1])
            yield ObservedFlow(
                flow, match["in_port"], out, packets=int(match["packets"]), bytes=int(match["bytes"]), idle_s=idle_s
            )


def counted_by_port(text: str) -> Iterator[tuple[int, int]]:
    """(ingress port, packets) of every rule of `ovs-ofctl dump-flows --no-names` that matches an ingress port."""
    for match in _COUNTED.finditer(text):
        yield int(match["port"]), int(match["packets"])


def single_output(actions: str) -> str | None:
    """The interface that datapath actions send to. Header rewrites are ignored; None for a drop or any other action."""
    out = _SET.sub("", actions)
    return None if out == "drop" or "," in out or "(" in out else out


def traced_output(text: str) -> str | None:
    """The interface by which a traced packet would leave, from `ofproto/trace --names`; None if it would be dropped."""
    actions = _TRACED.search(text)
    return single_output(actions[1]) if actions else None
