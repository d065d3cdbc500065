# SPDX-License-Identifier: Apache-2.0
"""Direct-connect fabrics: hosts with d NICs, joined by d optical switches or patch panels (TopoOpt, section 3)."""

from collections.abc import Sequence
from ipaddress import IPv4Address

from netmodel.located import raise_all
from netmodel.topology import (
    Host,
    Link,
    Nic,
    PortRef,
    Switch,
    Topology,
    TopologyError,
    check_links,
    derived_hash_seed,
    derived_mac,
)

_FIRST_ADDRESS = int(IPv4Address("10.0.0.0"))
_HOSTS_MAX = 254 * 256  # a rank's NICs have addresses in one /16 per NIC
_LOOK_AHEAD_HOSTS_MAX = 65535 // 3  # a row of 1x2 switches has three ports per host
_DEGREE_MAX = 255


def direct_connect(
    hosts: int,
    degree: int,
    rate_bps: int | Sequence[int],
    mtu_bytes: int = 9000,
    *,
    delay_s: float | None = None,
    look_ahead: bool = False,
    name: str | None = None,
) -> Topology:
    """Hosts h1.. with NICs nic0..; NIC j of host h<i> is connected to port i of optical switch ocs<j+1>.

    A switch can thus join any two hosts, by the same NIC of both; a degree above the number of other hosts makes
    parallel circuits. NIC j of host i has the address 10.<j>.<a>.<b> with a = (i - 1) // 254 and
    b = (i - 1) % 254 + 1. `rate_bps` is the rate of all links, each way, in bit/s, or has one for each NIC of a host.
    `delay_s` is the delay of every cable in seconds, of which a circuit has two or more; None: not given.

    look_ahead: two patch panels per NIC; one is set up for the next job while the other carries the current one
    (TopoOpt, appendix C). ocs1..ocs<d> are the first bank and ocs<d+1>..ocs<2d> the second. Switch flip<j+1> holds the
    1x2 switches of all hosts' NIC j: with n hosts, host i is on its port i, the first bank on port n + i, and the
    second bank on port 2n + i. `panel_of` gives the panel of a NIC.

    Raises TopologyError (a ValueError) for fewer than two hosts, an impossible degree, more than a million links, or
    any value that `Topology` refuses.
    """
    most = _LOOK_AHEAD_HOSTS_MAX if look_ahead else _HOSTS_MAX
    found: list[TopologyError] = []
    for what, count, least, largest in (("hosts", hosts, 2, most), ("degree", degree, 1, _DEGREE_MAX)):
        if not least <= count <= largest:
            found.append(TopologyError(f"{what} is {count}, but must lie in {least}..{largest}", (what,)))
    rates = [rate_bps] * degree if isinstance(rate_bps, int) else [*rate_bps]
    if len(rates) != degree:
        found.append(TopologyError(f"there are {len(rates)} rates for {degree} NICs", ("rate",)))
    if min(rates, default=1) <= 0:
        found.append(TopologyError(f"rate is {min(rates)} bit/s, but must be at least 1", ("rate",)))
    raise_all(found)
    check_links(hosts * degree * (3 if look_ahead else 1))
    machines = []
    for i in range(hosts):
        addresses = [IPv4Address(_FIRST_ADDRESS + (j << 16) + (i // 254 << 8) + i % 254 + 1) for j in range(degree)]
        nics = tuple(Nic(f"nic{j}", address, derived_mac(address)) for j, address in enumerate(addresses))
        machines.append(Host(f"h{i + 1}", nics))
    names = [f"ocs{j + 1}" for j in range(degree * (2 if look_ahead else 1))]
    names += [f"flip{j + 1}" for j in range(degree)] if look_ahead else []
    links = []
    for j in range(degree):
        first = f"flip{j + 1}" if look_ahead else f"ocs{j + 1}"
        links += [Link(PortRef(f"h{i}", j + 1), PortRef(first, i), rates[j], delay_s) for i in range(1, hosts + 1)]
    for j in range(degree if look_ahead else 0):
        for bank in (0, 1):
            panel = f"ocs{bank * degree + j + 1}"
            links += [
                Link(PortRef(f"flip{j + 1}", (bank + 1) * hosts + i), PortRef(panel, i), rates[j], delay_s)
                for i in range(1, hosts + 1)
            ]
    return Topology(
        name=(f"direct-connect-{hosts}x{degree}" + ("-look-ahead" if look_ahead else "")) if name is None else name,
        hosts=tuple(machines),
        switches=tuple(Switch(text, "ocs", i, derived_hash_seed(i)) for i, text in enumerate(names, start=1)),
        links=tuple(links),
        mtu_bytes=mtu_bytes,
    )


def panel_of(topology: Topology, host: str, nic: int, bank: int = 0) -> PortRef:
    """The port of the optical switch that connects this NIC to others; with look-ahead, of the panel in `bank` 0 or 1.

    Raises KeyError for a host or NIC without a cable, ValueError for a bank that does not exist.
    """
    port = topology.peer(PortRef(host, nic + 1))
    if not port.node.startswith("flip"):
        if bank != 0:
            raise ValueError(f"topology {topology.name!r} has one bank of optical switches, not look-ahead")
        return port
    if bank not in (0, 1):
        raise ValueError(f"there is no bank {bank}: the banks of patch panels are 0 and 1")
    return topology.peer(PortRef(port.node, port.port + (bank + 1) * len(topology.hosts)))
