# SPDX-License-Identifier: Apache-2.0
"""An os-ken app of your own: the receiver decides the spine, so that ports decide nothing. docs/spec.md explains it.

Host n of the topology gets all its packets over the n-th spine that is alive, counted round. Hosts know each other's
MAC addresses, so switches forward by those.
"""

import os

from os_ken.base.app_manager import OSKenApp
from os_ken.controller import ofp_event
from os_ken.controller.handler import CONFIG_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from os_ken.ofproto import ofproto_v1_3

from netmodel import PortRef, forwarding, load_topology


class SpineByReceiver(OSKenApp):
    """Programs each switch when it has connected, and all of them when a port goes down or comes up."""

    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]  # noqa: RUF012 - os-ken reads the class attribute

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.topology = load_topology(os.environ["PARALET_TOPOLOGY"])
        self.names = {switch.dpid: switch.name for switch in self.topology.switches}
        self.switches = {}
        self.down = set()

    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    def connected(self, event):
        """Program a switch that has connected."""
        self.switches[self.names[event.msg.datapath_id]] = event.msg.datapath  # os-ken may set datapath.id later
        self.program()

    @set_ev_cls(ofp_event.EventOFPPortStatus, MAIN_DISPATCHER)
    def changed(self, event):
        """Program all switches for the links that are alive."""
        datapath, port = event.msg.datapath, event.msg.desc
        here = PortRef(self.names[datapath.id], port.port_no)
        if port.state & datapath.ofproto.OFPPS_LINK_DOWN:
            self.down.add(here)
        else:
            self.down.discard(here)
        self.program()

    def program(self):
        """For each receiver: of the ports that shortest paths begin with, the one whose turn it is."""
        dead = frozenset(link for link in self.topology.links if {link.a, link.b} & self.down)
        routes = forwarding(self.topology, dead).groups
        for name, datapath in self.switches.items():
            parser, protocol = datapath.ofproto_parser, datapath.ofproto
            for number, host in enumerate(self.topology.hosts):
                for nic in host.nics:
                    if ports := routes[name].get(nic.address):
                        actions = [parser.OFPActionOutput(ports[number % len(ports)])]
                        apply = parser.OFPInstructionActions(protocol.OFPIT_APPLY_ACTIONS, actions)
                        match = parser.OFPMatch(eth_dst=nic.mac)
                        datapath.send_msg(parser.OFPFlowMod(datapath, match=match, instructions=[apply]))
