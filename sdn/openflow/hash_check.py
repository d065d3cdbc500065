# SPDX-License-Identifier: Apache-2.0
"""Checks that switches hash as predicted: which flows to trace, and whether the results agree. Pure.

OVS hashes by murmur3 when it was built without CRC32 instructions, as distributions do, and by another function when it
was built with them (-msse4.2, ARMv8 CRC). Neither the rules nor the version shows which, so flows have to be traced.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from netmodel import ENTROPY_PORTS, EcmpHash, Flow, Forwarding, Topology
from netmodel.flow import IPPROTO_TCP, IPPROTO_UDP, Address


class HashMismatchError(Exception):
    """A switch has chosen another port than predicted; the text is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class FlowTrace:
    """A flow to trace on one switch, and its expected output port."""

    switch: str
    flow: Flow
    expected_port: int


def flows_to_trace(
    topology: Topology, routes: Forwarding, ecmp_hash: EcmpHash, count: int, seed: int = 0
) -> tuple[FlowTrace, ...]:
    """`count` random flows to trace, spread over the switches that have groups; none when no switch has one.

    The same seed gives the same flows. A wrong hash passes with probability (1 / members) ** count.
    """
    generator = random.Random(seed)
    choices: list[tuple[str, int, list[Address], Mapping[Address, tuple[int, ...]]]] = []
    for switch in topology.switches:
        groups = routes.groups[switch.name]
        several = [address for address, ports in groups.items() if len(ports) > 1]
        if several:
            choices.append((switch.name, switch.hash_seed, several, groups))
    sources = [nic.address for host in topology.hosts for nic in host.nics]
    traces = []
    for number in range(count if choices else 0):
        name, hash_seed, several, groups = choices[number % len(choices)]
        destination = generator.choice(several)
        source = generator.choice([address for address in sources if address != destination])
        protocol = generator.choice((IPPROTO_UDP, IPPROTO_TCP))
        flow = Flow(source, destination, generator.choice(ENTROPY_PORTS), protocol=protocol)
        ports = groups[destination]
        member = int(ecmp_hash.select(flow.fields(), hash_seed, len(ports))[0])
        traces.append(FlowTrace(name, flow, ports[member]))
    return tuple(traces)


def judge(traces: Sequence[FlowTrace], answers: Sequence[int | None]) -> None:
    """Compare the output ports that were traced (None: the flow is dropped) with the expected ones.

    Raises HashMismatchError on the first difference.
    """
    wrong = [
        (question, answer) for question, answer in zip(traces, answers, strict=True) if answer != question.expected_port
    ]
    if not wrong:
        return
    question, answer = wrong[0]
    flow = question.flow
    sent = "drops it" if answer is None else f"sends it by port {answer}"
    raise HashMismatchError(
        f"this Open vSwitch does not hash as predicted ({len(wrong)} of {len(traces)} flows differ): for "
        f"{'TCP' if flow.protocol == IPPROTO_TCP else 'UDP'} {flow.src}:{flow.src_port} to {flow.dst}:{flow.dst_port} "
        f"{question.switch} {sent} and not by port {question.expected_port}; a build with SSE4.2 or ARM CRC "
        "instructions hashes otherwise, take your distribution's openvswitch-switch package"
    )
