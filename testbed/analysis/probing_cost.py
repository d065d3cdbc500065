# SPDX-License-Identifier: Apache-2.0
"""What probing costs a run whose path service plans by measured paths. Pure."""

from dataclasses import dataclass

from testbed.analysis.observations import RunRecord

_ETHERNET_BYTES = 14
_UDP_BYTES = 8 + 24  # with the payload of hostlib/native/src/prober/payload.hpp; a SYN has no more than 8 more
_ICMP_BYTES = 8


@dataclass(frozen=True, slots=True)
class ProbingCost:
    """Probes of ports and of watched ports, and bytes with all headers, of probes and of their answers.

    part_of_bytes: bytes over the payload that ranks received. first_ports_s: the longest time that a pair waited for
    its first ports. part_of_time: that over the completion time.
    """

    probes: int
    watches: int
    bytes: int
    part_of_bytes: float
    first_ports_s: float
    part_of_time: float


def probing_cost(run: RunRecord, ip_header_bytes: int) -> ProbingCost | None:
    """The cost of one run; None where nothing was measured. `ip_header_bytes`: of a packet without options."""
    measured = run.service.get("measured")
    if not measured:
        return None
    probes, watches = run.service["counts"].get("probes", 0), round(measured["watch_probes"])
    packet = ip_header_bytes + _UDP_BYTES
    answer = ip_header_bytes + _ICMP_BYTES + packet  # Linux quotes all of it
    both = (probes + watches) * (2 * _ETHERNET_BYTES + packet + answer)
    first_s = measured["first_ports"]["longest_s"]
    return ProbingCost(
        probes=probes,
        watches=watches,
        bytes=both,
        part_of_bytes=both / max(1, sum(flow.bytes for flow in run.flows)),
        first_ports_s=first_s,
        part_of_time=first_s / run.completion_s,
    )
