# SPDX-License-Identifier: Apache-2.0
"""Optical circuit switches of a fabric: bridges of Open vSwitch that join ports, whatever the packets.

Each circuit is one OpenFlow rule, "what comes in by this port leaves by that one". The OpenFlow app has no part in
it, as an optical switch has a management interface of its own and looks into no packet. While mirrors turn, the ports
of circuits that change are dark: what comes in there is lost. Circuits that stay as they are go on carrying light.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from netmodel import Circuits, Topology, check_circuits

RECONFIGURATION_S = 0.010
"""Of a MEMS switch (TopoOpt, section 5.1); a patch panel with a robot's arm takes minutes."""

_OPENFLOW = "OpenFlow15"


class OpticalSwitches:
    """The switches of role "ocs" of one topology. They begin dark.

    run: runs an OVS command and returns its output (`PrivateOvs.command`). directory: takes a file of rules per switch.
    Whatever `run` raises when a switch refuses, is raised here.
    """

    def __init__(self, topology: Topology, run: Callable[..., str], directory: Path) -> None:
        self._topology = topology
        self._run = run
        self._directory = directory
        self._circuits: dict[str, dict[int, int]] = {
            switch.name: {} for switch in topology.switches if switch.role == "ocs"
        }

    @property
    def circuits(self) -> Circuits:
        """What is set now."""
        return {name: dict(joined) for name, joined in self._circuits.items()}

    def set(self, circuits: Circuits, reconfiguration_s: float = RECONFIGURATION_S) -> None:
        """Set the named switches to exactly these circuits, all at once, and return when light goes through.

        Raises TopologyError as `netmodel.check_circuits` does, before anything has changed.
        """
        check_circuits(self._topology, circuits)
        turning = {
            name: {entry: leaving for entry, leaving in self._circuits[name].items() if wanted.get(entry) == leaving}
            for name, wanted in circuits.items()
            if dict(wanted) != self._circuits[name]
        }
        if not turning:
            return
        self._put(turning)
        time.sleep(reconfiguration_s)
        self._put({name: dict(circuits[name]) for name in turning})

    def _put(self, circuits: Mapping[str, dict[int, int]]) -> None:
        for name, joined in circuits.items():
            rules = self._directory / f"{name}.rules"
            rules.write_text(
                "".join(f"in_port={entry},actions=output:{leaving}\n" for entry, leaving in joined.items())
            )
            self._run("ovs-ofctl", "-O", _OPENFLOW, "replace-flows", name, str(rules))
            self._circuits[name] = joined
        # The datapath forwards by its own flow table, which follows the rules a little later.
        self._run("ovs-appctl", "-t", "ovs-vswitchd", "revalidator/wait")
