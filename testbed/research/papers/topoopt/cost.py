# SPDX-License-Identifier: Apache-2.0
"""Cost of interconnects by Table 2's prices (appendix G and Figure 10), in US dollars per server.

The paper does not print its formulas. These count, for each of a server's d links of rate B:

- a NIC port at half of Table 2's price, whose NICs have two ports ("two 2-port NICs as one 4-port NIC");
- a transceiver at every NIC and switch port;
- fibres of 500 m, the mean of 0 to 1,000 m, at 0.30 per metre: one per optical circuit, three per path through a
  fat-tree;
- with patch panels two ports, one active and one to look ahead, and a 1 x 2 switch; with OCSs one port.

Half a NIC per port and these counts of fibres were chosen because they give the printed ratio of OCSs to patch panels.
All costs are proportional to the number of servers, as a full-bisection fat-tree of k^3 / 4 hosts has 5 k^3 / 4 switch
ports. Table 2 has no prices of SiP-ML.
"""

from dataclasses import dataclass

FIBRE_USD = 0.30 * 500
FAT_TREE_PORTS = 5
"""Switch ports per host port of a full-bisection fat-tree with three tiers."""
_FAT_TREE_FIBRES = 3
_OVERSUBSCRIBED_PORTS = 3
"""The same with half of the uplinks of top-of-rack switches: a port to the host, and half of the four above it."""
_OVERSUBSCRIBED_FIBRES = 2
FAT_TREE = 3.2
"""TopoOpt's bandwidth over that of a fat-tree of equal cost: a fat-tree of TopoOpt's bandwidth costs 3.2 times as much
(section 5.2)."""


@dataclass(frozen=True, slots=True)
class Prices:
    """A row of Table 2, in US dollars."""

    transceiver: int
    nic: int
    switch_port: int
    patch_port: int = 100
    ocs_port: int = 520
    two_way_switch: int = 25


TABLE_2 = {
    10: Prices(20, 185, 94),
    25: Prices(39, 185, 144),
    40: Prices(39, 354, 144),
    100: Prices(99, 678, 187),
    200: Prices(198, 815, 374),
}
"""By link rate in Gbit/s."""


def patch_panels(degree: int, gbps: int) -> float:
    """TopoOpt with patch panels, 1 x 2 switches and look-ahead ports."""
    price = TABLE_2[gbps]
    return degree * (_port(price) + 2 * price.patch_port + price.two_way_switch + FIBRE_USD)


def circuit_switches(degree: int, gbps: int) -> float:
    """TopoOpt with OCSs, and OCS-reconfig: d OCSs connect all servers."""
    price = TABLE_2[gbps]
    return degree * (_port(price) + price.ocs_port + FIBRE_USD)


def ideal_switch(degree: int, gbps: int) -> float:
    """A full-bisection fat-tree with d host ports of rate B."""
    price = TABLE_2[gbps]
    switches = FAT_TREE_PORTS * (price.switch_port + price.transceiver)
    return degree * (_port(price) + switches + _FAT_TREE_FIBRES * FIBRE_USD)


def fat_tree(degree: int, gbps: int) -> float:
    """Fat-tree of section 5.1, with 1 / 3.2 of TopoOpt's bandwidth, if parts of ports could be bought."""
    return ideal_switch(degree, gbps) / FAT_TREE


def oversubscribed(degree: int, gbps: int) -> float:
    """Oversub. Fat-tree of section 5.1: d host ports of rate B, and half of the uplinks of top-of-rack switches."""
    price = TABLE_2[gbps]
    switches = _OVERSUBSCRIBED_PORTS * (price.switch_port + price.transceiver)
    return degree * (_port(price) + switches + _OVERSUBSCRIBED_FIBRES * FIBRE_USD)


def expander(degree: int, gbps: int) -> float:
    """Fixed links between servers: half a fibre for each of their ends."""
    return degree * (_port(TABLE_2[gbps]) + FIBRE_USD / 2)


def _port(price: Prices) -> float:
    """A port of a NIC with its transceiver."""
    return price.nic / 2 + price.transceiver
