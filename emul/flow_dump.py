# SPDX-License-Identifier: Apache-2.0
"""Where packets really went, read from the text of OVS's datapath flow table (`dpctl/dump-flows --names`). Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address

from netmodel import Flow

_FLOW = re.compile(
    r"in_port\((?P<in_port>[^)]+)\).*"
    r"\bipv4\(src=(?P<src>[\d.]+),dst=(?P<dst>[\d.]+),proto=17,[^)]*\).*"
    r"\budp\(src=(?P<sport>\d+),dst=(?P<dport>\d+)\).*"
    r"actions:(?P<actions>\S+)"
)
_SET = re.compile(r"set\((?:[^()]|\([^()]*\))*\),")


@dataclass(frozen=True, slots=True)
class ObservedFlow:
    """A UDP flow of one switch's datapath: it came in by one interface and leaves by another (kernel names)."""

    flow: Flow
    in_interface: str
    out_interface: str


def observed_flows(text: str) -> Iterator[ObservedFlow]:
    """Every datapath flow that names one UDP 5-tuple exactly and sends it by one port.

    Flows that wildcard the ports (where a switch had only one way) and flows that drop are left out.
    """
    for line in text.splitlines():
        if match := _FLOW.search(line):
            out = _SET.sub("", match["actions"])
            if out == "drop" or "," in out or "(" in out:
                continue
            flow = Flow(IPv4Address(match["src"]), IPv4Address(match["dst"]), int(match["sport"]), int(match["dport"]))
            yield ObservedFlow(flow, match["in_port"], out)
