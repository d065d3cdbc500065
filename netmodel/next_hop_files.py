# SPDX-License-Identifier: Apache-2.0
"""Next hops that routers had, from a file: the order of members of their ECMP groups, which predictions need.

It is the `observations.json` of a run with routers, or a JSON object by switch and address, whose lists have the ports
in the order of `ip -j route`:

    {"leaf1": {"10.0.1.1": [6, 5]}, "leaf2": {"10.0.0.1": [5, 6]}}
"""

from ipaddress import ip_address

from pydantic import BaseModel, TypeAdapter, ValidationError

from netmodel.next_hops import Forwarding, WrittenNextHops, forwarding, in_order_of
from netmodel.topology import PortRef, Topology

_Groups = dict[str, dict[str, list[int]]]


class _Run(BaseModel):
    next_hops: _Groups = {}


class _Observations(BaseModel):
    runs: list[_Run]


def read_next_hops(text: bytes, topology: Topology, file: str = "<text>") -> Forwarding:
    """The routes of `topology` with the groups of a file; of several runs, those of the first that has any.

    Raises ValueError, one sentence with the file, for what is not such a file, and for switches, addresses and ports
    that the topology does not have.
    """
    found = _groups(text, file)
    cabled = set(topology.linked_ports())
    owned = {nic.address for host in topology.hosts for nic in host.nics}
    switches = {switch.name for switch in topology.switches}
    for name, groups in found.items():
        if name not in switches:
            raise ValueError(f"{file}: topology {topology.name} has no switch {name!r}")
        for address, ports in groups.items():
            try:
                known = ip_address(address) in owned
            except ValueError:
                known = False
            if not known:
                raise ValueError(f"{file}: {name} has next hops to {address!r}, which is no host's address")
            if not ports or len(set(ports)) < len(ports) or not all(PortRef(name, port) in cabled for port in ports):
                raise ValueError(
                    f"{file}: the next hops of {name} to {address} must be different ports of links: {ports}"
                )
    return in_order_of(found, forwarding(topology))


def _groups(text: bytes, file: str) -> WrittenNextHops:
    try:
        runs = _Observations.model_validate_json(text).runs
    except ValidationError:
        try:
            return TypeAdapter(_Groups).validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            what = f"{place}: {first['msg']}" if place else first["msg"]
            raise ValueError(f"{file}: is neither observations.json of a run nor next hops by switch: {what}") from None
    found = next((run.next_hops for run in runs if run.next_hops), None)
    if found is None:
        raise ValueError(f"{file}: has no next hops; take the observations of a run on fabric routed")
    return found
