# SPDX-License-Identifier: Apache-2.0
"""The configuration of FRR's daemons (docs.frrouting.org) for the routers of a fabric. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from netmodel.router_plan import RouterPlan
from netmodel.topology import PortRef

MAXIMUM_PATHS = 64
"""The most next hops of a route."""

_PEERS = "fabric"


@dataclass(frozen=True, slots=True)
class BgpTimers:
    """Timers of BGP sessions, in whole seconds (RFC 4271, section 10). A silent neighbour is dead after `hold_s`."""

    keepalive_s: int = 1
    hold_s: int = 3
    connect_retry_s: int = 1


def zebra_configuration(plan: RouterPlan, router: str, interface: Callable[[PortRef], str]) -> str:
    """The configuration of zebra, which installs routes in the kernel.

    interface: the name of a port's interface. The kernel gets routes with their next hops, not next-hop objects: FRR
    8.4 keeps a group of three in the kernel after one of its four members went and came back (FRR pull request 13413).

    Links without addresses have router advertisements each second. Where FRR has mgmtd (10 and later), zebra goes on
    without these lines: bgpd asks it for advertisements each 10 s, and the first four come each second, too. In a
    file for all daemons, mgmtd takes them.
    """
    lines = [f"hostname {router}", "no zebra nexthop kernel enable"]
    if plan.unnumbered:
        for session in plan.sessions[router]:
            lines += [
                f"interface {interface(session.port)}",
                " no ipv6 nd suppress-ra",
                " ipv6 nd ra-interval 1",
                "exit",
            ]
    return _text(lines)


def address_configuration(plan: RouterPlan, router: str, interface: Callable[[PortRef], str]) -> str:
    """The configuration of zebra and staticd for the router's addresses and its routes to hosts.

    It is for routers whose kernels nobody else gives these.
    """
    ip, own = "ip" if plan.version == 4 else "ipv6", plan.loopbacks[router]
    addresses = {"lo": f"{own}/{own.max_prefixlen}"}
    for port in plan.hosts[router]:
        addresses[interface(PortRef(router, port))] = f"{own}/{own.max_prefixlen}"
    for session in plan.sessions[router]:
        if (address := plan.link_addresses.get(session.port)) is not None:
            addresses[interface(session.port)] = f"{address}/{address.max_prefixlen - 1}"
    lines = [line for name, it in addresses.items() for line in (f"interface {name}", f" {ip} address {it}", "exit")]
    lines += [
        f"{ip} route {host}/{host.max_prefixlen} {interface(PortRef(router, port))}"
        for port, host in plan.hosts[router].items()
    ]
    return _text(lines)


def bgpd_configuration(
    plan: RouterPlan, router: str, interface: Callable[[PortRef], str], timers: BgpTimers | None = None
) -> str:
    """The configuration of bgpd: a session on each link to a router, the router's own address and its hosts."""
    return _text(_bgpd_lines(plan, router, interface, timers or BgpTimers()))


def _bgpd_lines(plan: RouterPlan, router: str, interface: Callable[[PortRef], str], timers: BgpTimers) -> Iterator[str]:
    yield f"hostname {router}"
    yield f"router bgp {plan.as_numbers[router]}"
    yield f" bgp router-id {plan.router_ids[router]}"
    yield " no bgp ebgp-requires-policy"  # RFC 8212 would refuse all routes without filters
    yield " no bgp default ipv4-unicast"
    yield " bgp bestpath as-path multipath-relax"
    yield f" timers bgp {timers.keepalive_s} {timers.hold_s}"
    yield f" neighbor {_PEERS} peer-group"
    yield f" neighbor {_PEERS} advertisement-interval 0"
    yield f" neighbor {_PEERS} timers connect {timers.connect_retry_s}"
    for session in plan.sessions[router]:
        if session.address is None:
            yield f" neighbor {interface(session.port)} interface peer-group {_PEERS}"
            yield f" neighbor {interface(session.port)} remote-as {session.peer_as}"
        else:
            yield f" neighbor {session.address} remote-as {session.peer_as}"
            yield f" neighbor {session.address} peer-group {_PEERS}"
    yield f" address-family ipv{plan.version} unicast"
    for address in (plan.loopbacks[router], *plan.hosts[router].values()):
        yield f"  network {address}/{address.max_prefixlen}"
    yield f"  neighbor {_PEERS} activate"
    yield f"  maximum-paths {MAXIMUM_PATHS}"
    yield " exit-address-family"
    yield "exit"


def _text(lines: list[str] | Iterator[str]) -> str:
    return "\n".join(lines) + "\n"
