# SPDX-License-Identifier: Apache-2.0
"""Parser of the flows that a router has noted in nftables (`emul.routed.setup_lines.flow_rules`). Pure."""

import re
from collections.abc import Iterator
from ipaddress import ip_address

from emul.flow_dump import ObservedFlow
from emul.routed.setup_lines import FLOWS_REMEMBERED_S
from netmodel import Flow

_ELEMENT = re.compile(
    r"(?P<src>[0-9a-f.:]+) \. (?P<dst>[0-9a-f.:]+) \. (?P<sport>\d+) \. (?P<dport>\d+) \. \"(?P<out>[^\"]+)\""
    r"(?: timeout \S+)?(?: expires (?P<before>\w+))? counter packets (?P<packets>\d+) bytes (?P<bytes>\d+)"
    r"(?: timeout \S+)?(?: expires (?P<after>\w+))?"
)
_TIME = re.compile(r"(\d+)(ms|[dhms])")
_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def flows_of(listed: str, protocol: int) -> Iterator[ObservedFlow]:
    """The flows in the output of `nft list set`, of an IP protocol. Their ingress interface is not known: empty.

    Versions of nft differ in whether an element's counter or the time until it expires comes first.
    """
    for match in _ELEMENT.finditer(listed):
        ends = ip_address(match["src"]), ip_address(match["dst"])
        flow = Flow(*ends, int(match["sport"]), int(match["dport"]), protocol)
        expires = match["before"] or match["after"] or "0s"
        left_s = sum(int(count) * _SECONDS[unit] for count, unit in _TIME.findall(expires))
        yield ObservedFlow(
            flow, "", match["out"], int(match["packets"]), int(match["bytes"]), idle_s=FLOWS_REMEMBERED_S - left_s
        )
