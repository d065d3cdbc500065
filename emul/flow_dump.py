# SPDX-License-Identifier: Apache-2.0
"""Where packets go, read from the text of OVS's datapath flow table and of its tracer. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address
from math import inf

from netmodel import Flow

_FLOW = re.compile(
    r"in_port\((?P<in_port>[^)]+)\).*"
    r"\bipv4\(src=(?P<src>[\d.]+),dst=(?P<dst>[\d.]+),proto=17,[^)]*\).*"
    r"\budp\(src=(?P<sport>\d+),dst=(?P<dport>\d+)\), "
    r"packets:(?P<packets>\d+), bytes:(?P<bytes>\d+), used:(?P<used>[\d.]+s|never),.*"
    r"actions:(?P<actions>\S+)"
)
_SET = re.compile(r"set\((?:[^()]|\([^()]*\))*\),")
_COUNTED = re.compile(r"\bn_packets=(?P<packets>\d+),.*\bin_port=(?P<port>\d+)")
_TRACED = re.compile(r"^Datapath actions: (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ObservedFlow:
    """A UDP flow of one switch's datapath: it came in by one interface and leaves by another (kernel names).

    `idle_s`: since its last packet, infinity when the datapath counts none.
    """

    flow: Flow
    in_interface: str
    out_interface: str
    packets: int
    bytes: int
    idle_s: float


def observed_flows(text: str) -> Iterator[ObservedFlow]:
    """Every flow of `dpctl/dump-flows --names` that names one UDP 5-tuple exactly and sends it by one port.

    Flows that wildcard the ports (where a switch had only one way) and flows that drop are left out.
    """
    for line in text.splitlines():
        if match := _FLOW.search(line):
            out = single_output(match["actions"])
            if out is None:
                continue
            flow = Flow(IPv4Address(match["src"]), IPv4Address(match["dst"]), int(match["sport"]), int(match["dport"]))
            idle_s = inf if match["used"] == "never" else float(match["used"][:-1])
            yield ObservedFlow(
                flow, match["in_port"], out, packets=int(match["packets"]), bytes=int(match["bytes"]), idle_s=idle_s
            )


def counted_by_port(text: str) -> Iterator[tuple[int, int]]:
    """In port and packets of every rule of `ovs-ofctl dump-flows --no-names` that names an in port."""
    for match in _COUNTED.finditer(text):
        yield int(match["port"]), int(match["packets"])


def single_output(actions: str) -> str | None:
    """The interface that datapath actions send to, header rewrites aside; None for a drop or anything else."""
    out = _SET.sub("", actions)
    return None if out == "drop" or "," in out or "(" in out else out


def traced_output(text: str) -> str | None:
    """The interface by which a packet would leave, from the text of `ofproto/trace --names`; None if it would not."""
    actions = _TRACED.search(text)
    return single_output(actions[1]) if actions else None
